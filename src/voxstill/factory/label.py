"""Every utterance gets exactly one label of one recipe: a row, also where the teacher failed.

The unit of work and of output is a chunk of utterances in the order of their table; its name is the hash of their
ids, so that whoever writes a chunk second does no harm. Resuming is the plan minus the utterances that have a label.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxstill import config, tables, workdir, world
from voxstill.errors import TeacherError, VoxstillError
from voxstill.factory import engine, extract
from voxstill.records import Label, Utterance, fingerprint
from voxstill.store import Store
from voxstill.teachers import registry
from voxstill.teachers.teacher import Clip, Heard, Teacher


@dataclass(frozen=True, slots=True)
class Task:
    """What a run of labels is made of; equal tasks have equal recipes."""

    teacher: config.Teacher
    name: str
    reads_texts: bool

    @property
    def recipe(self) -> str:
        """Name of this teacher's labels on disk."""
        return fingerprint("label", self.name, self.teacher.model_dump())

    @property
    def prefix(self) -> str:
        """Where they lie."""
        return f"labels/{self.recipe}"


def task(teacher: config.Teacher) -> Task:
    """The task of a teacher as configured; ConfigError or TeacherError where it cannot be made."""
    made = registry.make(teacher)
    return Task(teacher, f"{teacher.name}@{made.revision()}", made.reads_texts)


def plan(work: Store, utterances: str, have: Set[str], size: int) -> Iterator[engine.Chunk]:
    """Every utterance of the table that is not in `have`, in one chunk.

    Parts are never mixed, so chunks stay what they are when the table grows or a run is cut short.
    """
    for key in tables.parts(work, utterances):
        rows = tables.from_parquet(work.read(key), Utterance, work.uri(key))
        yield from engine.chunks_of((row for row in rows if row.id not in have), size, lambda row: row.id)


def label(
    work: Store, utterances: str, task: Task, cfg: config.Engine, on_progress: Callable[[int, str], None]
) -> dict[str, Any]:
    """Label what has no label yet and return the figures of all; TeacherError where the teacher fails on everything."""
    start = time.perf_counter()
    have = {row.utterance_id for row in tables.read(work, task.prefix, Label)}
    new_ms: list[int] = []

    def commit(chunk: engine.Chunk, rows: Sequence[Label]) -> None:
        work.create(f"{task.prefix}/{chunk.id}.parquet", tables.to_parquet(rows, Label))
        new_ms.extend(each.duration_ms for each in chunk.items)

    def fail(utterance: Utterance, reason: str) -> Label:
        return Label(
            utterance_id=utterance.id,
            recipe=task.recipe,
            teacher=task.name,
            finish="failed",
            error=f"set aside: {reason}",
        )

    stages = (
        engine.Stage(name="decode", make=Decode, workers=cfg.workers or world.num_cores()),
        engine.Stage(name="teach", make=Teach(task), workers=cfg.teachers or world.num_cores()),
    )
    try:
        engine.run(plan(work, utterances, have, cfg.chunk), stages, commit, fail, cfg, on_progress)
    except VoxstillError as error:
        if type(error) is not VoxstillError:
            raise
        raise TeacherError(error.what, why=error.why, fix=error.fix) from None  # here the work is the teacher's
    return finish(work, task, sum(new_ms) / 1000 / (time.perf_counter() - start))


