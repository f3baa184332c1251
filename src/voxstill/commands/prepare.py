"""index, label, filter, shard: each reads a table and adds one; what is there already is never done again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from voxstill import shards, tables, workdir, world
from voxstill.config import Config
from voxstill.errors import DataError
from voxstill.factory import engine, label, scan, segment
from voxstill.factory import filter as filtering
from voxstill.factory import shard as sharding
from voxstill.monitor import Progress, log
from voxstill.records import Label, Recording, Utterance, Verdict, fingerprint
from voxstill.score import words
from voxstill.store import Store
from voxstill.text.normalize import normalizer

JUDGED_SPLITS = ("train", "dev")
"""Splits that are filtered and sharded; `test` is only ever judged on."""


def utterances_recipe(cfg: Config) -> str:
    """Name of the utterances that this configuration cuts."""
    return fingerprint("segment", cfg.segment.model_dump(), cfg.source.model_dump(exclude={"uri"}), cfg.seed)


def index(cfg: Config) -> dict[str, Any]:
    """Every file of the source is a recording with its utterances, or a recording with a reason.

    DataError where a file has changed since it was indexed: labels of what it held would go with what it holds.
    """
    work, recipe = Store(cfg.work), utterances_recipe(cfg)
    prefix = workdir.prefix("utterances", recipe)
    files = scan.by_file(scan.scan(cfg.source))
    have = list(_recordings(work, recipe))
    ids, sound = {row.id for row in have}, {row.uri for row in have if row.error is None}
    new = [file for file in files if file.id not in ids]
    _refuse_changed([file for file in new if file.found[0].uri in sound], cfg.work)
    log.info("index: %d files found, %d of them new", len(files), len(new))

    def commit(chunk: engine.Chunk, rows: Sequence[segment.Indexed]) -> None:
        work.create(
            f"{workdir.prefix('recordings', recipe)}/{chunk.id}.parquet",
            tables.to_parquet([row.recording for row in rows], Recording),
        )
        utterances = [each for row in rows for each in row.utterances]
        work.create(f"{prefix}/{chunk.id}.parquet", tables.to_parquet(utterances, Utterance))  # last: it is the commit

    stages = (engine.Stage(name="index", make=segment.Index(cfg.segment, cfg.source, cfg.seed), workers=_workers(cfg)),)
    if new:
        chunks = engine.chunks_of(new, cfg.engine.chunk, lambda file: file.id)
        with Progress("index", len(new), "files") as bar:
            engine.run(chunks, stages, commit, segment.set_aside, cfg.engine, bar.to)
    return _finish_index(work, recipe, prefix)


def _recordings(work: Store, recipe: str) -> Iterator[Recording]:
    """The recordings whose utterances are there as well."""
    for part in tables.parts(work, workdir.prefix("utterances", recipe)):
        key = f"{workdir.prefix('recordings', recipe)}/{part.rpartition('/')[2]}"
        yield from tables.from_parquet(work.read(key), Recording, work.uri(key))


def _refuse_changed(changed: Sequence[scan.File], work: str) -> None:
    if changed:
        more = f" and {len(changed) - 1} more files have" if len(changed) > 1 else " has"
        raise DataError(
            f"`{changed[0].found[0].uri}`{more} changed since `{work}` was made",
            why="the labels there are of what the files held then",
            fix="index into another work folder, or put the old files back with their times",
        )


def _finish_index(work: Store, recipe: str, prefix: str) -> dict[str, Any]:
    recordings = damaged = utterances = milliseconds = 0
    reasons: dict[str, int] = {}
    for row in _recordings(work, recipe):
        recordings += 1
        if row.error is not None:
            damaged += 1
            reason = row.error.partition(":")[0]
            reasons[reason] = reasons.get(reason, 0) + 1
    splits: dict[str, int] = {}
    for each in tables.read(work, prefix, Utterance):
        utterances += 1
        milliseconds += each.duration_ms
        splits[each.split] = splits.get(each.split, 0) + 1
    figures = {
        "recipe": recipe,
        "recordings": recordings,
        "damaged": damaged,
        "utterances": utterances,
        "hours": milliseconds / 3_600_000,
        "splits": dict(sorted(splits.items())),
        "reasons": dict(sorted(reasons.items(), key=lambda item: -item[1])),
    }
    work.write_json(f"{prefix}/{tables.SUCCESS}", figures)
    return figures


def label_(cfg: Config) -> dict[str, Any]:
    """Every utterance has one label of this teacher, or a reason why not."""
    work = Store(cfg.work)
    source = workdir.finished(work, "utterances", utterances_recipe(cfg))
    task = label.task(cfg.teacher)
    with Progress("label", source["utterances"], "utterances") as bar:
        figures = label.label(work, workdir.prefix("utterances", source["recipe"]), task, cfg.engine, bar.to)
    return {**figures, "hours": source["hours"]}


def verdicts_recipe(cfg: Config, source: Mapping[str, Any], labels: Mapping[str, Any]) -> str:
    """Name of the verdicts of this configuration on these labels."""
    return fingerprint("filter", cfg.filter.model_dump(), labels["recipe"], labels["sha256"], source["recipe"])


def finished_verdicts(cfg: Config) -> dict[str, Any]:
    """The verdicts of this configuration, or the only ones that are there."""
    work = Store(cfg.work)
    source = workdir.finished(work, "utterances", utterances_recipe(cfg))
    labels = workdir.finished(work, "labels", label.task(cfg.teacher).recipe)
    return workdir.finished(work, "verdicts", verdicts_recipe(cfg, source, labels))


def shard_recipe(cfg: Config, verdicts: Mapping[str, Any]) -> str:
    """Name of the shards that this configuration makes of these verdicts."""
    return fingerprint("shard", cfg.shard.model_dump(), verdicts["recipe"], cfg.seed)


def finished_shards(cfg: Config) -> dict[str, Any]:
    """The shards of this configuration, or the only ones that are there."""
    return workdir.finished(Store(cfg.work), "shards", shard_recipe(cfg, finished_verdicts(cfg)))


def filter_(cfg: Config) -> dict[str, Any]:
    """Every label of the training and dev splits has a verdict with its reason and scores."""
    work = Store(cfg.work)
    source = workdir.finished(work, "utterances", utterances_recipe(cfg))
    labels = workdir.finished(work, "labels", label.task(cfg.teacher).recipe)
    recipe = verdicts_recipe(cfg, source, labels)
    done = workdir.success(work, "verdicts", recipe)
    if done is not None:
        log.info("filter: nothing to do, verdicts %s are there", recipe)
        return done
    utterances = {
        each.id: each
        for each in tables.read(work, workdir.prefix("utterances", source["recipe"]), Utterance)
        if each.split in JUDGED_SPLITS
    }
    heard = [
        each
        for each in tables.read(work, workdir.prefix("labels", labels["recipe"]), Label)
        if each.utterance_id in utterances
    ]
    durations_ms = {each.id: each.duration_ms for each in utterances.values()}
    verdicts = filtering.judge(heard, durations_ms, cfg.filter, recipe)
    prefix = workdir.prefix("verdicts", recipe)
    work.create(f"{prefix}/00000.parquet", tables.to_parquet(verdicts, Verdict))
    kept = sum(verdict.kept for verdict in verdicts)
    figures: dict[str, Any] = {
        "recipe": recipe,
        "labels": labels["recipe"],
        "utterances": source["recipe"],
        "teacher": labels["teacher"],
        "judged": len(verdicts),
        "kept_utterances": kept,
        "kept": kept / len(verdicts) if verdicts else 0.0,
        "kept_hours": sum(durations_ms[v.utterance_id] for v in verdicts if v.kept) / 3_600_000,
        "reasons": filtering.reasons(verdicts),
    }
    truth = {each.id: each.text for each in utterances.values() if each.text is not None}
    if not labels["teacher"].startswith("reference@"):
        figures |= label_errors(heard, verdicts, truth, cfg.evaluate.normalizer)
    work.write_json(f"{prefix}/{tables.SUCCESS}", figures)
    return figures


def label_errors(
    labels: Sequence[Label], verdicts: Sequence[Verdict], truth: Mapping[str, str], normal: str
) -> dict[str, float | None]:
    """Word error rate of the labels against human texts, of all and of the kept; nothing where there are none."""
    if not truth:
        return {}
    kept = {verdict.utterance_id for verdict in verdicts if verdict.kept}
    alike: Callable[[str], str] = normalizer(normal)
    pairs = [
        (each.utterance_id, alike(truth[each.utterance_id]), alike(each.text))
        for each in labels
        if each.utterance_id in truth
    ]
    return {
        "wer_before": words.wer((ref, hyp) for _, ref, hyp in pairs).rate,
        "wer_after": words.wer((ref, hyp) for each, ref, hyp in pairs if each in kept).rate,
    }


def shard(cfg: Config) -> dict[str, Any]:
    """Every utterance that was kept lies in one shard, with its label and all that is known of it."""
    work = Store(cfg.work)
    verdicts = finished_verdicts(cfg)
    recipe = shard_recipe(cfg, verdicts)
    done = workdir.success(work, "shards", recipe)
    if done is not None:
        log.info("shard: nothing to do, shards %s are there", recipe)
        return done
    kept = {
        each.utterance_id
        for each in tables.read(work, workdir.prefix("verdicts", verdicts["recipe"]), Verdict)
        if each.kept
    }
    labels = {
        each.utterance_id: each
        for each in tables.read(work, workdir.prefix("labels", verdicts["labels"]), Label)
        if each.utterance_id in kept
    }
    utterances = [
        each
        for each in tables.read(work, workdir.prefix("utterances", verdicts["utterances"]), Utterance)
        if each.id in kept
    ]
    prefix = workdir.prefix("shards", recipe)
    jobs = [
        sharding.Job(index, tuple(members), tuple(labels[each.id] for each in members))
        for index, members in enumerate(sharding.assign(utterances, cfg.shard, cfg.seed))
    ]
    written: list[sharding.Written] = []
    stages = (engine.Stage(name="shard", make=sharding.Writer(work, prefix, cfg.shard), workers=_workers(cfg)),)
    with Progress("shard", len(jobs), "shards") as bar:
        engine.run(
            engine.chunks_of(jobs, 1, lambda job: str(job.index)),
            stages,
            lambda _, rows: written.extend(rows),
            sharding.set_aside,
            cfg.engine,
            bar.to,
        )
    dropped: dict[str, int] = {}
    for each in written:
        for reason in each.dropped.values():
            dropped[reason] = dropped.get(reason, 0) + 1
    figures = {
        "recipe": recipe,
        "verdicts": verdicts["recipe"],
        "teacher": verdicts["teacher"],
        "shards": len(jobs),
        "utterances": sum(each.utterances for each in written),
        "hours": sum(each.duration_ms for each in written) / 3_600_000,
        "num_bytes": sum(each.num_bytes for each in written),
        "dropped": dropped,
    }
    shards.finish(work, prefix, figures)
    return figures


def _workers(cfg: Config) -> int:
    return cfg.engine.workers or world.num_cores()
