"""A step that would break the weights is skipped, named, and after too many in a row the training stops."""

from __future__ import annotations

from collections.abc import Sequence

from voxstill.errors import TrainingError
from voxstill.monitor import log

LIMIT = 10


class Guard:
    """Counts steps whose loss or gradient is not finite; TrainingError after `LIMIT` in a row."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def passes(self, loss: float, grad_norm: float, step: int, ids: Sequence[str]) -> bool:
        """Whether the step may be taken."""
        if abs(loss) < float("inf") and grad_norm < float("inf"):  # NaN fails both
            self._in_a_row = 0
            return True
        self._in_a_row += 1
        shown = ", ".join(ids[:4]) + (f" and {len(ids) - 4} more" if len(ids) > 4 else "")
        log.warning("step %d is skipped: loss %s, gradient norm %s; utterances %s", step, loss, grad_norm, shown)
        if self._in_a_row >= LIMIT:
            raise TrainingError(
                f"the loss was not finite in {LIMIT} steps in a row",
                why=f"the last one had loss {loss} and gradient norm {grad_norm} on {shown}",
                fix="lower `train.lr`, or look at these utterances",
            )
        return False
