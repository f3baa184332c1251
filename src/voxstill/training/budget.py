"""How long a training lasts."""

from __future__ import annotations

from dataclasses import dataclass

from voxstill.core.config import Train


@dataclass(frozen=True, slots=True)
class Budget:
    """How long to train: the first limit reached counts."""

    steps: int | None
    seconds: float | None
    patience: int | None = None
    """Judgements in a row without a better one."""

    @classmethod
    def of(cls, cfg: Train, steps_per_epoch: int) -> Budget:
        """The budget of a configuration whose epochs have so many steps."""
        steps = [n for n in (cfg.steps, cfg.epochs and cfg.epochs * steps_per_epoch) if n]
        seconds = cfg.max_minutes * 60 if cfg.max_minutes else None
        return cls(min(steps) if steps else None, seconds, cfg.patience)

    def progress(self, step: int, seconds: float, stale: int = 0) -> float:
        """Share of the training done, in [0, 1], after so many steps, seconds and judgements in a row none better."""
        if self.patience and stale >= self.patience:
            return 1.0
        shares = [step / self.steps] if self.steps else []
        shares += [seconds / self.seconds] if self.seconds else []
        return min(max(shares), 1.0)
