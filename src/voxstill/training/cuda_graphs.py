"""CUDA graphs: the encoder's forward and backward pass of a step are launched as a whole, not kernel by kernel.

A step of a FastConformer has two thousand kernels of some microseconds, and one core cannot start them as fast as the
GPU computes them. A graph belongs to one shape, so batches are padded to few of them: a sixteenth of a power of two for
frames, an eighth for utterances. A shape is captured when it comes for the second time: the first time loads its
kernels. What it computes is what the padded batch gives without a graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from voxstill.core.config import Train
from voxstill.core.errors import ConfigError
from voxstill.nn.log_mel import frame_mask, output_frames

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE
    from transformers import ParakeetEncoder, PreTrainedModel
    from transformers.modeling_outputs import BaseModelOutput

MAX_GRAPHS = 128
_ALIGNED = 32  # numbers: kernels read 16 bytes at once, and memory is fetched by 128
_FRAME_STEPS, _ROW_STEPS = 16, 8


def capture(model: PreTrainedModel, cfg: Train, num_ranks: int) -> None:
    """Let the encoder of a FastConformer run as CUDA graphs; ConfigError where it cannot."""
    from transformers import ParakeetEncoder

    encoder = getattr(model, "encoder", None)
    reasons = {
        "the model is no FastConformer without streaming": not isinstance(encoder, ParakeetEncoder),
        f"{num_ranks} processes train together": num_ranks > 1,
        "`train.activation_checkpointing` is set": cfg.activation_checkpointing,
        "`train.compile` is set": cfg.compile,
        "there is no GPU": not torch.cuda.is_available(),
    }
    for why, holds in reasons.items():
        if holds:
            raise ConfigError(
                "`train.cuda_graphs` cannot be used here",
                code="option-conflict",
                why=why,
                fix="set `train.cuda_graphs: false`",
            )
    assert isinstance(encoder, ParakeetEncoder)
    encoder.forward = _GraphedEncoder(encoder)


def weights_to_clip(model: nn.Module) -> list[Tensor]:
    """The weights of a model for `clip_grad_norm_`: those whose gradients lie side by side, by graphs, are one."""
    graphed = getattr(getattr(model, "encoder", None), "forward", None)
    gradients = graphed.gradients if isinstance(graphed, _GraphedEncoder) else None
    if not isinstance(graphed, _GraphedEncoder) or gradients is None or not gradients.are_attached:
        return list(model.parameters())
    if graphed.weights_outside is None:
        joined = set(map(id, gradients.weights.values()))
        graphed.weights_outside = [weight for weight in model.parameters() if id(weight) not in joined]
    return [gradients.flat_weight, *graphed.weights_outside]


def padded_size(size: int, steps: int) -> int:
    """The next of `steps` equal steps between two powers of two: never less than `size`."""
    step = max(1, (1 << (size.bit_length() - 1)) // steps)
    return -(-size // step) * step


def padded(features_BFD: Tensor, mask_BF: Tensor) -> tuple[Tensor, Tensor]:
    """Features and mask of a batch, padded to one of few shapes."""
    num, frames = mask_BF.shape
    more = padded_size(frames, _FRAME_STEPS) - frames, padded_size(num, _ROW_STEPS) - num
    return functional.pad(features_BFD, (0, 0, 0, more[0], 0, more[1])), functional.pad(
        mask_BF, (0, more[0], 0, more[1])
    )


class _Encoder(nn.Module):
    """The encoder as graphs take it: tensors in, a tensor out."""

    def __init__(self, encoder: nn.Module, plain: Callable[..., BaseModelOutput]) -> None:
        super().__init__()
        self.encoder, self._plain = encoder, plain

    def forward(self, features_BFD: Tensor, mask_BF: Tensor) -> Tensor:
        hidden_BFE: Tensor = self._plain(features_BFD, mask_BF).last_hidden_state
        return hidden_BFE


class _Gradients:
    """The gradients of an encoder side by side, to which the graphs of all shapes add theirs."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        sizes = [-(-weight.numel() // _ALIGNED) * _ALIGNED for weight in self.weights.values()]
        self._all = torch.zeros(sum(sizes), device=next(iter(self.weights.values())).device)
        parts = zip(self.weights.values(), torch.split(self._all, sizes), strict=True)
        self._of_weights = [part.as_strided(weight.shape, weight.stride()) for weight, part in parts]
        self.flat_weight = self._all.detach()
        """A stand-in for all weights, whose gradient is all gradients side by side: `clip_grad_norm_` takes weights."""
        self.flat_weight.grad = self._all

    @property
    def are_attached(self) -> bool:
        """Whether they are the gradients of all weights now."""
        return all(weight.grad is own for weight, own in self._pairs())

    def attach(self) -> None:
        """Be the gradients of all weights: zero where a weight has none, else a copy of what it has."""
        missing = [pair for pair in self._pairs() if pair[0].grad is not pair[1]]
        is_new = len(missing) == len(self._of_weights)
        if is_new:
            self._all.zero_()  # also between the weights, where a norm that is NaN has left NaN
        for weight, own in missing:
            if weight.grad is not None:
                own.copy_(weight.grad)
            elif not is_new:
                own.zero_()
            weight.grad = own

    def add(self, gradients: Sequence[Tensor]) -> None:
        """Add those of another batch, in the order of the weights."""
        torch._foreach_add_(list(map(_flat, self._of_weights)), list(map(_flat_as, gradients, self._of_weights)))

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.weights.values(), self._of_weights, strict=True)


