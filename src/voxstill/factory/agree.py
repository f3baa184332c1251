"""The labels of a consensus: each utterance gets what the labels of several teachers agree on.

The unit of work is a part of the table of utterances with the labels of each teacher for it. Nothing is decoded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from voxstill import tables, workdir
from voxstill.config import Engine
from voxstill.errors import DataError, StorageError
from voxstill.factory import engine, join, label
from voxstill.monitor import StepMeter
from voxstill.records import Label, Utterance
from voxstill.score.rover import Heard, rover
from voxstill.store import Store

_SAID = ("id", "recording_id", "uri", "start_ms", "end_ms")


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of utterances and, for each teacher, the parts in which its labels for them are."""

    utterances: str
    labels: tuple[tuple[str, ...], ...]


def agree(
    work: Store, utterances: str, task: label.Task, of: Sequence[str], cfg: Engine, meter: StepMeter
) -> dict[str, Any]:
    """Every utterance has one label of the consensus; the figures of all. What is finished is not done again.

    DataError where one of the recipes has no finished labels.
    """
    source = tables.listing(work, utterances)
    done = workdir.success(work, "labels", task.recipe)
    if done is not None and label.is_whole(work, source, task, done):
        return done
    start = time.perf_counter()
    for recipe in of:
        workdir.named(work, "labels", recipe)

    def commit(_: engine.Chunk, rows: Sequence[int | DataError]) -> None:
        for row in rows:
            if isinstance(row, DataError):
                raise row
            meter.safe(row, ())

    stages = (engine.Stage(name="agree", make=Agree(work, task), workers=cfg.workers),)
    engine.run(_plan(work, utterances, of, cfg.chunk), stages, commit, _set_aside, cfg, meter.engine)
    figures = {
        **label.figures(work, task),
        "rtfx": meter.audio_ms / 1000 / (time.perf_counter() - start),
        "finished": True,
        "source": source,
        "listing": tables.listing(work, task.prefix),
    }
    work.write_json(f"{task.prefix}/{tables.SUCCESS}", figures)
    return figures


def _plan(work: Store, utterances: str, of: Sequence[str], size: int) -> Iterator[engine.Chunk]:
    each = [join.parts(work, utterances, workdir.prefix("labels", recipe), size) for recipe in of]
    for some in zip(*each, strict=True):
        unit = Unit(some[0].utterances, tuple(part.labels for part in some))
        yield engine.Chunk(some[0].name, (unit,))


@dataclass(frozen=True, slots=True)
class Agree:
    """Makes the work of a process that writes labels of the consensus."""

    work: Store
    task: label.Task

    def __call__(self) -> Callable[[Sequence[Unit], Any], list[int | DataError]]:
        """The work: milliseconds of audio that have their labels, or what is wrong with the tables."""

        def work(units: Sequence[Unit], _: Any) -> list[int | DataError]:
            rows: list[int | DataError] = []
            for unit in units:
                try:
                    rows.append(self._agree(unit))
                except DataError as error:
                    rows.append(error)
            return rows

        return work

    def _agree(self, unit: Unit) -> int:
        utterances = self._read(unit.utterances, Utterance, _SAID)
        heard: list[dict[str, Label]] = []
        for keys in unit.labels:
            first: dict[str, Label] = {}
            for key in keys:
                for row in self._read(key, Label):
                    first.setdefault(row.utterance_id, row)
            heard.append(first)
        rows = [self._label(each.id, [some[each.id] for some in heard if each.id in some]) for each in utterances]
        name = engine.chunk_id(row.utterance_id for row in rows)
        self.work.create(f"{self.task.prefix}/{name}.parquet", tables.to_parquet(rows, Label))
        return sum(each.duration_ms for each in utterances)

    def _label(self, id_: str, labels: Sequence[Label]) -> Label:
        given: dict[str, Any] = {"utterance_id": id_, "recipe": self.task.recipe, "teacher": self.task.name}
        sound = [each for each in labels if each.error is None]
        if not sound:
            return Label(**given, finish="failed", error=labels[0].error if labels else "no teacher has a label for it")
        found = rover([Heard(each.text, _confidence(each.mean_logprob)) for each in sound])
        languages = {each.language for each in sound if each.language is not None}
        return Label(
            **given,
            text=found.text,
            language=languages.pop() if len(languages) == 1 else None,
            mean_logprob=math.log(found.agreement),
            finish="stop" if any(each.finish == "stop" for each in sound) else sound[0].finish,
        )

    def _read(self, key: str, kind: Any, names: Sequence[str] | None = None) -> list[Any]:
        return tables.from_parquet(self.work.read(key), kind, self.work.uri(key), names)


def _confidence(logprob: float | None) -> float | None:
    return None if logprob is None or math.isnan(logprob) else math.exp(min(logprob, 0.0))


def _set_aside(unit: Unit, reason: str) -> int:
    """A part that could not be put to the vote stops the step: its labels would be missing."""
    raise StorageError(
        f"the labels of `{unit.utterances}` cannot be put to the vote",
        why=reason,
        fix="check the storage and run `voxstill label` again; it goes on where it stopped",
    )
