"""The rules of retry, without processes: what becomes of a chunk of which a part was answered or has failed.

A failed chunk is tried again, then halved until one item is at fault, which is set aside with the reason. Both engines
keep to these rules, so they are tested without Ray.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from voxstill.core.errors import Interrupted, TeacherError, VoxstillError
from voxstill.core.metrics.figures import ModelFigures, Summary
from voxstill.core.monitor import log
from voxstill.engine.stage import Chunk, Meter, StageWork
from voxstill.engine.stage_clock import StageClock

FAIL_FAST_ITEMS = 16
"""So many items set aside and not one that worked: the fault is not in the items, and the run ends."""
REASON_CHARS = 500


class FailureKind(enum.Enum):
    """What went wrong with a call."""

    RAISED = enum.auto()
    FATAL = enum.auto()
    """The work raised a TeacherError: no other item would fare better."""
    DIED = enum.auto()
    TIMED_OUT = enum.auto()
    RESULT_LOST = enum.auto()
    WRONG_ROWS = enum.auto()


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call failed; `detail` is the reason in the row of an item that is set aside."""

    kind: FailureKind
    detail: str
    error: TeacherError | None = None
    """The error itself where the kind is FATAL."""

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """The failure of a work that raised."""
        if isinstance(error, TeacherError):
            return cls(FailureKind.FATAL, describe(error), error)
        return cls(FailureKind.RAISED, describe(error))


@dataclass(slots=True, eq=False)
class OpenChunk:
    """A chunk that is under way: its rows so far, and how many are missing."""

    chunk: Chunk
    rows: list[Any]
    num_missing: int


@dataclass(frozen=True, slots=True)
class ChunkPart:
    """Items `[start, stop)` of a chunk, worked on in one call: all of them until the chunk has to be halved."""

    parent: OpenChunk
    start: int
    stop: int
    attempt: int = 0
    alone: bool = False
    """It goes to an idle worker that gets nothing else meanwhile, so that there is no doubt whom it kills."""

    @property
    def items(self) -> tuple[Any, ...]:
        """The items of this part."""
        return self.parent.chunk.items[self.start : self.stop]

    @property
    def num_items(self) -> int:
        """How many items it has."""
        return self.stop - self.start


