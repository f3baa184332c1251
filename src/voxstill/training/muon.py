"""Muon: momentum of weight matrices, made orthogonal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from voxstill.training.parallel import layers, part, whole

MOMENTUM = 0.95
ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the odd polynomial that brings all singular values near 1 (Jordan 2024, "Muon", Newton-Schulz iteration)."""
UPDATE_RMS = 0.2
"""Root mean square of an update before the learning rate: about that of AdamW, whose learning rates it takes (Liu et
al. 2025, "Muon is scalable for LLM training", section 2.2)."""
ADAMW_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
_AT_ONCE = 1 << 24
"""Most numbers in one batch of matrices: small ones are computed together, and never a whole model that is sharded."""
_LEAST_SIDE = 16
"""Thinner matrices, such as the kernels of a depthwise convolution, are left to AdamW."""


class Muon(torch.optim.Optimizer):
    """Muon (Jordan 2024) for the weight matrices of a model's layers; AdamW for all other weights.

    Where weights are sharded, each rank puts the momentum of a matrix together and takes its part of the update.
    """

    def __init__(self, matrices: Sequence[Tensor], adamw: torch.optim.AdamW, lr: float, weight_decay: float) -> None:
        self._adamw = adamw
        group: dict[str, Any] = {"params": list(matrices), "weight_decay": weight_decay}
        super().__init__([*adamw.param_groups, group], {"lr": lr})
        self._group = self.param_groups[-1]
        adamw.state = self.state  # a checkpoint holds the state of all weights

    def moments(self, weight: Tensor) -> Sequence[str]:
        """The names of what is remembered of a weight from step to step."""
        return ("momentum",) if any(weight is matrix for matrix in self._group["params"]) else ADAMW_MOMENTS

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all weights that have a gradient."""
        assert closure is None, "the gradients are there already"
        self._adamw.step()
        by_shape: defaultdict[tuple[int, int], list[Tensor]] = defaultdict(list)
        for weight in self._group["params"]:
            if weight.grad is not None:
                by_shape[sides(weight)].append(weight)
        lr, decay = self._group["lr"], 1 - self._group["lr"] * self._group["weight_decay"]
        for (short, wide), weights in by_shape.items():
            scale = -lr * UPDATE_RMS * wide**0.5
            at_once = max(1, _AT_ONCE // (short * wide))
            for batch in (weights[first : first + at_once] for first in range(0, len(weights), at_once)):
                updates = orthogonal(torch.stack([self._direction(weight) for weight in batch]))
                for weight, update in zip(batch, updates, strict=True):
                    whole_update = (update.mT if is_tall(weight) else update).reshape(weight.shape)
                    weight.mul_(decay).add_(part(whole_update.to(weight.dtype), weight), alpha=scale)

    def _direction(self, weight: Tensor) -> Tensor:
        """Nesterov's momentum of a gradient, as a whole matrix that is not taller than wide."""
        gradient = weight.grad
        assert gradient is not None
        state = self.state[weight]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(weight)
        state["momentum"].lerp_(gradient, 1 - MOMENTUM)
        direction = whole(gradient.lerp(state["momentum"], MOMENTUM)).flatten(1)
        return direction.mT if is_tall(weight) else direction


def split(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """The weights of a model that Muon learns, the matrices of its layers, and all others."""
    inner = {id(weight) for layer in layers(model) for weight in layer.parameters() if is_matrix(weight)}
    weights = list(model.parameters())
    return [w for w in weights if id(w) in inner], [w for w in weights if id(w) not in inner]


def is_matrix(weight: Tensor) -> bool:
    """Whether a weight maps vectors to vectors: that of a linear layer, or of a convolution over one frame."""
    return weight.ndim > 1 and weight.shape[2:].numel() == 1 and min(weight.shape[:2]) >= _LEAST_SIDE


def is_tall(weight: Tensor) -> bool:
    """Whether a matrix has more rows than columns."""
    return weight.shape[0] > weight.shape[1]


def sides(weight: Tensor) -> tuple[int, int]:
    """The shorter and the longer side of a matrix."""
    return min(weight.shape[:2]), max(weight.shape[:2])


def orthogonal(matrices_BMN: Tensor) -> Tensor:
    """Matrices with the same singular vectors and singular values near 1, from 0.7 to 1.2 for most; M is at most N.

    In bf16 where the device multiplies it fast, as in the paper. In fp32 the powers of wide matrices are those of their
    M x M products, which takes half the time; in bf16 the squares of small singular values would be lost.
    """
    x_BMN: Tensor = matrices_BMN.to(_dtype(matrices_BMN.device))
    x_BMN = x_BMN / (x_BMN.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    if x_BMN.dtype == torch.float32 and x_BMN.shape[-1] >= 2 * x_BMN.shape[-2]:
        x_BMN = _product(x_BMN @ x_BMN.mT) @ x_BMN
    else:
        for _ in range(ITERATIONS):
            x_BMN = torch.baddbmm(x_BMN, _higher(x_BMN @ x_BMN.mT), x_BMN, beta=COEFFICIENTS[0])
    return x_BMN.to(matrices_BMN.dtype)


def _higher(gram_BMM: Tensor) -> Tensor:
    """What an iteration multiplies X by, a polynomial of X X^T, without its constant."""
    _, b, c = COEFFICIENTS
    return torch.baddbmm(gram_BMM, gram_BMM, gram_BMM, beta=b, alpha=c)


def _factor(gram_BMM: Tensor) -> Tensor:
    """The same with its constant."""
    factor_BMM = _higher(gram_BMM)
    factor_BMM.diagonal(dim1=-2, dim2=-1).add_(COEFFICIENTS[0])
    return factor_BMM


def _product(gram_BMM: Tensor) -> Tensor:
    """The factors of all iterations, which commute: those of X X^T after an iteration are of what it made of it."""
    product_BMM = factor_BMM = _factor(gram_BMM)
    for _ in range(ITERATIONS - 1):
        gram_BMM = factor_BMM @ gram_BMM @ factor_BMM
        factor_BMM = _factor(gram_BMM)
        product_BMM = factor_BMM @ product_BMM
    return product_BMM


def _dtype(device: torch.device) -> torch.dtype:
    if device.type == "cuda":
        return torch.bfloat16
    is_fast = device.type == "cpu" and torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if is_fast else torch.float32
