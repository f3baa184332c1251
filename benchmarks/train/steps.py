"""What a training that is measured reports: before it reads the batches of a step, and after."""

from __future__ import annotations


class StepListener:
    """Callbacks of a training: before the batches of a step are read, and after."""

    def before_batches(self) -> None:
        """The step before is over. What it raises ends the training."""

    def after_batch(self, audio_s: float, padded_s: float, waited_s: float) -> None:
        """A batch was read: seconds of its audio, of its padded audio, and of waiting for it."""


class OverError(Exception):
    """The training is to end."""