class RetryTracker:
    """Decide what is left to do of each part, and count: as many rows come out as items go in.

    A part is answered, tried again, halved, or (one item) set aside with its reason.
    """

    def __init__(self, attempts: int, fail: Callable[[Any, str], Any], meter: Meter | None) -> None:
        self.attempts, self._fail, self._meter = attempts, fail, meter
        self._start_s = time.monotonic()
        self.clock = StageClock()
        self._num_chunks = self._num_items = self._num_skipped = self._num_worked = self._num_retries = 0
        self.num_restarts = 0
        self.num_open = 0
        if meter is not None:
            meter.follow(self.summary)

    def open_chunk(self, chunk: Chunk) -> ChunkPart:
        """Begin a chunk; return all of it as one part."""
        self.num_open += 1
        num_items = len(chunk.items)
        return ChunkPart(OpenChunk(chunk, [None] * num_items, num_items), 0, num_items)

    def record_rows(self, part: ChunkPart, rows: object) -> list[ChunkPart]:
        """Take the rows of a part; return what is left to do of it."""
        if not isinstance(rows, Sequence) or len(rows) != part.num_items:
            answer = f"{len(rows)} rows" if isinstance(rows, Sequence) else f"a {type(rows).__name__}"
            detail = f"the last stage returned {answer} for {part.num_items} items"
            return self.record_failure(part, Failure(FailureKind.WRONG_ROWS, detail))
        self._num_worked += part.num_items
        self._fill(part, rows)
        return []

    def record_failure(self, part: ChunkPart, failure: Failure) -> list[ChunkPart]:
        """Return what to do after a part failed: again, in halves, or nothing because its one item is set aside.

        A whole chunk and a single item get all attempts; the halves between get one, since their chunk is known to be
        bad and each further try may cost the loading of a model. So does a chunk that timed out: if it is the teacher
        that is slow, it would time out again.
        """
        self._num_retries += 1
        is_whole = part.num_items == len(part.parent.rows)
        gets_all = part.num_items == 1 or (is_whole and failure.kind is not FailureKind.TIMED_OUT)
        attempts = self.attempts if gets_all else 1
        if part.attempt + 1 < attempts:
            return [replace(part, attempt=part.attempt + 1)]
        if part.num_items > 1:
            middle = part.start + part.num_items // 2
            log.warning("chunk %s failed (%s); halved at item %d", part.parent.chunk.id, failure.detail, middle)
            return [replace(part, stop=middle, attempt=0), replace(part, start=middle, attempt=0)]
        self._num_skipped += part.num_items
        if self._num_skipped >= FAIL_FAST_ITEMS and not self._num_worked:
            slow = "a single item takes longer than that: raise `engine.lease_s`"
            broken = "the setup fails, not the items: fix it and run again"
            raise VoxstillError(
                f"the first {self._num_skipped} items all failed",
                code="all-failed",
                why=failure.detail,
                fix=slow if failure.kind is FailureKind.TIMED_OUT else broken,
            )
        self._fill(part, [self._fail(item, failure.detail) for item in part.items])
        return []

    def record_commit(self, parent: OpenChunk) -> None:
        """Count a chunk that is safe."""
        self.num_open -= 1
        self._num_chunks += 1
        self._num_items += len(parent.rows)
        if self._meter is not None:
            self._meter.update(self.summary())

    def interrupted(self, signal_name: str) -> Interrupted:
        """The error of a run that a signal has stopped."""
        return Interrupted(
            f"stopped by {signal_name}",
            why=f"{self._num_chunks} chunks are safe, {self.num_open} in progress were returned",
            fix="the same command resumes where this one stopped",
        )

    def summary(self) -> Summary:
        """The counts so far; may be called from any thread."""
        return Summary(
            num_chunks=self._num_chunks,
            num_open=self.num_open,
            num_items=self._num_items,
            num_skipped=self._num_skipped,
            num_retries=self._num_retries,
            num_restarts=self.num_restarts,
            elapsed_s=time.monotonic() - self._start_s,
            stages=self.clock.figures(),
        )

    @staticmethod
    def _fill(part: ChunkPart, rows: Sequence[Any]) -> None:
        part.parent.rows[part.start : part.stop] = rows
        part.parent.num_missing -= part.num_items


def open_work(name: str, work: StageWork) -> None:
    """Open the work of the stage `name`; whatever it raises becomes a VoxstillError."""
    try:
        work.open()
    except VoxstillError:
        raise
    except Exception as error:
        raise VoxstillError(
            f"the stage `{name}` cannot start",
            code="worker-cannot-start",
            why=describe(error),
            fix="fix the cause and run again",
        ) from error


def model_figures(work: StageWork) -> ModelFigures | None:
    """What the model of a work reports of itself; None if that fails, which is no fault of the items."""
    try:
        return work.figures()
    except Exception as error:
        log.debug("figures of a model are missing: %s", describe(error))
        return None


def describe(error: BaseException) -> str:
    """An exception in one line of at most `REASON_CHARS` characters."""
    if isinstance(error, VoxstillError):
        text = f"{error.what}: {error.why}" if error.why else error.what
    else:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return " ".join(text.split())[:REASON_CHARS]


def canary_error(cause: BaseException | Failure) -> VoxstillError:
    """The error with which a change is rejected, because its canary could not start or failed on its first chunk."""
    error = cause.error if isinstance(cause, Failure) else cause
    if isinstance(error, VoxstillError):
        return error
    why = cause.detail if isinstance(cause, Failure) else describe(cause)
    return VoxstillError(
        "it failed on its first chunk",
        code="change-refused",
        why=why,
        fix="fix the cause and send the request again",
    )


def log_stopping(signal_name: str) -> None:
    """Warn that the first signal is taken; both engines stop in the same way."""
    log.warning("%s: no new chunks are started; a second signal stops at once", signal_name)