def _flat(tensor: Tensor) -> Tensor:
    """A tensor without gaps as one row, in the order of its memory: only tensors laid out alike share a kernel."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _flat_as(tensor: Tensor, like: Tensor) -> Tensor:
    """The same in the order of another one's memory."""
    return _flat(tensor if tensor.stride() == like.stride() else torch.empty_like(like).copy_(tensor))


class _Graph:
    """The forward and backward pass of an encoder for one shape; its gradients are added to those of all shapes.

    The tensors between are memory of all graphs: from a forward pass to its backward pass no other may run.
    """

    def __init__(
        self, model: _Encoder, gradients: _Gradients, batch: tuple[Tensor, Tensor], pool: _POOL_HANDLE, *, warm_up: bool
    ) -> None:
        self._inputs = tuple(tensor.clone() for tensor in batch)
        self._gradients = gradients
        # leaves of their own, as those of the model may be part of a backward pass on another stream
        leaves = {name: weight.detach().requires_grad_() for name, weight in gradients.weights.items()}
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        dtype, is_mixed = torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")

        def forward() -> Tensor:
            with torch.autocast("cuda", dtype, is_mixed, cache_enabled=False):  # what is cached was cast before
                hidden_BFE: Tensor = torch.func.functional_call(model, leaves, self._inputs)
            return hidden_BFE

        def backward(hidden_BFE: Tensor, gradient_BFE: Tensor) -> tuple[Tensor, ...]:
            return torch.autograd.grad(hidden_BFE, list(leaves.values()), gradient_BFE)

        if warm_up:  # libraries get ready on a stream that is not the default one
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                hidden_BFE = forward()
                like = backward(hidden_BFE, torch.zeros_like(hidden_BFE))
                gradients.add(list(map(torch.zeros_like, like)))  # nothing: they may be those of a batch before
            torch.cuda.current_stream().wait_stream(side)
        # a thread prepares the next batch on the GPU meanwhile, and must be let to
        captured = functools.partial(torch.cuda.graph, pool=pool, capture_error_mode="thread_local")
        with captured(self._forward):
            hidden_BFE = forward()
        self._gradient_BFE = torch.zeros_like(hidden_BFE)
        with captured(self._backward):
            gradients.add(backward(hidden_BFE, self._gradient_BFE))
        self._hidden_BFE = hidden_BFE.detach()

    def forward(self, *batch: Tensor) -> Tensor:
        """Hidden states (B, F, E) of features and mask; the next ones take their place."""
        for kept, tensor in zip(self._inputs, batch, strict=True):
            kept.copy_(tensor)
        self._forward.replay()
        return self._hidden_BFE.detach()

    def backward(self, gradient_BFE: Tensor) -> None:
        """Add the gradients of all weights to those that they have."""
        self._gradients.attach()
        self._gradient_BFE.copy_(gradient_BFE)
        self._backward.replay()