def finish(work: Store, task: Task, rtfx: float) -> dict[str, Any]:
    """Write `_SUCCESS.json`: counts and a checksum of everything the recipe has, and how fast the newest of it came."""
    before = workdir.success(work, "labels", task.recipe) or {"rtfx": 0.0}
    digest, labels, failed, quarantined = hashlib.sha256(), 0, 0, 0
    errors: dict[str, int] = {}
    keys = tables.parts(work, task.prefix)
    for key in keys:
        data = work.read(key)
        digest.update(hashlib.sha256(data).digest())
        for row in tables.from_parquet(data, Label, work.uri(key)):
            labels += 1
            if row.error is not None:
                failed += 1
                quarantined += row.error.startswith("set aside: ")
                errors[row.error] = errors.get(row.error, 0) + 1
    if labels and failed == labels:
        raise TeacherError(
            f"the teacher `{task.teacher.name}` failed on all {labels} utterances",
            why=max(errors, key=lambda reason: errors[reason]),
            fix=f"mend the cause, remove `{work.uri(task.prefix)}` and run again",
        )
    figures = {
        "recipe": task.recipe,
        "teacher": task.name,
        "options": task.teacher.model_dump(),
        "chunks": len(keys),
        "labels": labels,
        "failed": failed,
        "quarantined": quarantined,
        "rtfx": rtfx or before["rtfx"],
        "sha256": digest.hexdigest(),
    }
    work.write_json(f"{task.prefix}/{tables.SUCCESS}", figures)
    return figures


@dataclass(frozen=True, slots=True)
class Decoded:
    """The audio of a chunk: one array, where each utterance begins, and why some have none."""

    samples_T: NDArray[np.int16]
    bounds: NDArray[np.int64]
    errors: tuple[str | None, ...]


class Decode:
    """Work of a CPU worker: fetch and decode a chunk. A file that holds several of its utterances is read once."""

    def __call__(self, utterances: Sequence[Utterance], _: Any) -> Decoded:
        """Audio of every utterance, or the reason why it has none."""
        pieces: dict[str, NDArray[np.int16]] = {}
        errors: dict[str, str] = {}
        for utterance, audio in extract.samples(utterances):
            if isinstance(audio, VoxstillError):
                errors[utterance.id] = f"{audio.what}: {audio.why}" if audio.why else audio.what
            else:
                pieces[utterance.id] = audio
        ordered = [pieces.get(each.id, np.zeros(0, np.int16)) for each in utterances]
        bounds = np.cumsum([0, *(len(piece) for piece in ordered)], dtype=np.int64)
        return Decoded(
            np.concatenate(ordered) if ordered else np.zeros(0, np.int16),
            bounds,
            tuple(errors.get(each.id) for each in utterances),
        )


@dataclass(frozen=True, slots=True)
class Teach:
    """Makes the work of a teacher in its own process: the model is loaded once."""

    task: Task

    def __call__(self) -> Teaching:
        """The teacher, ready to hear."""
        teacher = registry.make(self.task.teacher)
        teacher.open()
        return Teaching(self.task, teacher)


@dataclass(frozen=True, slots=True)
class Teaching:
    """Work of a teacher: chunks of audio in, labels out."""

    task: Task
    teacher: Teacher

    def __call__(self, utterances: Sequence[Utterance], audio: Decoded) -> list[Label]:
        """One label for each utterance, in order."""
        heard: list[Heard] = [Heard(finish="failed", error=reason) for reason in audio.errors]
        sound = [i for i, reason in enumerate(audio.errors) if reason is None]
        answers = self.teacher.hear([self._clip(utterances[i], audio, i) for i in sound])
        for i, answer in zip(sound, answers, strict=True):
            heard[i] = answer
        return [self._label(utterance, each) for utterance, each in zip(utterances, heard, strict=True)]

    def close(self) -> None:
        """Give back what the teacher took."""
        self.teacher.close()

    def _clip(self, utterance: Utterance, audio: Decoded, i: int) -> Clip:
        if not self.task.reads_texts:  # a teacher cannot cheat with what it is not shown
            utterance = dataclasses.replace(utterance, text=None)
        return Clip(utterance=utterance, samples_T=audio.samples_T[audio.bounds[i] : audio.bounds[i + 1]])

    def _label(self, utterance: Utterance, heard: Heard) -> Label:
        return Label(
            utterance_id=utterance.id,
            recipe=self.task.recipe,
            teacher=self.task.name,
            text=heard.text,
            language=heard.language,
            mean_logprob=heard.mean_logprob,
            num_tokens=heard.num_tokens,
            finish="failed" if heard.error else heard.finish,
            words=heard.words,
            error=heard.error,
        )
