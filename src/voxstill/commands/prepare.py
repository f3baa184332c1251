"""index, label, filter, shard: each reads a table and adds one; what is there already is never done again."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from voxstill import shards, tables, workdir
from voxstill.config import Config
from voxstill.errors import ConfigError, DataError
from voxstill.factory import agree, align, engine, extract, join, label, scan, scores, segment
from voxstill.factory import filter as filtering
from voxstill.factory import shard as sharding
from voxstill.monitor import StepMeter, log
from voxstill.records import Utterance, fingerprint
from voxstill.store import Store
from voxstill.teachers import registry
from voxstill.teachers.consensus import ConsensusTeacher


def utterances_recipe(cfg: Config) -> str:
    """Name of the utterances that this configuration cuts."""
    return workdir.recipe(Store(cfg.work), "utterances", "segment", cfg.segment, cfg.source, cfg.seed)


def index(cfg: Config) -> dict[str, Any]:
    """Every file of the source is a recording with its utterances, or a recording with a reason.

    What is there already stays as it is; what storage did not give the last time is tried again. DataError where a
    file, or what the source says of it, has changed since it was indexed: labels, splits and texts would be of then.
    """
    work, recipe = Store(cfg.work), utterances_recipe(cfg)
    recordings, prefix = workdir.prefix("recordings", recipe), workdir.prefix("utterances", recipe)
    files = scan.by_file(scan.scan(cfg.source, work))
    done = segment.Done(work, recordings, prefix)
    missing = done.missing(files)
    log.info("index: %d files found, %d of them to do", len(files), sum(missing))

    def commit(chunk: engine.Chunk, rows: Sequence[segment.Indexed]) -> None:
        utterances = [each for row in rows for each in row.utterances]
        errors = (row.recording.error for row in rows if row.recording.error is not None)
        meter.safe(sum(each.duration_ms for each in utterances), errors)
        found = [row.recording for row in rows if not (row.recording.is_unreadable and row.recording.id in done)]
        if not found:  # all of them are known to be out of reach already
            return
        key, row_bytes = f"{recordings}/{chunk.id}.parquet", tables.to_parquet(found, segment.IndexRow)
        committed = f"{prefix}/{chunk.id}.parquet"
        if not work.create(key, row_bytes) and not work.exists(committed):
            work.replace(key, row_bytes)  # left by a run that was ended before its commit
        work.create(committed, tables.to_parquet(utterances, Utterance))

    make = segment.Index(cfg.segment, cfg.source, cfg.seed, extract.reading(cfg))
    stages = (engine.Stage(name="index", make=make, workers=cfg.engine.workers),)
    if any(missing):
        todo = itertools.compress(files, missing)
        # A file that is tried again is another item than the first time: its part must not be taken for that one.
        chunks = engine.chunks_of(todo, cfg.engine.chunk, lambda file: file.id + file.said * (file.id in done))
        with StepMeter("index", sum(missing), "files") as meter:
            engine.run(chunks, stages, commit, segment.set_aside, cfg.engine, meter.engine)
    done.read()
    figures = {"recipe": recipe, **done.figures()}
    work.write_json(f"{prefix}/{tables.SUCCESS}", figures)
    return figures


def label_(cfg: Config, *, max_chunks: int | None = None, limit_hours: float | None = None) -> dict[str, Any]:
    """Every utterance has one label of this teacher, or a reason why not; up to the limits, where some are given.

    ConfigError where a limit is not above 0.
    """
    for name, limit in (("--max-chunks", max_chunks), ("--limit-hours", limit_hours)):
        if limit is not None and not limit > 0:
            raise ConfigError(f"`{name}` is {limit}", why="it must be above 0", fix="leave it out to label everything")
    work = Store(cfg.work)
    source = workdir.finished(work, "utterances", utterances_recipe(cfg))
    task = label.task(cfg.teacher, work)
    prefix = workdir.prefix("utterances", source["recipe"])
    made = registry.make(cfg.teacher)
    if isinstance(made, ConsensusTeacher):
        with StepMeter("label", None, "parts") as meter:
            return {**agree.agree(work, prefix, task, made.of, cfg.engine, meter), "hours": source["hours"]}
    with StepMeter("label", source["utterances"], "utterances") as meter:
        reading = extract.reading(cfg)
        figures = label.label(
            work, prefix, task, cfg.engine, reading, meter, max_chunks=max_chunks, limit_hours=limit_hours
        )
    if not figures["finished"]:
        log.info("label: %d of %d utterances; the same command goes on", figures["labels"], source["utterances"])
    return {**figures, "hours": source["hours"]}


def second_labels(cfg: Config, labels: Mapping[str, Any]) -> dict[str, Any] | None:
    """The figures of the labels that `filter.second_teacher` names; None where it names none.

    They are those of that recipe, or those of the one other teacher that has the name. ConfigError where they are the
    labels to be judged, DataError where there are none, or several.
    """
    name, work = cfg.filter.second_teacher, Store(cfg.work)
    if name is None:
        return None
    if name == labels["recipe"]:
        raise ConfigError(
            f"`filter.second_teacher` is `{name}`",
            why="these are the labels that are judged: they agree with themselves",
            fix="name another teacher, or the recipe of its labels",
        )
    if (found := workdir.success(work, "labels", name)) is not None:
        return found
    others = [workdir.named(work, "labels", each) for each in workdir.finished_recipes(work, "labels")]
    others = [each for each in others if each["recipe"] != labels["recipe"]]
    fitting = [each for each in others if each["teacher"].partition("@")[0] == name]
    if len(fitting) == 1:
        return fitting[0]
    there = ", ".join(f"{each['recipe']} ({each['teacher']})" for each in fitting or others) or "none"
    raise DataError(
        f"`filter.second_teacher` is `{name}`, and {'several' if fitting else 'no'} other labels here are its",
        why=f"{'they' if fitting else 'finished'} are: {there}",
        fix="name one of the recipes" if others else "run `voxstill label` with that teacher first",
    )


def _alignment(cfg: Config, labels: Mapping[str, Any]) -> align.Task | None:
    """The alignment of these labels by `filter.aligner`; None where there is none."""
    return None if cfg.filter.aligner is None else align.task(cfg.filter.aligner, labels["recipe"])


def verdicts_recipe(cfg: Config, source: Mapping[str, Any], labels: Mapping[str, Any]) -> str:
    """Name of the verdicts of this configuration on these labels."""
    return workdir.recipe(Store(cfg.work), "verdicts", "filter", cfg.filter, scores_recipe(cfg, source, labels))


def scores_recipe(cfg: Config, source: Mapping[str, Any], labels: Mapping[str, Any]) -> str:
    """Name of what is measured of these labels."""
    second, aligned = second_labels(cfg, labels), _alignment(cfg, labels)
    beside = [] if second is None else ["second", second["recipe"], second["sha256"]]
    beside += [] if aligned is None else ["aligned", aligned.recipe]
    phrases = (*scores.PHRASES, *cfg.filter.phrases)
    of = (labels["recipe"], labels["sha256"], source["recipe"])
    return fingerprint("scores", scores.VERSION, phrases, cfg.evaluate.normalizer, *of, *beside)


def finished_verdicts(cfg: Config) -> dict[str, Any]:
    """The verdicts of this configuration, or the only ones that are there."""
    work = Store(cfg.work)
    source = workdir.finished(work, "utterances", utterances_recipe(cfg))
    labels = workdir.finished(work, "labels", label.task(cfg.teacher, work).recipe)
    return workdir.finished(work, "verdicts", verdicts_recipe(cfg, source, labels))


def shard_recipe(cfg: Config, verdicts: Mapping[str, Any]) -> str:
    """Name of the shards that this configuration makes of these verdicts."""
    return workdir.recipe(Store(cfg.work), "shards", "shard", cfg.shard, verdicts["recipe"], cfg.seed)


def finished_shards(cfg: Config) -> dict[str, Any]:
    """The shards of this configuration, or the only ones that are there; DataError where those have no labels."""
    found = workdir.finished(Store(cfg.work), "shards", shard_recipe(cfg, finished_verdicts(cfg)))
    if found.get("unlabelled"):
        raise DataError(
            f"the shards {found['recipe']} in `{cfg.work}` have no labels",
            why="they were written for `voxstill pretrain`",
            fix=f"run: voxstill shard {cfg.work}",
        )
    return found


def heard_shards(cfg: Config) -> dict[str, Any]:
    """Shards to listen to, labelled or not: the only ones that are there; of several, those of this configuration
    without labels, as nothing is left out of them, else with; and where there are none, new ones without labels.
    """
    work = Store(cfg.work)
    recipes = workdir.finished_recipes(work, "shards")
    if len(recipes) == 1:
        return workdir.named(work, "shards", recipes[0])
    if not recipes or unlabelled_recipe(cfg) in recipes:
        return shard_unlabelled(cfg)
    return finished_shards(cfg)


def filter_(cfg: Config) -> dict[str, Any]:
    """Every label has its scores, and those of the training and dev splits a verdict with its reason."""
    work = Store(cfg.work)
    source = workdir.finished(work, "utterances", utterances_recipe(cfg))
    labels = workdir.finished(work, "labels", label.task(cfg.teacher, work).recipe)
    recipe = verdicts_recipe(cfg, source, labels)
    done = workdir.success(work, "verdicts", recipe)
    if done is not None:
        log.info("filter: nothing to do, verdicts %s are there", recipe)
        return done
    _refuse_added(work, labels)
    measured = _scores(cfg, source, labels)
    figures = {
        "recipe": recipe,
        "labels": labels["recipe"],
        "utterances": source["recipe"],
        "scores": measured["recipe"],
        "teacher": labels["teacher"],
        **filtering.write(
            work,
            workdir.prefix("scores", measured["recipe"]),
            workdir.prefix("verdicts", recipe),
            recipe,
            cfg.filter,
            errors=not label.are_human_texts(labels),
        ),
    }
    work.write_json(f"{workdir.prefix('verdicts', recipe)}/{tables.SUCCESS}", figures)
    return figures


def measured_labels(cfg: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """The figures of the finished labels, and of their scores."""
    work = Store(cfg.work)
    source = workdir.finished(work, "utterances", utterances_recipe(cfg))
    labels = workdir.finished(work, "labels", label.task(cfg.teacher, work).recipe)
    _refuse_added(work, labels)
    return labels, _scores(cfg, source, labels)


def _scores(cfg: Config, source: Mapping[str, Any], labels: Mapping[str, Any]) -> dict[str, Any]:
    """Every label is measured, once for all thresholds."""
    work, recipe = Store(cfg.work), scores_recipe(cfg, source, labels)
    done = workdir.success(work, "scores", recipe)
    if done is not None:
        return done
    prefix = workdir.prefix("scores", recipe)
    there = {key.rpartition("/")[2].removesuffix(".parquet") for key in tables.parts(work, prefix)}
    units = scores.plan(_known(cfg, work, source, labels), there)

    def commit(_: engine.Chunk, rows: Sequence[int | DataError]) -> None:
        for row in rows:
            if isinstance(row, DataError):
                raise row
            meter.safe(row, ())

    make = scores.Measure(work, prefix, (*scores.PHRASES, *cfg.filter.phrases), cfg.evaluate.normalizer)
    stages = (engine.Stage(name="filter", make=make, workers=cfg.engine.workers),)
    with StepMeter("filter", len(units), "parts") as meter:
        chunks = (engine.Chunk(unit.name, (unit,)) for unit in units)
        engine.run(chunks, stages, commit, scores.set_aside, cfg.engine, meter.engine)
    figures = {"recipe": recipe, "labels": labels["recipe"], "utterances": source["recipe"]}
    work.write_json(f"{prefix}/{tables.SUCCESS}", figures)
    return figures


def _known(cfg: Config, work: Store, source: Mapping[str, Any], labels: Mapping[str, Any]) -> list[scores.Known]:
    """Each part of the utterances with all that its labels are measured by."""
    prefix = workdir.prefix("utterances", source["recipe"])
    heard = aligned = None
    if (second := second_labels(cfg, labels)) is not None:
        _refuse_added(work, second)
        heard = workdir.prefix("labels", second["recipe"])
    if (task := _alignment(cfg, labels)) is not None:
        with StepMeter("align", None, "utterances") as meter:
            align.align(work, prefix, labels, task, cfg.engine, extract.reading(cfg), meter)
        aligned = task.prefix
    parts = _parts(cfg, work, source["recipe"], labels["recipe"])

    def beside(table: str | None) -> list[tuple[str, ...]]:
        if table is None:
            return [()] * len(parts)
        return [part.labels for part in join.parts(work, prefix, table, cfg.engine.chunk)]

    return list(itertools.starmap(scores.Known, zip(parts, beside(heard), beside(aligned), strict=True)))


def _parts(cfg: Config, work: Store, utterances: str, labels: str) -> list[join.Part]:
    """The parts of two tables that belong together."""
    prefixes = workdir.prefix("utterances", utterances), workdir.prefix("labels", labels)
    return join.parts(work, *prefixes, cfg.engine.chunk)


def _refuse_added(work: Store, labels: Mapping[str, Any]) -> None:
    """DataError where there are labels that the figures do not speak of: the name of the verdicts would not either."""
    now = tables.listing(work, workdir.prefix("labels", labels["recipe"]))
    if labels.get("listing", now) != now:
        raise DataError(
            f"the labels in `{work.uri(workdir.prefix('labels', labels['recipe']))}` are not finished",
            why="some were added, or taken away, since `voxstill label` ended there",
            fix="run `voxstill label` again; it goes on where it stopped",
        )


def shard(cfg: Config) -> dict[str, Any]:
    """Every utterance that was kept lies in one shard, with its label and all that is known of it."""
    verdicts = finished_verdicts(cfg)
    about = {"verdicts": verdicts["recipe"], "teacher": verdicts["teacher"]}

    def parts(work: Store) -> list[join.Part]:
        return _parts(cfg, work, verdicts["utterances"], verdicts["labels"])

    return _shard(cfg, shard_recipe(cfg, verdicts), parts, workdir.prefix("verdicts", verdicts["recipe"]), about)


def unlabelled_recipe(cfg: Config) -> str:
    """Name of the shards that this configuration makes of all utterances."""
    work = Store(cfg.work)
    source = workdir.finished(work, "utterances", utterances_recipe(cfg))
    return workdir.recipe(work, "shards", "unlabelled", cfg.shard, source["recipe"], cfg.seed)


def shard_unlabelled(cfg: Config) -> dict[str, Any]:
    """Every utterance but those of the test split lies in one shard, with no label: nobody has judged it."""
    source = workdir.finished(Store(cfg.work), "utterances", utterances_recipe(cfg))

    def parts(work: Store) -> list[join.Part]:
        return join.unlabelled(work, workdir.prefix("utterances", source["recipe"]))

    return _shard(cfg, unlabelled_recipe(cfg), parts, None, {"unlabelled": True})


def _shard(
    cfg: Config,
    recipe: str,
    parts_of: Callable[[Store], list[join.Part]],
    verdicts: str | None,
    about: dict[str, Any],
) -> dict[str, Any]:
    """The shards of what was kept, by these verdicts."""
    work = Store(cfg.work)
    done = workdir.success(work, "shards", recipe)
    if done is not None:
        log.info("shard: nothing to do, shards %s are there", recipe)
        return done
    prefix, parts = workdir.prefix("shards", recipe), parts_of(work)
    in_place = cfg.shard.format == "in_place"
    corpus = sharding.survey(work, parts, verdicts, by_tar=in_place)
    windows = sharding.assign_in_place(corpus) if in_place else sharding.assign(corpus, cfg.shard, cfg.seed)
    sizes = [len(members) for window in windows for members in window]
    there = sharding.written(work, prefix)
    written = list(sharding.counts(work, prefix, {index: sizes[index] for index in sorted(there)}))

    def commit(_: engine.Chunk, rows: Sequence[sharding.Written]) -> None:
        for row in rows:
            written.append(row)
            meter.safe(row.duration_ms, (reason for reason, count in row.dropped.items() for _ in range(count)))

    jobs = sharding.jobs(work, parts, corpus, windows, there)
    chunks = engine.chunks_of(jobs, 1, lambda job: str(job.index))
    make = sharding.Writer(work, prefix, cfg.shard, extract.reading(cfg))
    stages = (engine.Stage(name="shard", make=make, workers=cfg.engine.workers),)
    with StepMeter("shard", len(sizes) - len(there), "shards") as meter:
        engine.run(chunks, stages, commit, sharding.set_aside, cfg.engine, meter.engine)
    dropped: Counter[str] = Counter()
    for each in written:
        dropped.update(each.dropped)
    figures = {
        "recipe": recipe,
        **about,
        "shards": len(sizes),
        "utterances": sum(each.utterances for each in written),
        "hours": sum(each.duration_ms for each in written) / 3_600_000,
        "num_bytes": sum(each.num_bytes for each in written),
        "dropped": dict(dropped),
    }
    shards.finish(work, prefix, figures)
    return figures


REPACK = (
    "teacher=reference",
    "segment.max_ms=3600000",
    "source.dev_share=0",
    "source.test_share=0",
    "filter.min_chars_per_s=0",
    "filter.max_chars_per_s=1e9",
    "filter.max_repeats=1000000000",
    "filter.max_compression_ratio=1e9",
    "filter.frame_ms=1",
    "filter.second_teacher=null",
    "filter.aligner=null",
)
"""Human texts as they are, utterances whole, no split that the source does not name; `--set` comes after it."""


def repack(cfg: Config) -> dict[str, Any]:
    """Shards of everything in the source that has a human text; what is left out is counted by reason."""
    indexed, labelled = index(cfg), label_(cfg)
    filtered = filter_(cfg)
    figures = shard(cfg)
    left_out = Counter({"damaged file": indexed["damaged"], "no text": labelled["failed"]})
    left_out.update({name.replace("_", " "): num for name, num in filtered["reasons"].items() if name != "failed"})
    left_out.update(figures["dropped"])
    left_out["of the test split"] = indexed["utterances"] - filtered["judged"]
    told = {name: num for name, num in left_out.items() if num > 0}
    if told:
        log.warning("shard: left out: %s", ", ".join(f"{num:,} {name}" for name, num in told.items()))
    return {**figures, "left_out": told}
