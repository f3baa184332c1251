"""A training that diverges: its loss rises and stays, or steps have no finite loss at all. When to warn, what to do."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

from voxstill.core.config import Config, Train
from voxstill.core.monitor import log
from voxstill.storage.rundir import RunDir
from voxstill.training.state import State

LOSS_MEMORY = 0.05
"""The loss reported is a running mean over about 1 / LOSS_MEMORY steps."""
NOISE_MEMORY = LOSS_MEMORY / 10
"""The noise is a running mean over ten times as many steps, so that a rise does not count as noise."""
NOISES = 2.0
"""A rise is more than so many times the mean distance of a step's loss from the running mean: small batches of easy and
of hard data sets in turn move the mean by less."""
RECOVERED = 1.1
"""A loss that has risen is well again at so many times the least one."""
_LR_STEP = 10
_LENGTH = {"train.steps", "train.epochs", "train.max_minutes", "train.validate_every", "train.keep_best"}
"""Options of a segment by which no training diverges."""


def follow(state: State, loss: float, parts: tuple[str, ...]) -> bool:
    """Count the loss of a step; return whether the training begins to diverge.

    That is where the loss more than doubles, by above 1 and by above what the steps' noise makes of it.

    Where the loss has other `parts` than before, as after word times, it is another one, and counts again.
    """
    if parts != state.loss_parts:
        state.loss_parts, state.loss, state.least_loss, state.risen_from = parts, None, None, None
        state.loss_noise = 0.0
    if state.loss is not None:
        state.loss_noise += (abs(loss - state.loss) - state.loss_noise) * NOISE_MEMORY
    state.loss = loss if state.loss is None else state.loss + (loss - state.loss) * LOSS_MEMORY
    least = state.loss if state.least_loss is None else min(state.loss, state.least_loss)
    state.least_loss = least
    if state.risen_from is not None:
        if state.loss <= least + (RECOVERED - 1) * abs(least):
            state.risen_from = None
        return False
    if state.loss - least <= max(abs(least), 1.0, NOISES * state.loss_noise):
        return False
    state.risen_from = least
    return True


def warn(run: RunDir, state: State, cfg: Config, command: str, *, is_over: bool = False) -> None:
    """Say that the loss has risen, or that it had when the training was over, and how to continue from before that."""
    then = "the weights of the student are damaged" if is_over else "if it does not fall again, stop the training"
    log.warning(
        "train: the training diverges: its loss has risen from %.3g to %.3g; %s, and %s",
        state.risen_from,
        state.loss,
        then,
        advice(run, cfg, command, is_stepped=True, overflows=False),
    )


def advice(run: RunDir, cfg: Config, command: str, *, is_stepped: bool, overflows: bool) -> str:
    """How to continue: the command, with the options that are most likely at fault set otherwise.

    `is_stepped`: this process has changed the weights; `overflows`: the loss is finite, and its gradient is not.
    """
    from voxstill.training import checkpoint  # which loads torch

    settings = _settings(run, cfg.train, is_stepped=is_stepped, overflows=overflows)
    if not settings:
        return (
            "find what makes the first step fail, which is not `train.lr`: a very large weight of a part of the "
            "loss, of a data set or of utterances in the manifest, or `student.checkpoint`"
        )
    before = checkpoint.before_rise(run)
    words = ["voxstill", command, "CONFIG"]
    words += [] if before is None else ["--continue", str(before)]
    for name, value in settings.items():
        words += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    start = "start again" if before is None else "continue from before that"
    return f"{start} with another {', '.join(f'`{name}`' for name in settings)}: `{shlex.join(words)}`"


def _settings(run: RunDir, cfg: Train, *, is_stepped: bool, overflows: bool) -> Mapping[str, object]:
    """The options to change: what the last segment has changed, else the precision or the learning rate."""
    from voxstill.training import segments

    last = next((segment for segment in reversed(segments.of(run)) if segment.requested_at is None), None)
    changed = {} if last is None else {name: before for name, (before, _) in last.changed.items()}
    if suspects := {name: before for name, before in changed.items() if name not in _LENGTH}:
        return suspects
    if overflows and cfg.precision in ("auto", "fp16"):
        return {"train.precision": "fp32"}
    if is_stepped:
        return {"train.lr": min(cfg.lr / _LR_STEP, Train().lr)}
    return {}
