"""Label utterances with a teacher (pseudo-labelling): exactly one row for each, also where the teacher failed.

The labels of a run lie in one folder, named after the recipe that the run started with. A run whose teacher is changed
while it works (`labelling/control.py`) continues in the same folder: each row names its own teacher and recipe.

The unit of work and of output is a chunk of utterances in the order of their table; its name is the hash of their
ids, so that whoever writes a chunk second does no harm. Resuming is the plan minus the utterances that have a label.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Container, Iterator, Mapping, Sequence

from voxstill import engine
from voxstill.audio import read_utterances
from voxstill.core import config, legacy
from voxstill.core.errors import ConfigError, TeacherError, VoxstillError
from voxstill.core.metrics.steps import StepMeter
from voxstill.core.monitor import level, log
from voxstill.core.records import Label, Utterance
from voxstill.labelling import begun, control, label_figures, supervised
from voxstill.labelling.commit import commit_rows
from voxstill.labelling.removed import WAY_OUT, without_removed
from voxstill.labelling.retry_failed import finish_removal, remove_failed
from voxstill.labelling.task import Task
from voxstill.labelling.transcribe import Transcribe, set_aside_label
from voxstill.storage import lease, log_file, manifest, parts, removals, same_audio, tables, workdir
from voxstill.storage.cut import CUT_BY, chunk_ids, cut
from voxstill.storage.figures import IndexFigures, LabelFigures
from voxstill.storage.redaction import redact_options
from voxstill.storage.store import Store
from voxstill.teachers import registry
from voxstill.teachers.teacher import MANIFEST


def task(teacher: config.Teacher, work: Store | None = None) -> Task:
    """The task of a teacher as configured, going on with labels in `work`; ConfigError or TeacherError if the
    teacher cannot be made.
    """
    unopened = registry.create(teacher)
    name = f"{teacher.name}@{unopened.revision()}"
    goes_by_manifest = getattr(registry.options(teacher), "language", None) == MANIFEST
    reads_languages = getattr(unopened, "reads_languages", goes_by_manifest)
    task = Task(teacher, name, unopened.reads_texts, getattr(unopened, "calls_at_once", 1), reads_languages)
    if work is None:
        return task
    begun = (former for former in _former(task) if _is_begun(work, task, former))
    return next(begun, task)


def _may_change(teacher: config.Teacher) -> bool:
    try:
        return getattr(registry.find(teacher.name), "revision_may_change", False)
    except VoxstillError:
        return False


def finished(work: Store, teacher: config.Teacher) -> LabelFigures:
    """The figures of a teacher's finished labels, or of the only ones there are; DataError if there are none.

    It is one as well where the configured teacher's labels are started and not finished: others are not taken in their
    place. The teacher is made, to ask for its revision, only where several are finished, or some are not. Where it
    cannot be made any more, they are the only ones that were made with the same options.
    """
    recipes = workdir.finished_recipes(work, "labels")
    if teacher.model_fields_set and begun.unfinished(work, teacher, lambda: task(teacher, work).recipe):
        raise begun.not_finished(work, teacher)
    if len(recipes) < 2:
        only = workdir.finished(work, LabelFigures)
        if "name" in teacher.model_fields_set and teacher.name not in only.teacher:
            message = "`%s` has only finished labels of %s: these are used, not those of `%s`"
            log.warning(message, work.root, only.teacher, teacher.name)
        return only
    try:
        wanted = task(teacher, work)
        return workdir.finished(work, LabelFigures, wanted.recipe)
    except VoxstillError:
        if _may_change(teacher):  # labels with the same options were made from other judgements
            raise
        matching = [recipe for recipe in recipes if _options(work, recipe) == registry.shown(teacher)]
        if len(matching) != 1:
            raise
        return workdir.named(work, LabelFigures, matching[0])


def _options(work: Store, recipe: str) -> Mapping[str, object]:
    return redact_options(workdir.named(work, LabelFigures, recipe).options)  # 0.1 wrote them as they were


def _former(task: Task) -> list[Task]:
    """The task as earlier versions knew it: before defaults of its options were changed, and in version 0.1."""
    teacher = task.teacher
    options = registry.options(teacher)
    unset = {
        name: default
        for name, default in config.first_defaults(type(options)).items()
        if name not in (teacher.model_extra or {})
    }
    before = dataclasses.replace(task, teacher=teacher.model_copy(update=unset)) if unset else task
    in_0_1 = legacy.labels(task.name, teacher, options)
    former = [before] if unset else []
    return former if in_0_1 is None else [*former, dataclasses.replace(before, table=in_0_1)]


def _is_begun(work: Store, task: Task, former: Task) -> bool:
    """Whether the labels of a former task are there, and none of the task."""
    return workdir.begun(work, "labels", task.identity, former.recipe) == former.recipe


def plan(
    work: Store, utterances: str, labels: str, cfg: config.Engine, part: parts.Part | None = None
) -> Iterator[engine.Chunk]:
    """Put every utterance of the table that has no label among the parts of `labels` in one chunk; both tables stream.

    With `part` only its chunks come.
    """
    for _, rows in left(work, utterances, labels, cfg, part):
        yield from engine.chunks_of(rows, cfg.chunk, lambda row: row.id)


def left(
    work: Store, utterances: str, labels: str, cfg: config.Engine, part: parts.Part | None = None
) -> Iterator[tuple[str, list[Utterance]]]:
    """The name of every chunk that is not done, with its utterances that have no label; with `part` only its chunks.

    A chunk is cut (`storage/cut.py`) from one part of the table. One whose name is listed is done, and what the listed
    parts of other names hold (cut otherwise, or the rest of such chunks) is left out of the others. What is left of a
    chunk is of the part that the whole chunk is of.
    """
    keys = manifest.parts(work, utterances)
    done = {key.rpartition("/")[2].removesuffix(".parquet") for key in tables.parts(work, labels)}
    labelled: Container[str] = ()
    if done:
        columns = tables.columns(work, keys, Utterance, ("id", *CUT_BY))
        planned = {name for table in columns for name in chunk_ids(table, cfg)}
        others = [f"{labels}/{name}.parquet" for name in sorted(done - planned)]
        tables_of_ids = tables.columns(work, others, Label, ("utterance_id",))
        labelled = tables.IdSet(id_ for table in tables_of_ids for id_ in table["utterance_id"].to_pylist())
    for key in keys:
        if done:
            table = tables.to_arrow(work.read(key), Utterance, work.uri(key), ("id", *CUT_BY))
            if done.issuperset(chunk_ids(table, cfg)):
                continue
        rows = tables.from_parquet(work.read(key), Utterance, work.uri(key))
        for members in cut([row.recording_id for row in rows], [row.duration_ms for row in rows], cfg):
            name = engine.chunk_id(row.id for row in rows[members])
            if name in done or (part is not None and not part.takes(name)):
                continue
            if unlabelled := [row for row in rows[members] if row.id not in labelled]:
                yield name, unlabelled


def limited(chunks: Iterator[engine.Chunk], max_chunks: int | None, limit_ms: float | None) -> Iterator[engine.Chunk]:
    """Yield the first chunks, at most `max_chunks`, until they hold `limit_ms` of audio; take no more from `chunks`."""
    taken_ms = 0
    for number, chunk in enumerate(chunks, start=1):
        yield chunk
        taken_ms += sum(utterance.duration_ms for utterance in chunk.items)
        if (max_chunks is not None and number >= max_chunks) or (limit_ms is not None and taken_ms >= limit_ms):
            return


def label(
    work: Store,
    utterances: str,
    task: Task,
    cfg: config.Engine,
    reading: read_utterances.Reading,
    meter: StepMeter,
    *,
    max_chunks: int | None = None,
    limit_hours: float | None = None,
    retry_failed: bool = False,
    part: parts.Part | None = None,
    allowed: Sequence[config.Teacher] = (),
) -> LabelFigures:
    """Label what has no label yet, up to the limits, and return the figures of all labels.

    `finished` in them says whether every utterance has one; only then is there a `_SUCCESS.json`. What is requested in
    `WORK/control.json` is applied while it works, another teacher only where it is `allowed`. With `retry_failed`
    failed labels are made again, and so are those of sources whose `supervised` was changed; with `part` others label
    at the same time, and the last one finishes the table. Raises TeacherError if the teacher fails on everything,
    Interrupted after a signal, StorageError or TeacherError if utterances are left because storage or a server did
    not answer, DataError if an id has a label of other audio. Utterances that were removed have labels that say so;
    supervised ones have their texts, from no teacher, and count for neither limit.
    """
    removals.check(work)
    source = tables.parts_hash(work, utterances)
    done = workdir.success(work, LabelFigures, task.recipe)
    if done is not None and not (retry_failed and done.failed) and is_whole(work, utterances, source, task, done):
        return done
    hold = parts.hold(work, task.prefix, "label", part, cfg, of=utterances)
    with log_file.kept(work, "label"), hold as held:
        finish_removal(work, task.prefix)
        if retry_failed:
            remove_failed(work, task.prefix, same_audio.of_other_kind(work, utterances, task.prefix))
        same_audio.begin(work, utterances, task.prefix)
        removed = removals.of(work, utterances)
        indexed = workdir.success(work, IndexFigures, utterances.rpartition("/")[2])
        if indexed is not None and indexed.supervised:
            texts = supervised.chunks(plan(work, utterances, task.prefix, cfg, part))
            texts = without_removed(work, task, texts, removed, held)
            supervised.label_texts(work, task.prefix, texts, indexed.supervised, cfg, reading, held)
        start_s = time.perf_counter()
        planned = plan(work, utterances, task.prefix, cfg, part)
        chunks = without_removed(work, task, planned, removed, held)
        limit_ms = None if limit_hours is None else limit_hours * 3_600_000
        _run(work, limited(chunks, max_chunks, limit_ms), task, cfg, reading, meter, held, allowed, part)
        finished = next(chunks, None) is None
        if part is not None:
            names = (name for name, _ in left(work, utterances, task.prefix, cfg))
            finished = parts.is_finished("label", part, names, is_done=finished)
        rtfx = meter.audio_ms / 1000 / (time.perf_counter() - start_s) or (done.rtfx if done else 0.0)
        result = dataclasses.replace(label_figures.count(work, task), rtfx=rtfx, finished=finished)
        if finished:
            result = dataclasses.replace(result, source=source, listing=tables.parts_hash(work, task.prefix))
            workdir.finish(work, result)
    return result


def _run(
    work: Store,
    chunks: Iterator[engine.Chunk],
    task: Task,
    cfg: config.Engine,
    reading: read_utterances.Reading,
    meter: StepMeter,
    held: lease.Lease,
    allowed: Sequence[config.Teacher],
    part: parts.Part | None,
) -> None:
    """Run the engine over chunks, watching for requested changes."""

    outage = engine.Outage("utterances", WAY_OUT)

    def commit(chunk: engine.Chunk, rows: Sequence[Label | engine.Postponed]) -> None:
        held.check()
        commit_rows(work, task.prefix, chunk, rows, lambda row: row.utterance_id, meter, outage)

    def fail(utterance: Utterance, reason: str) -> Label:
        current = watch.stages[-1].work
        assert isinstance(current, Transcribe)
        return set_aside_label(current.task, utterance, reason)

    def stages(settings: control.Settings) -> tuple[engine.Stage, ...]:
        is_same = settings.teacher == task.teacher
        return _stages(task if is_same else _successor(work, task, settings.teacher), settings.engine, reading)

    started = control.Settings(task.teacher, cfg, level(), tuple(allowed))
    watch = control.Watch(work, task.recipe, started, stages, part)
    try:
        with watch:
            engine.run(chunks, watch.stages, commit, fail, cfg, meter, watch)
        outage.check()
    except VoxstillError as error:
        if type(error) is not VoxstillError:  # a lost cluster, a full disk: no fault of the teacher
            raise
        # here the work is the teacher's
        raise TeacherError(**error.to_dict()) from None


def _stages(task: Task, cfg: config.Engine, reading: read_utterances.Reading) -> tuple[engine.Stage, ...]:
    return (
        engine.Stage(name="decode", work=read_utterances.Decode(reading), workers=cfg.workers, resources=cfg.resources),
        engine.Stage(
            name="teach",
            work=Transcribe(task),
            workers=cfg.teachers,
            num_cpus=cfg.teacher_cpus,
            num_gpus=cfg.teacher_gpus,
            resources=cfg.teacher_resources,
            calls=task.calls_at_once,
        ),
    )


def _successor(work: Store, before: Task, teacher: config.Teacher) -> Task:
    """The task of a teacher that takes over in a run; its options are kept beside the labels, under its recipe.

    ConfigError if only one of both is shown the human texts: what figures say of the labels holds for all of them.
    """
    successor = task(teacher)
    if successor.reads_texts != before.reads_texts:
        raise ConfigError(
            f"`{teacher.name}` cannot take over from `{before.teacher.name}`",
            code="change-refused",
            why="only one of them sees the human texts",
            fix="label with it in a separate run: its labels are then another table",
        )
    if successor.identity == before.identity:
        return dataclasses.replace(successor, table=before.table)
    for former in _former(successor):
        if work.exists(same_audio.options_key(before.prefix, former.recipe)):  # an earlier version let it take over
            return former
    work.write_json(same_audio.options_key(before.prefix, successor.recipe), registry.shown(teacher))
    return successor


def is_whole(work: Store, utterances: str, source: str, task: Task, done: LabelFigures) -> bool:
    """Whether finished labels are still those of all utterances, whose table has the listing `source`.

    DataError if they are of other audio.
    """
    is_unchanged = (done.source, done.listing) == (source, tables.parts_hash(work, task.prefix))
    if is_unchanged:
        same_audio.begin(work, utterances, task.prefix)
        log.info("label: nothing to do, all %d labels of %s exist", done.labels, task.recipe)
    return is_unchanged
