"""The optimizer and its schedule; the schedule is a pure function of the share of the training done."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from voxstill.core.config import Train
from voxstill.core.errors import ConfigError
from voxstill.training import muon

BETAS = (0.9, 0.98)


def lr_at(progress: float, cfg: Train) -> float:
    """Learning rate at `progress` in [0, 1]: linear rise, a plateau, and a fall to `final_lr` of the peak.

    The peak is `lr` times `lr_factor`. `tri_stage` falls exponentially, as in Baevski et al., "wav2vec 2.0" (2020),
    appendix B.
    """
    peak = cfg.lr * cfg.lr_factor
    if progress < cfg.warmup:
        return peak * max(progress / cfg.warmup, 1e-3)
    start = max(cfg.warmup, cfg.hold)
    if progress <= start or start >= 1:
        return peak
    fallen = min((progress - start) / (1 - start), 1.0)
    if cfg.schedule == "tri_stage":
        return peak * float(cfg.final_lr**fallen)
    fall = 0.5 * (1 + math.cos(math.pi * fallen))
    return peak * (cfg.final_lr + (1 - cfg.final_lr) * fall)


def make_optimizer(model: nn.Module, cfg: Train) -> torch.optim.Optimizer:
    """The optimizer that `train.optimizer` names, for the weights of a model; AdamW where it names none.

    ConfigError for `muon` where the model has no layers that it could learn.
    """
    if cfg.optimizer != "muon":
        return adamw(model.parameters(), cfg)
    matrices, others = muon.split(model)
    if not matrices:
        raise ConfigError(
            "`train.optimizer: muon` has nothing to optimise",
            code="option-unused",
            why=f"{type(model).__name__} has no layers with weight matrices",
            fix="set `train.optimizer: adamw`",
        )
    return muon.Muon(matrices, adamw(others, cfg), cfg.lr, cfg.weight_decay)


class FusedAdamW(torch.optim.AdamW):
    """AdamW (Loshchilov and Hutter 2019) by torch's fused kernels, without sorting the weights in each step.

    torch sorts them by device and type: 5 ms for 600 of them, in which a GPU waits. Its own step is used
    for a first step, in fp16, and where weights are sharded.
    """

    _moments: tuple[object, list[list[tuple[Tensor, dict[str, Tensor]]]]] = None, []
    """The state, which Muon and `load_state_dict` replace, and the weights of each group with their moments in it."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all weights that have a gradient."""
        assert closure is None, "the gradients are there already"
        if self._moments[0] is not self.state:
            of_groups = [[(weight, self.state[weight]) for weight in group["params"]] for group in self.param_groups]
            self._moments = self.state, of_groups
        groups = [[pair for pair in pairs if pair[0].grad is not None] for pairs in self._moments[1]]
        is_known = all(moments and type(weight) is nn.Parameter for pairs in groups for weight, moments in pairs)
        if not is_known or getattr(self, "found_inf", None) is not None:
            super().step()
            return
        for group, pairs in zip(self.param_groups, groups, strict=True):
            if not pairs:
                continue
            steps = [moments["step"] for _, moments in pairs]
            torch._foreach_add_(steps, 1)
            torch._fused_adamw_(
                [weight for weight, _ in pairs],
                [weight.grad for weight, _ in pairs if weight.grad is not None],
                [moments["exp_avg"] for _, moments in pairs],
                [moments["exp_avg_sq"] for _, moments in pairs],
                [],
                steps,
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )


def adamw(weights: Iterable[Tensor], cfg: Train) -> torch.optim.AdamW:
    """AdamW for weights; norms and biases do not decay."""
    weights = list(weights)
    matrices = [weight for weight in weights if weight.ndim > 1]
    vectors = [weight for weight in weights if weight.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": cfg.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return FusedAdamW(groups, lr=cfg.lr, betas=BETAS, fused=True)


class Average:
    """The mean of the weights and buffers it was shown (Polyak and Juditsky 1992); what never changed is itself, to the
    bit.

    Each counts as much; with a `decay` those of a step ago count so much less, and the first no more than the others.
    """

    def __init__(self, decay: float = 0.0) -> None:
        self.decay, self.count = decay, 0
        self.mean: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, model: nn.Module) -> None:
        """Count the present weights, BatchNorm's buffers included."""
        state = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
        if not self.mean:
            self.mean = {name: torch.zeros_like(value, dtype=torch.float32) for name, value in state.items()}
        self.count += 1
        # its part of the sum of 1 + decay + decay ** 2 + ..., as many as there are
        part = (1 - self.decay) / (1 - self.decay**self.count) if self.decay else 1 / self.count
        sharded = [name for name in self.mean if isinstance(self.mean[name], DTensor)]
        for names in (sharded, [name for name in self.mean if name not in set(sharded)]):
            if names:  # no operation takes both kinds
                torch._foreach_lerp_([self.mean[name] for name in names], [state[name].float() for name in names], part)

    @torch.no_grad()
    def apply(self, model: nn.Module) -> None:
        """Give the model the mean; without a count it keeps its weights."""
        state = model.state_dict()
        for name, value in self.mean.items():
            state[name].copy_(value)
