"""Every utterance gets exactly one label: a row, also where the teacher failed.

The labels of a run lie in one folder, named after the recipe that the run began with. A run whose teacher is changed
while it works (`factory/control.py`) goes on in the same folder: each row names its own teacher and recipe.

The unit of work and of output is a chunk of utterances in the order of their table; its name is the hash of their
ids, so that whoever writes a chunk second does no harm. Resuming is the plan minus the utterances that have a label.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import time
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxstill import config, legacy, tables, workdir
from voxstill.audio.decoder import Decoder
from voxstill.cache import Cache
from voxstill.errors import ConfigError, TeacherError, VoxstillError
from voxstill.factory import control, engine, extract
from voxstill.monitor import StepMeter, level, log
from voxstill.records import Label, Utterance, fingerprint
from voxstill.store import Store
from voxstill.teachers import registry
from voxstill.teachers.teacher import Clip, Heard, Teacher

SET_ASIDE = "set aside"
"""So begins the reason of an utterance that no worker could get through."""
MAKER = ("recipe", "teacher")
"""The columns that say who made a label."""
AND = " + "
"""Between the names of several teachers."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a run of labels is made of; equal tasks have equal recipes.

    `table` is the name under which the labels lie that version 0.1 has begun.
    """

    teacher: config.Teacher
    name: str
    reads_texts: bool
    calls_at_once: int = 1
    table: str | None = None

    @property
    def identity(self) -> str:
        """The hash of the teacher and of its options that change what it says."""
        return fingerprint("label", self.name, config.identity(registry.options(self.teacher)))

    @property
    def recipe(self) -> str:
        """Name of this teacher's labels on disk."""
        return self.table or self.identity

    @property
    def prefix(self) -> str:
        """Where they lie."""
        return f"labels/{self.recipe}"


def task(teacher: config.Teacher, work: Store | None = None) -> Task:
    """The task of a teacher as configured, going on with labels in `work`; ConfigError or TeacherError where it cannot
    be made.
    """
    model = registry.make(teacher)
    task = Task(teacher, f"{teacher.name}@{model.revision()}", model.reads_texts, getattr(model, "calls_at_once", 1))
    if work is None:
        return task
    former = legacy.labels(task.name, teacher, registry.options(teacher))
    return dataclasses.replace(task, table=workdir.begun(work, "labels", task.identity, former))


def plan(work: Store, utterances: str, labels: str, size: int) -> Iterator[engine.Chunk]:
    """Every utterance of the table without a label among the parts of `labels`, in one chunk; both tables stream.

    A chunk is `size` utterances of one part of the table. One whose name is listed is done, and what the listed parts
    of other names hold (made with another `size`, or the rest of such chunks) is left out of the others.
    """
    parts = tables.parts(work, utterances)
    there = {key.rpartition("/")[2].removesuffix(".parquet") for key in tables.parts(work, labels)}
    have: Container[str] = ()
    if there:
        tables_of_ids = tables.columns(work, parts, Utterance, ("id",))
        planned = {name for table in tables_of_ids for name in _names(table["id"].to_pylist(), size)}
        others = [f"{labels}/{name}.parquet" for name in sorted(there - planned)]
        tables_of_ids = tables.columns(work, others, Label, ("utterance_id",))
        have = tables.Ids(id_ for table in tables_of_ids for id_ in table["utterance_id"].to_pylist())
    for key in parts:
        if there:
            ids = tables.to_arrow(work.read(key), Utterance, work.uri(key), ("id",))["id"].to_pylist()
            if there.issuperset(_names(ids, size)):
                continue
        for rows in _batched(tables.from_parquet(work.read(key), Utterance, work.uri(key)), size):
            if engine.chunk_id(row.id for row in rows) not in there:
                yield from engine.chunks_of((row for row in rows if row.id not in have), size, lambda row: row.id)


def _names(ids: Sequence[str], size: int) -> Iterator[str]:
    """Of the chunks that a part of the table is planned as."""
    return (engine.chunk_id(some) for some in _batched(ids, size))


