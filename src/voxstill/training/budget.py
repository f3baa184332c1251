"""How long a training lasts, and which share of it is done."""

from __future__ import annotations

from dataclasses import dataclass, replace

from voxstill.core.config import Train
from voxstill.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Point:
    """Where a training stands: steps, seconds and the share of it that is done."""

    step: int = 0
    seconds: float = 0.0
    progress: float = 0.0


@dataclass(frozen=True, slots=True)
class Budget:
    """How long to train: the first limit reached counts."""

    steps: int | None
    seconds: float | None
    patience: int | None = None
    """Judgements in a row without a better one."""
    steps_per_epoch: int = 1
    start: Point = Point()
    """From here on progress is counted: where the limits were changed, or the beginning."""

    @classmethod
    def of(cls, cfg: Train, steps_per_epoch: int) -> Budget:
        """The budget of a configuration whose epochs have so many steps."""
        steps = [n for n in (cfg.steps, cfg.epochs and cfg.epochs * steps_per_epoch) if n]
        seconds = cfg.max_minutes * 60 if cfg.max_minutes else None
        return cls(min(steps) if steps else None, seconds, cfg.patience, steps_per_epoch)

    def changed(self, cfg: Train, step: int, seconds: float) -> Budget:
        """The budget of another configuration after so many steps and seconds.

        Where its limits are others, progress continues from what it is then, evenly to 1 at the new end.
        """
        other = Budget.of(cfg, self.steps_per_epoch)
        is_same = (other.steps, other.seconds) == (self.steps, self.seconds)
        return replace(other, start=self.start if is_same else Point(step, seconds, self.progress(step, seconds)))

    def progress(self, step: int, seconds: float, stale: int = 0) -> float:
        """Share of the training done, in [0, 1], after so many steps, seconds and judgements in a row none better."""
        if self.patience and stale >= self.patience:
            return 1.0
        if (self.steps and step >= self.steps) or (self.seconds and seconds >= self.seconds):
            return 1.0
        start = self.start
        shares = [(step - start.step) / (self.steps - start.step)] if self.steps else []
        shares += [(seconds - start.seconds) / (self.seconds - start.seconds)] if self.seconds else []
        return start.progress + (1 - start.progress) * max(shares)


def check_schedule(cfg: Train) -> None:
    """Raise ConfigError if a training has no end, follows a clock that `seed_mode` forbids, or loses its weights."""
    if all(limit is None for limit in (cfg.steps, cfg.epochs, cfg.max_minutes)):
        raise ConfigError(
            "the training has no end",
            code="option-missing",
            why="none of `train.steps`, `train.epochs` and `train.max_minutes` is set",
            fix="set one of them",
        )
    if cfg.seed_mode == "debug" and cfg.max_minutes is not None:
        raise ConfigError(
            "`train.seed_mode: debug` cannot follow the clock",
            code="option-conflict",
            why="`train.max_minutes` makes the schedule depend on the speed of the machine",
            fix="set `train.steps` or `train.epochs` instead of `train.max_minutes`",
        )
    lr = cfg.lr * cfg.lr_factor
    if lr * cfg.weight_decay >= 1:
        factor = "" if cfg.lr_factor == 1 else f" times `train.lr_factor: {cfg.lr_factor:g}`"
        raise ConfigError(
            f"`train.weight_decay: {cfg.weight_decay:g}` would set the weights to 0",
            code="option-conflict",
            why=f"each step shrinks the weights by it times `train.lr: {cfg.lr:g}`{factor}, which is 1 or more",
            fix="lower one of them; 0.002 and 0.01 are the defaults",
        )