class _Kept(FunctionCtx):
    graph: _Graph


class _Replay(torch.autograd.Function):
    """A graph in a backward pass; it adds to the gradients of weights itself, as handing over hundreds takes long."""

    @staticmethod
    def forward(ctx: _Kept, graph: _Graph, features_BFD: Tensor, mask_BF: Tensor, _: Tensor) -> Tensor:
        ctx.graph = graph
        return graph.forward(features_BFD, mask_BF)

    @staticmethod
    def backward(ctx: _Kept, *grads: Tensor) -> Any:
        ctx.graph.backward(grads[0])
        return None, None, None, None


class _GraphedEncoder:
    """The `forward` of an encoder: a graph for each shape that comes more than once, up to `MAX_GRAPHS` of them."""

    def __init__(self, encoder: ParakeetEncoder) -> None:
        self._encoder, self._model = encoder, _Encoder(encoder, encoder.forward)
        self._graphs: dict[object, _Graph] = {}
        self._met: set[object] = set()
        self.gradients: _Gradients | None = None
        self.weights_outside: list[Tensor] | None = None
        """The weights of the model that are not part of `gradients`."""
        self._requires_grad = torch.zeros((), requires_grad=True)  # so that there is a backward pass
        self._pool: _POOL_HANDLE | None = None

    def __call__(self, input_features: Tensor, attention_mask: Tensor | None = None, **kwargs: object) -> Any:
        from transformers.models.parakeet.modeling_parakeet import ParakeetEncoderModelOutput

        is_asked_more = kwargs.get("output_hidden_states") or kwargs.get("output_attentions")
        if attention_mask is None or is_asked_more or not (self._encoder.training and torch.is_grad_enabled()):
            return self._model._plain(input_features, attention_mask, **kwargs)
        num, frames = attention_mask.shape
        hidden_BFE = self._hidden(*padded(input_features, attention_mask))
        out_mask_BF = frame_mask(output_frames(attention_mask.sum(-1)), output_frames(frames))
        hidden_BFE = hidden_BFE[:num, : output_frames(frames)]
        return ParakeetEncoderModelOutput(last_hidden_state=hidden_BFE, attention_mask=out_mask_BF.int())

    def _hidden(self, features_BFD: Tensor, mask_BF: Tensor) -> Tensor:
        """Hidden states of a padded batch; the layers that are trained now are part of a graph."""
        if is_in_torch_dispatch_mode():  # one that counts operations: thrice in a capture, and none in a replay
            return cast("Tensor", self._model(features_BFD, mask_BF))
        key = features_BFD.shape, tuple(layer.training for layer in self._encoder.layers)
        if key not in self._graphs:
            if key not in self._met or len(self._graphs) >= MAX_GRAPHS:
                self._met.add(key)
                return cast("Tensor", self._model(features_BFD, mask_BF))
            self._graphs[key] = self._captured(features_BFD, mask_BF)
        replayed = _Replay.apply(self._graphs[key], features_BFD, mask_BF, self._requires_grad)  # type: ignore[no-untyped-call]
        return cast("Tensor", replayed)

    def _captured(self, features_BFD: Tensor, mask_BF: Tensor) -> _Graph:
        if self.gradients is None:
            self.gradients = _Gradients(self._model)
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        buffers = [(buffer, buffer.clone()) for buffer in self._encoder.buffers()]
        with torch.random.fork_rng([features_BFD.device]):  # dropout draws while the graph is captured
            batch, is_first = (features_BFD, mask_BF), not self._graphs
            graph = _Graph(self._model, self.gradients, batch, self._pool, warm_up=is_first)
        with torch.no_grad():  # and BatchNorm counts the batch
            for buffer, value in buffers:
                buffer.copy_(value)
        return graph
