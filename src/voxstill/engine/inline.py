"""The engine in this process: one worker of each stage, one chunk at a time; it survives what raises, no more."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

from voxstill.core import world
from voxstill.engine.retry import (
    ChunkPart,
    Failure,
    FailureKind,
    RetryTracker,
    canary_error,
    log_stopping,
    model_figures,
    open_work,
)
from voxstill.engine.stage import Changes, Chunk, Stage, StageWork
from voxstill.engine.stage_clock import StageLoad


class InlineRun:
    """One run in this process: the open work of each stage by its name."""

    def __init__(
        self,
        stages: Sequence[Stage],
        commit: Callable[[Chunk, list[Any]], None],
        tracker: RetryTracker,
        changes: Changes | None,
    ) -> None:
        self._stages, self._commit, self._tracker, self._changes = stages, commit, tracker, changes
        self._works: dict[str, StageWork] = {}

    def run(self, chunks: Iterator[Chunk]) -> None:
        """Work on every chunk and commit it."""
        self._note()
        try:
            with world.Signals(log_stopping) as signals:
                for chunk in chunks:
                    whole = self._tracker.open_chunk(chunk)
                    self._work_on(self._after_change(whole))
                    self._commit(chunk, whole.parent.rows)
                    self._tracker.record_commit(whole.parent)
                    self._note()
                    if signals.caught:
                        raise self._tracker.interrupted(signals.caught)
        finally:
            for work in self._works.values():
                work.close()

    def _after_change(self, whole: ChunkPart) -> list[ChunkPart]:
        """Make the change that is waiting, if any, with this chunk for a canary; return what is left to do of it."""
        change = self._changes.poll() if self._changes is not None else None
        if self._changes is None or change is None:
            return [whole]
        before = {stage.name: stage.work for stage in self._stages}
        canaries: dict[str, StageWork] = {}
        try:
            for stage in change.stages:
                if stage.work != before[stage.name]:
                    open_work(stage.name, stage.work)
                    canaries[stage.name] = stage.work
            if canaries:
                self._open(but=canaries)
                payload = self._through(whole, self._works | canaries)
        except Exception as error:
            for work in canaries.values():
                work.close()
            self._changes.rejected(canary_error(error))
            return [whole]
        for name in canaries.keys() & self._works.keys():
            self._works[name].close()
        self._stages, self._works = change.stages, self._works | canaries
        self._tracker.attempts = change.cfg.attempts
        self._changes.applied(change.stages)
        return self._tracker.record_rows(whole, payload) if canaries else [whole]

    def _work_on(self, todo: list[ChunkPart]) -> None:
        if todo:
            self._open(but=())
        while todo:
            part = todo.pop()
            try:
                payload = self._through(part, self._works)
            except Exception as error:
                failure = Failure.of(error)
                if failure.kind is FailureKind.FATAL:
                    raise
                todo += self._tracker.record_failure(part, failure)
            else:
                todo += self._tracker.record_rows(part, payload)

    def _open(self, but: Container[str]) -> None:
        for stage in self._stages:
            if stage.name not in self._works and stage.name not in but:
                self._note(starting=stage)
                open_work(stage.name, stage.work)
                self._works[stage.name] = stage.work

    def _through(self, part: ChunkPart, works: Mapping[str, StageWork]) -> Any:
        """Pass the items of a part through all stages."""
        payload: Any = None
        for stage in self._stages:
            self._note(working=stage)
            payload = works[stage.name](part.items, payload)
            if (figures := model_figures(works[stage.name])) is not None:
                self._tracker.clock.record_model(stage.name, figures)
        self._note()
        return payload

    def _note(self, *, working: Stage | None = None, starting: Stage | None = None) -> None:
        """Tell the clock what is done from now on."""
        loads = {
            stage.name: StageLoad(num_workers=1, num_starting=stage is starting, num_working=stage is working)
            for stage in self._stages
        }
        self._tracker.clock.update(loads, is_full=self._tracker.num_open > 0)
