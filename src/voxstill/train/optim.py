"""The optimizer and its schedule; the schedule is a pure function of the share of the training done."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from voxstill.config import Train

BETAS = (0.9, 0.98)


def lr_at(progress: float, cfg: Train) -> float:
    """Learning rate at `progress` in [0, 1]: linear rise, a plateau, and a fall to `final_lr` of the peak.

    `tri_stage` falls exponentially, as in Baevski et al., "wav2vec 2.0" (2020), appendix B.
    """
    if progress < cfg.warmup:
        return cfg.lr * max(progress / cfg.warmup, 1e-3)
    start = max(cfg.warmup, cfg.hold)
    if progress <= start or start >= 1:
        return cfg.lr
    fallen = min((progress - start) / (1 - start), 1.0)
    if cfg.schedule == "tri_stage":
        return cfg.lr * float(cfg.final_lr**fallen)
    fall = 0.5 * (1 + math.cos(math.pi * fallen))
    return cfg.lr * (cfg.final_lr + (1 - cfg.final_lr) * fall)


def adamw(model: nn.Module, cfg: Train) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019); norms and biases do not decay."""
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    vectors = [weight for weight in model.parameters() if weight.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": cfg.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=cfg.lr, betas=BETAS, fused=True)


class Average:
    """The mean of the weights and buffers it was shown (Polyak and Juditsky 1992).

    Each counts as much; with a `decay` those of a step ago count so much less, and the first no more than the others.
    """

    def __init__(self, decay: float = 0.0, total: dict[str, Tensor] | None = None, count: int = 0) -> None:
        self.decay, self.total, self.count = decay, total or {}, count

    @torch.no_grad()
    def add(self, model: nn.Module) -> None:
        """Count the present weights, BatchNorm's buffers included."""
        state = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
        if not self.total:
            self.total = {name: torch.zeros_like(value, dtype=torch.float32) for name, value in state.items()}
        sharded = [name for name in self.total if isinstance(self.total[name], DTensor)]
        for names in (sharded, [name for name in self.total if name not in set(sharded)]):
            total = [self.total[name] for name in names]  # no operation takes both kinds
            if total and self.decay:
                torch._foreach_mul_(total, self.decay)
            if total:
                torch._foreach_add_(total, [state[name].float() for name in names])
        self.count += 1

    @torch.no_grad()
    def apply(self, model: nn.Module) -> None:
        """Give the model the mean; without a count it keeps its weights."""
        if self.count:
            state = model.state_dict()
            # the sum of 1 + decay + decay ** 2 + ..., as many as there were
            weight = (1 - self.decay**self.count) / (1 - self.decay) if self.decay else self.count
            for name, value in self.total.items():
                state[name].copy_(value / weight)
