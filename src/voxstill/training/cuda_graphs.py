"""CUDA graphs: the encoder's forward and backward pass of a step are launched as a whole, not kernel by kernel.

A step of a FastConformer has two thousand kernels of some microseconds, and one core cannot start them as fast as the
GPU computes them. A graph belongs to one shape, so batches are padded to few of them: a sixteenth of a power of two for
frames, an eighth for utterances. A shape is captured when it comes for the second time. What it computes is what the
padded batch gives without a graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
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


class _Graph:
    """The forward and backward pass of an encoder for one shape; gradients are written where those of all shapes are.

    The tensors between are memory of all graphs: from a forward pass to its backward pass no other may run.
    """

    def __init__(
        self, model: _Encoder, gradients: dict[str, Tensor], batch: tuple[Tensor, Tensor], pool: _POOL_HANDLE
    ) -> None:
        self._inputs = tuple(tensor.clone() for tensor in batch)
        self.gradients = gradients
        weights = dict(model.named_parameters())
        # leaves of their own, as those of the model may be part of a backward pass on another stream
        leaves = {name: weights[name].detach().requires_grad_() for name in gradients}
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        dtype, is_mixed = torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")

        def forward() -> Tensor:
            with torch.autocast("cuda", dtype, is_mixed, cache_enabled=False):  # what is cached was cast before
                hidden_BFE: Tensor = torch.func.functional_call(model, leaves, self._inputs)
            return hidden_BFE

        def backward(hidden_BFE: Tensor, gradient_BFE: Tensor) -> None:
            written = torch.autograd.grad(hidden_BFE, list(leaves.values()), gradient_BFE)
            torch._foreach_copy_(list(gradients.values()), written)

        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries get ready, and kernels are compiled
            for _ in range(2):
                hidden_BFE = forward()
                backward(hidden_BFE, torch.zeros_like(hidden_BFE))
        torch.cuda.current_stream().wait_stream(side)
        # a thread prepares the next batch on the GPU meanwhile, and must be let to
        captured = functools.partial(torch.cuda.graph, pool=pool, capture_error_mode="thread_local")
        with captured(self._forward):
            hidden_BFE = forward()
        self._gradient_BFE = torch.zeros_like(hidden_BFE)
        with captured(self._backward):
            backward(hidden_BFE, self._gradient_BFE)
        self._hidden_BFE = hidden_BFE.detach()

    def forward(self, *batch: Tensor) -> Tensor:
        """Hidden states (B, F, E) of features and mask; the next ones take their place."""
        for kept, tensor in zip(self._inputs, batch, strict=True):
            kept.copy_(tensor)
        self._forward.replay()
        return self._hidden_BFE.detach()

    def backward(self, gradient_BFE: Tensor) -> list[Tensor]:
        """Gradients of all weights; the next ones take their place."""
        self._gradient_BFE.copy_(gradient_BFE)
        self._backward.replay()
        return [gradient.detach() for gradient in self.gradients.values()]


class _Kept(FunctionCtx):
    graph: _Graph


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Kept, graph: _Graph, features_BFD: Tensor, mask_BF: Tensor, *_: Tensor) -> Tensor:
        ctx.graph = graph
        return graph.forward(features_BFD, mask_BF)

    @staticmethod
    def backward(ctx: _Kept, *grads: Tensor) -> Any:
        return None, None, None, *ctx.graph.backward(grads[0])


class _GraphedEncoder:
    """The `forward` of an encoder: a graph for each shape that comes more than once, up to `MAX_GRAPHS` of them."""

    def __init__(self, encoder: ParakeetEncoder) -> None:
        self._encoder, self._model = encoder, _Encoder(encoder, encoder.forward)
        self._graphs: dict[object, _Graph] = {}
        self._met: set[object] = set()
        self._gradients: dict[str, Tensor] = {}
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
        self._own_gradients()
        weights = dict(self._model.named_parameters())
        learnt = (weights[name] for name in self._gradients)
        return cast("Tensor", _Replay.apply(self._graphs[key], features_BFD, mask_BF, *learnt))  # type: ignore[no-untyped-call]

    def _captured(self, features_BFD: Tensor, mask_BF: Tensor) -> _Graph:
        if not self._gradients:
            weights = self._model.named_parameters()
            self._gradients = {name: torch.empty_like(weight) for name, weight in weights if weight.requires_grad}
        self._own_gradients()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        buffers = [(buffer, buffer.clone()) for buffer in self._encoder.buffers()]
        with torch.random.fork_rng([features_BFD.device]):  # dropout draws while the graph is captured
            graph = _Graph(self._model, self._gradients, (features_BFD, mask_BF), self._pool)
        with torch.no_grad():  # and BatchNorm counts the batch
            for buffer, value in buffers:
                buffer.copy_(value)
        return graph

    def _own_gradients(self) -> None:
        """Copy the gradients of a batch before, which lie where those of the next one are written."""
        weights = [weight for weight in self._encoder.parameters() if weight.grad is not None]
        if weights:
            copies = torch._foreach_mul([weight.grad for weight in weights], 1.0)
            for weight, copy in zip(weights, copies, strict=True):
                weight.grad = copy
