"""A step that would break the weights is skipped, logged and saved; after too many in a row the training stops."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from voxstill.core import pcm
from voxstill.core.atomic import atomic_file
from voxstill.core.errors import DataError, TrainingError, first_line
from voxstill.core.monitor import log
from voxstill.core.records import Batch
from voxstill.storage.rundir import RunDir
from voxstill.training.task import StepContext

LIMIT = 10


class Guard:
    """Counts steps whose loss or gradient is not finite; TrainingError after `LIMIT` in a row.

    `advise` says how to continue then; its argument is whether the loss was finite, so that only the gradient was not.
    """

    def __init__(self, run: RunDir, rank: int, advise: Callable[[bool], str]) -> None:
        self._run, self._rank, self._advise = run, rank, advise
        self._in_a_row = 0
        self._is_warned = False

    def passes(self, loss: float, grad_norm: float, step: int, batches: Sequence[Batch], context: StepContext) -> bool:
        """Whether the step may be taken; where it may not, this rank's batches are saved for `voxstill doctor`.

        A full disk does not end the training: the batches are for diagnosis alone.
        """
        is_finite = abs(loss) < float("inf")  # NaN is not
        if is_finite and grad_norm < float("inf"):
            self._in_a_row = 0
            return True
        self._in_a_row += 1
        ids = [field for batch in batches for field in batch.ids]
        shown = ", ".join(ids[:4]) + (f" and {len(ids) - 4} more" if len(ids) > 4 else "")
        path = self._saved(step, batches, context)
        replay = None if path is None else f"`voxstill doctor {self._run.path} --batch {path}`"
        log.warning(
            "step %d is skipped: loss %s, gradient norm %s; utterances %s; %s",
            step,
            loss,
            grad_norm,
            shown,
            "its batches are not saved" if replay is None else f"{replay} replays it",
        )
        if self._in_a_row >= LIMIT:
            advice = self._advise(is_finite)
            raise TrainingError(
                f"the loss or its gradient was not finite in {LIMIT} steps in a row",
                code="loss-not-finite",
                why=f"the last one had loss {loss} and gradient norm {grad_norm} on {shown}",
                fix=advice if replay is None else f"{advice}; {replay} shows whether the audio is at fault",
            )
        return False

    def _saved(self, step: int, batches: Sequence[Batch], context: StepContext) -> Path | None:
        """The file of this rank's batches; None where it cannot be written, of which the first one is logged."""
        path = self._run.skipped / f"step={step}-rank={self._rank}.safetensors"
        try:
            save(path, batches, context, step=step, rank=self._rank)
        except (OSError, SafetensorError) as error:
            if not self._is_warned:
                why = first_line(error)
                log.warning("train: a skipped step cannot be saved: %s; the training goes on without it", why)
            self._is_warned = True
            return None
        return path


def save(path: Path, batches: Sequence[Batch], context: StepContext, *, step: int, rank: int) -> None:
    """Write the batches of one rank's step, and what chance is drawn from in it."""
    tensors: dict[str, Tensor] = {}
    for micro, batch in enumerate(batches):
        for field in dataclasses.fields(Batch):
            if field.name != "ids":
                tensors[f"{micro}.{field.name}"] = getattr(batch, field.name).detach().cpu().clone()
    about = {"step": step, "rank": rank, "share": dataclasses.asdict(context), "ids": [batch.ids for batch in batches]}
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as draft:
        save_file(tensors, draft, metadata={"about": json.dumps(about)})


def load(path: Path) -> tuple[list[Batch], StepContext, int, int]:
    """What `save` wrote: batches, context, step and rank; DataError if the file is none of those."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["about"])
            names = [field.name for field in dataclasses.fields(Batch) if field.name != "ids"]
            batches = [
                Batch(ids=tuple(ids), **{name: file.get_tensor(f"{micro}.{name}") for name in names})
                for micro, ids in enumerate(about["ids"])
            ]
        return batches, StepContext(**about["share"]), about["step"], about["rank"]
    except Exception as error:  # safetensors has an error of its own for a file that is none
        raise DataError(
            f"`{path}` is not a saved batch",
            code="unreadable-file",
            why=first_line(error),
            fix="give a file from the folder `skipped` of an experiment",
        ) from None


def out_of_memory(error: BaseException) -> bool:
    """Return whether it says that memory has run out, on a GPU or on the machine."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and ("can't allocate memory" in str(error) or "bad allocation" in str(error))
    )


def oom_error(batch: Batch, step: int, budget_ms: int, passed_ms: int, error: BaseException) -> TrainingError:
    """What to say where a batch does not fit; `passed_ms` is the largest padded one that did."""
    num, longest = batch.audio_BT.shape
    padded_ms = pcm.samples_to_ms(num * longest)
    fits = passed_ms if 0 < passed_ms < padded_ms else padded_ms // 2
    known = "the largest that passed" if fits == passed_ms else "half of it; no batch has passed yet"
    return TrainingError(
        f"memory ran out in step {step}: a batch of {num} utterances, {padded_ms / 1000:.1f} s with their padding",
        code="out-of-memory",
        why=f"{first_line(error)}; the longest utterance has {pcm.samples_to_s(longest):.1f} s",
        fix=f"set `plan.budget_ms` to {min(fits, budget_ms)} ({known}), with `--continue EXP` if there is a "
        "checkpoint; or use a smaller `student.size`",
    )


class MemoryGuard:
    """Remembers the largest padded batch that fitted into memory; its error names the one that did not."""

    def __init__(self, budget_ms: int) -> None:
        self._budget_ms = budget_ms
        self._passed_ms = 0
        self._batch: Batch | None = None

    def before_batch(self, batch: Batch) -> None:
        """Note that the batch before has passed, and that this one is tried."""
        self._pass()
        self._batch = batch

    @contextmanager
    def in_step(self, step: int) -> Iterator[None]:
        """Turn an out-of-memory error of this step into a TrainingError."""
        try:
            yield
        except Exception as error:
            if self._batch is None or not out_of_memory(error):
                raise
            raise oom_error(self._batch, step, self._budget_ms, self._passed_ms, error) from error
        self._pass()

    def _pass(self) -> None:
        if self._batch is not None:
            self._passed_ms = max(self._passed_ms, pcm.samples_to_ms(self._batch.audio_BT.numel()))
            self._batch = None
