"""What a finished training leaves in `summary.json` and returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from voxstill.core.result import Result, read


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a training after the first: the steps made before it, and the changed options with their values before
    and after."""

    step: int
    changed: Mapping[str, tuple[object, object]]
    requested_at: str | None = None
    """When `voxstill control` requested the change while it trained; None if the training was started again with
    it."""
    seconds: float | None = None
    """Training time before it, where it was requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSummary(Result):
    """The folder of an experiment, how long and on what it was trained, and its best error on the dev split."""

    path: str
    steps: int
    epochs: int
    seconds: float
    loss: float | None
    loss_unit: str | None = None
    """What the loss is a mean over; None of a training that version 0.1 finished: it did not note it."""
    dev_metric: str
    """Key of the error in the JSON: `dev_wer`, `dev_eer`, `dev_loss`, ..."""
    dev_error: float | None
    """The error of the finished model on the dev split; None if that was not measured."""
    parameters: int
    skipped: int
    """Steps whose update was left out."""
    replaced: int
    """Utterances that could not be read and were replaced."""
    utterances: int
    dropped: Mapping[str, int]
    """Utterances that are in no batch, by reason."""
    segments: Sequence[Segment] | None = None
    """Where the options were changed; None if they never were."""

    def to_dict(self) -> dict[str, object]:
        """The fields, with the error under the name of its metric."""
        figures: dict[str, object] = {}
        for name, value in Result.to_dict(self).items():
            if name == "dev_error":
                figures[self.dev_metric] = value
            elif name != "dev_metric":
                figures[name] = value
        return figures

    @classmethod
    def from_dict(cls, figures: Mapping[str, Any]) -> Self:
        """The summary that `to_dict` wrote."""
        metric = next((name for name in figures if name.startswith("dev_")), "dev_error")
        return read(cls, {**figures, "dev_metric": metric, "dev_error": figures.get(metric)})