def _batched(rows: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (rows[start : start + size] for start in range(0, len(rows), size))


def limited(chunks: Iterator[engine.Chunk], max_chunks: int | None, limit_ms: float | None) -> Iterator[engine.Chunk]:
    """The first chunks, at most `max_chunks`, until they hold `limit_ms` of audio; no more are taken from `chunks`."""
    taken_ms = 0
    for number, chunk in enumerate(chunks, start=1):
        yield chunk
        taken_ms += sum(each.duration_ms for each in chunk.items)
        if (max_chunks is not None and number >= max_chunks) or (limit_ms is not None and taken_ms >= limit_ms):
            return


def label(
    work: Store,
    utterances: str,
    task: Task,
    cfg: config.Engine,
    reading: extract.Reading,
    meter: StepMeter,
    *,
    max_chunks: int | None = None,
    limit_hours: float | None = None,
) -> dict[str, Any]:
    """Label what has no label yet, up to the limits, and return the figures of all labels.

    `finished` in them says whether every utterance has one; only then is there a `_SUCCESS.json`. What is asked for in
    `WORK/control.json` is taken while it works. Raises TeacherError where the teacher fails on everything, Interrupted
    after a signal.
    """
    source = tables.listing(work, utterances)
    done = workdir.success(work, "labels", task.recipe)
    if done is not None and is_whole(work, source, task, done):
        return done
    start = time.perf_counter()

    def commit(chunk: engine.Chunk, rows: Sequence[Label]) -> None:
        work.create(f"{task.prefix}/{chunk.id}.parquet", tables.to_parquet(rows, Label))
        meter.safe(sum(each.duration_ms for each in chunk.items), (row.error for row in rows if row.error))

    def fail(utterance: Utterance, reason: str) -> Label:
        made = at_work()
        return Label(
            utterance_id=utterance.id,
            recipe=made.recipe,
            teacher=made.name,
            finish="failed",
            error=f"{SET_ASIDE}: {reason}",
        )

    def at_work() -> Task:
        make = watch.stages[-1].make
        assert isinstance(make, Teach)
        return make.task

    def stages(now: control.Settings) -> tuple[engine.Stage, ...]:
        teaching = task if now.teacher == task.teacher else _successor(work, task, now.teacher)
        return (
            engine.Stage(name="decode", make=Decode(reading), workers=now.engine.workers),
            engine.Stage(
                name="teach",
                make=Teach(teaching),
                workers=now.engine.teachers,
                num_cpus=now.engine.teacher_cpus,
                num_gpus=now.engine.teacher_gpus,
                calls=teaching.calls_at_once,
            ),
        )

    watch = control.Watch(work, task.recipe, control.Settings(task.teacher, cfg, level()), stages)
    chunks = plan(work, utterances, task.prefix, cfg.chunk)
    limit_ms = None if limit_hours is None else limit_hours * 3_600_000
    try:
        with watch:
            engine.run(limited(chunks, max_chunks, limit_ms), watch.stages, commit, fail, cfg, meter.engine, watch)
    except VoxstillError as error:
        if type(error) is not VoxstillError:  # a lost cluster, a full disk: no fault of the teacher
            raise
        raise TeacherError(error.what, why=error.why, fix=error.fix) from None  # here the work is the teacher's
    finished = next(chunks, None) is None
    found = {
        **figures(work, task),
        "rtfx": meter.audio_ms / 1000 / (time.perf_counter() - start) or (done or {"rtfx": 0.0})["rtfx"],
        "finished": finished,
    }
    if finished:
        found |= {"source": source, "listing": tables.listing(work, task.prefix)}
        work.write_json(f"{task.prefix}/{tables.SUCCESS}", found)
    return found


def _successor(work: Store, before: Task, teacher: config.Teacher) -> Task:
    """The task of a teacher that takes over in a run; its options are kept beside the labels, under its recipe.

    ConfigError where only one of both is shown the human texts: what is told of the labels holds for all of them.
    """
    found = task(teacher)
    if found.reads_texts != before.reads_texts:
        raise ConfigError(
            f"`{teacher.name}` cannot take over from `{before.teacher.name}`",
            why="one of them is shown the human texts and the other is not",
            fix="label with it in a run of its own: its labels are then another table",
        )
    if found.identity == before.identity:
        return dataclasses.replace(found, table=before.table)
    former = legacy.labels(found.name, teacher, registry.options(teacher))
    if former is not None and work.exists(_options_key(before, former)):  # version 0.1 let it take over
        return dataclasses.replace(found, table=former)
    work.write_json(_options_key(before, found.recipe), teacher.model_dump())
    return found


def _options_key(task: Task, recipe: str) -> str:
    """Of the options of a teacher that took over: a row tells its recipe and no more."""
    return f"{task.prefix}/_{recipe}.json"


def is_whole(work: Store, source: str, task: Task, done: Mapping[str, Any]) -> bool:
    """Whether finished labels are still those of all utterances, whose table has the listing `source`."""
    same = (done["source"], done["listing"]) == (source, tables.listing(work, task.prefix))
    if same:
        log.info("label: nothing to do, all %d labels of %s are there", done["labels"], task.recipe)
    return same


def figures(work: Store, task: Task) -> dict[str, Any]:
    """Counts and a checksum of everything the recipe has; TeacherError where nothing but failures is there.

    Where others than the teacher that the run began with have made some, `teacher` names all, and `teachers` says how
    many labels each has made.
    """
    keys = tables.parts(work, task.prefix)
    digest, labels = hashlib.sha256(), 0
    errors: Counter[str] = Counter()
    made: Counter[tuple[str, str]] = Counter()
    with ThreadPoolExecutor(tables.READERS) as pool:
        for part_digest, num_rows, reasons, made_here in pool.map(lambda key: _count(work.read(key)), keys):
            digest.update(part_digest)
            labels += num_rows
            errors.update(reasons)
            made.update(made_here)
    failed = errors.total()
    if labels and failed == labels:
        raise TeacherError(
            f"the teacher `{task.teacher.name}` failed on all {labels} utterances",
            why=max(errors, key=lambda reason: errors[reason]),
            fix=f"mend the cause, remove `{work.uri(task.prefix)}` and run again",
        )
    own = (task.recipe, task.name)
    makers = sorted(made, key=lambda each: (-made[each], each)) or [own]
    several: dict[str, Any] = {} if makers == [own] else {"teachers": []}
    for recipe, name in makers if several else ():
        options = task.teacher.model_dump() if recipe == task.recipe else work.read_json(_options_key(task, recipe))
        several["teachers"].append(
            {"recipe": recipe, "teacher": name, "options": options, "labels": made[recipe, name]}
        )
    return {
        "recipe": task.recipe,
        "teacher": AND.join(dict.fromkeys(name for _, name in makers)),
        "options": task.teacher.model_dump(),
        **several,
        "chunks": len(keys),
        "labels": labels,
        "failed": failed,
        "quarantined": sum(count for reason, count in errors.items() if reason.startswith(SET_ASIDE)),
        "sha256": digest.hexdigest(),
    }


def are_human_texts(figures: Mapping[str, Any]) -> bool:
    """Whether some of the labels are what humans wrote down, so that nothing can be judged by that."""
    return any(name.startswith("reference@") for name in figures["teacher"].split(AND))


def _count(data: bytes) -> tuple[bytes, int, list[str], Counter[tuple[str, str]]]:
    """Checksum, rows, reasons and makers (recipe and teacher) of one part; columns are read where they hold several."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(io.BytesIO(data))
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    found = sum(each.num_values - each.statistics.null_count for each in columns if each.path_in_schema == "error")
    reasons = file.read(columns=["error"])["error"].drop_null().to_pylist() if found else []
    ends = [
        {end for each in columns if each.path_in_schema == name for end in (each.statistics.min, each.statistics.max)}
        for name in MAKER
    ]
    if all(len(each) == 1 and None not in each for each in ends):
        makers = Counter({(ends[0].pop(), ends[1].pop()): file.metadata.num_rows})
    else:
        table = file.read(columns=list(MAKER))
        makers = Counter(zip(*(table[name].to_pylist() for name in MAKER), strict=True))
    return hashlib.sha256(data).digest(), file.metadata.num_rows, reasons, makers


@dataclass(frozen=True, slots=True)
class Decoded:
    """The audio of a chunk: one array, where each utterance begins, and why some have none."""

    samples_T: NDArray[np.int16]
    bounds: NDArray[np.int64]
    errors: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Decode:
    """Makes the work of a CPU worker, with a decoder of its own."""

    reading: extract.Reading

    def __call__(self) -> Decoding:
        """The work, ready to read."""
        return Decoding(self.reading.cache, self.reading.decoder())


@dataclass(frozen=True, slots=True)
class Decoding:
    """Work of a CPU worker: fetch and decode a chunk. A file that holds several of its utterances is read once."""

    cache: Cache | None
    decoder: Decoder

    def __call__(self, utterances: Sequence[Utterance], _: Any) -> Decoded:
        """Audio of every utterance, or the reason why it has none."""
        pieces: dict[str, NDArray[np.int16]] = {}
        errors: dict[str, str] = {}
        for utterance, audio in extract.samples(utterances, self.cache, self.decoder.decode):
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

    def close(self) -> None:
        """End the decoder."""
        self.decoder.close()


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
