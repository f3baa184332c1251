"""shard: write utterances as WebDataset tars with sidecars, with the labels that were kept or without any."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voxstill import engine
from voxstill.audio import read_utterances
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import StorageError
from voxstill.core.metrics.steps import StepMeter
from voxstill.core.monitor import log
from voxstill.labelling import alignment
from voxstill.pipeline import nothing_kept
from voxstill.pipeline.filter import filter_labels
from voxstill.pipeline.index import index
from voxstill.pipeline.label import label_utterances
from voxstill.pipeline.marks import marks_children
from voxstill.pipeline.recipes import (
    finished_shards,
    finished_utterances,
    finished_verdicts,
    label_parts,
    refuse_removed,
    shard_lineage,
    shard_recipe,
    unlabelled_content,
    unlabelled_recipe,
)
from voxstill.sharding import assign, generation, references, word_times, write
from voxstill.sharding.label_texts import LabelTexts
from voxstill.storage import join, lease, parts, removals, tables, workdir
from voxstill.storage.figures import ShardFigures, VerdictFigures
from voxstill.storage.store import Store

_IDS_SHOWN = 5
"""Of the utterances whose source has changed; the log has all."""


@marks_children("shard")
def shard(cfg: Config, *, part: str | None = None) -> ShardFigures:
    """Every utterance that was kept lies in one shard, with its label and all that is known of it.

    With `part`, K/N or `auto`, only every N-th shard is written; the figures count all. ConfigError if it is none,
    DataError if the filter kept nothing.
    """
    own = parts.requested(part)
    verdicts = finished_verdicts(cfg)
    nothing_kept.refuse(Store(cfg.work), verdicts)
    if verdicts.labelled is not None:
        log.warning(
            "shard: the verdicts are of %d labels, which were not all: when there are more, run `voxstill filter` "
            "and `voxstill shard` again, which writes a new generation",
            verdicts.labelled,
        )

    def joined(work: Store) -> list[join.Part]:
        return label_parts(cfg, work, verdicts.utterances, verdicts.labels)

    return _shard(cfg, shard_recipe(cfg, verdicts), joined, verdicts, own)


@marks_children("shard")
def shard_unlabelled(cfg: Config, *, part: str | None = None) -> ShardFigures:
    """Every utterance but those of the test split, and those removed, lies in one shard, with no label.

    With `part` as for `shard`.
    """
    own = parts.requested(part)
    source = finished_utterances(cfg)

    def joined(work: Store) -> list[join.Part]:
        return join.unlabelled(work, workdir.prefix("utterances", source.recipe))

    return _shard(cfg, unlabelled_recipe(cfg), joined, None, own)


def audio_shards(cfg: Config) -> ShardFigures:
    """Shards to listen to, labelled or not: the only ones that are there; of several, those of this configuration
    without labels, as nothing is left out of them, else with; and where there are none, new ones without labels.
    """
    work = Store(cfg.work)
    recipes = workdir.finished_recipes(work, "shards")
    if len(recipes) == 1:
        shards = workdir.named(work, ShardFigures, recipes[0])
        refuse_removed(work, shards)
        return shards
    if not recipes or unlabelled_recipe(cfg) in recipes:
        return shard_unlabelled(cfg)
    return finished_shards(cfg)


def _shard(
    cfg: Config,
    recipe: str,
    joined: Callable[[Store], list[join.Part]],
    verdicts: VerdictFigures | None,
    part: parts.Part | None,
) -> ShardFigures:
    """The shards of what was kept by these verdicts; without verdicts, of everything and without labels."""
    work = Store(cfg.work)
    done = workdir.success(work, ShardFigures, recipe)
    if done is not None:
        log.info("shard: nothing to do, shards %s exist", recipe)
        return done
    with parts.hold(work, workdir.prefix("shards", recipe), "shard", part, cfg.engine) as held:
        return _write(cfg, recipe, joined(work), verdicts, held, part)


@dataclass(frozen=True, slots=True)
class _Assignment:
    """Which utterances are in which shard: new ones in `windows`, and those that earlier shards hold in `reused`."""

    kept: assign.KeptUtterances
    windows: Sequence[Sequence[NDArray[np.int32]]]
    reused: Sequence[references.Reference]
    generation: int | None

    @property
    def sizes(self) -> list[int]:
        """Utterances in each new shard."""
        return [len(members) for window in self.windows for members in window]


def _assign(
    cfg: Config, recipe: str, joined: Sequence[join.Part], verdicts: VerdictFigures | None, lineage: str
) -> _Assignment:
    work, in_place = Store(cfg.work), cfg.shard.format == "in_place"
    utterances = _utterances(cfg, verdicts)
    listing = tables.parts_hash(work, utterances)
    kept_ids = None if verdicts is None else assign.kept_ids(work, workdir.prefix("verdicts", verdicts.recipe))
    content = unlabelled_content(cfg) if verdicts is None else None
    base = generation.begin(work, workdir.prefix("shards", recipe), None if in_place else lineage, listing, content)
    removed = removals.of(work, utterances)
    reused: list[references.Reference] = []
    if base is not None:
        texts = None if verdicts is None else LabelTexts(work, joined)
        reused = generation.reusable(base, kept_ids, removals.of(work), texts)
    earlier = () if base is None else generation.ids(base, reused)
    without = tables.IdSet(itertools.chain(earlier, removed)) if base is not None or removed else None
    kept = assign.survey(work, joined, kept_ids, without=without, by_tar=in_place)
    windows = assign.assign_in_place(kept) if in_place else assign.assign(kept, cfg.shard, cfg.seed)
    return _Assignment(kept, windows, reused, None if base is None else (base.figures.generation or 1) + 1)


def _write(
    cfg: Config,
    recipe: str,
    joined: list[join.Part],
    verdicts: VerdictFigures | None,
    held: lease.Lease,
    part: parts.Part | None,
) -> ShardFigures:
    work, prefix = Store(cfg.work), workdir.prefix("shards", recipe)
    lineage = shard_lineage(cfg, verdicts)
    assigned = _assign(cfg, recipe, joined, verdicts, lineage)
    sizes = assigned.sizes
    own = {index for index in range(len(sizes)) if part is None or part.takes(f"{index:x}")}
    written: list[write.WrittenShard] = []
    changed: list[str] = []

    def count_written() -> set[int]:
        there = write.written_shards(work, prefix).intersection(range(len(sizes)))
        new = sorted(there - {row.index for row in written})
        planned = {index: sizes[index] for index in new}
        written.extend(write.written_counts(work, prefix, planned, cfg.shard.max_ms))
        return there

    def commit(_: engine.Chunk, rows: Sequence[write.WrittenShard]) -> None:
        held.check()
        for row in rows:
            if row.changed:
                log.warning("shard: %d is not written: the source of %s has changed", row.index, ", ".join(row.changed))
                changed.extend(row.changed)
                continue
            written.append(row)
            meter.count_done(row.duration_ms, (reason for reason, count in row.dropped.items() for _ in range(count)))

    there = count_written()
    aligned = _aligned_parts(cfg, verdicts)
    jobs = assign.jobs(work, joined, assigned.kept, assigned.windows, there | set(range(len(sizes))) - own, aligned)
    chunks = engine.chunks_of(jobs, 1, lambda job: str(job.index))
    writer = write.ShardWriter(work, prefix, cfg.shard, read_utterances.reading(cfg))
    stages = (engine.Stage(name="shard", work=writer, workers=cfg.engine.workers, resources=cfg.engine.resources),)
    with StepMeter("shard", len(own - there), "shards") as meter:
        engine.run(chunks, stages, commit, write.set_aside, cfg.engine, meter)
    if changed:
        raise _changed_error(changed)
    left = set(range(len(sizes))) - count_written()
    finished = part is None or parts.is_finished("shard", part, (f"{index:x}" for index in left))
    if finished:
        held.check()
        written += generation.write(work, prefix, assigned.reused, len(sizes))
    figures = dataclasses.replace(
        _figures(cfg, recipe, verdicts, written),
        shards=len(sizes) + len(assigned.reused),
        lineage=None if cfg.shard.format == "in_place" else lineage,
        generation=assigned.generation,
        finished=None if finished else False,
    )
    if finished:
        workdir.finish(work, figures)
    return figures


def _changed_error(ids: Sequence[str]) -> StorageError:
    """A source may be as it was again, so this ends as where one cannot be read; all other shards are written."""
    shown = ", ".join(f"`{id_}`" for id_ in ids[:_IDS_SHOWN]) + (", …" if len(ids) > _IDS_SHOWN else "")
    return StorageError(
        f"the source of {len(ids):,} utterance{'s' * (len(ids) > 1)} has changed since it was indexed",
        code="source-changed",
        why=f"{shown}: shards without them would be final, and no later run would take them in",
        fix="put their files back and run `voxstill shard` again; where they have changed for good, run `voxstill "
        "remove --ids` with these ids, then `voxstill filter` and `voxstill shard`",
    )


def _aligned_parts(cfg: Config, verdicts: VerdictFigures | None) -> word_times.AlignedParts | None:
    """The alignments of the labels, where labels are cut and there is an aligner."""
    if verdicts is None or cfg.shard.max_ms is None or cfg.filter.aligner is None:
        return None
    table = alignment.task(cfg.filter.aligner, verdicts.labels).prefix
    beside = join.parts(Store(cfg.work), _utterances(cfg, verdicts), table, cfg.engine)
    return word_times.AlignedParts({part.utterances: part.labels for part in beside}, cfg.shard.max_ms)


def _figures(
    cfg: Config, recipe: str, verdicts: VerdictFigures | None, written: Sequence[write.WrittenShard]
) -> ShardFigures:
    dropped: Counter[str] = Counter()
    uncut: Counter[str] = Counter()
    for row in written:
        dropped.update(row.dropped)
        uncut.update(row.uncut)
    if uncut:
        reasons = ", ".join(f"{reason}: {num:,}" for reason, num in uncut.items())
        log.warning("shard: %d samples remain longer than `shard.max_ms`: %s", uncut.total(), reasons)
    return ShardFigures(
        recipe=recipe,
        verdicts=None if verdicts is None else verdicts.recipe,
        teacher=None if verdicts is None else verdicts.teacher,
        unlabelled=True if verdicts is None else None,
        utterances=sum(row.utterances for row in written),
        hours=sum(row.duration_ms for row in written) / 3_600_000,
        num_bytes=sum(row.num_bytes for row in written),
        dropped=dict(dropped),
        uncut=None if cfg.shard.max_ms is None else dict(uncut),
    )


def _utterances(cfg: Config, verdicts: VerdictFigures | None) -> str:
    return workdir.prefix("utterances", finished_utterances(cfg).recipe if verdicts is None else verdicts.utterances)


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


def repack_sources(cfg: Config, sources: Sequence[str], *overrides: str) -> ShardFigures:
    """Repack tars or folders into `cfg.work`, by the configuration with `REPACK` and then the overrides over it."""
    source = f"source.uri={json.dumps(list(sources))}"
    return repack(config.changed(cfg, source, *REPACK, *overrides))


@marks_children("shard")
def repack(cfg: Config) -> ShardFigures:
    """Shards of everything in the source that has a human text; what is left out is counted by reason."""
    indexed, labelled = index(cfg), label_utterances(cfg)
    filtered = filter_labels(cfg)
    figures = shard(cfg)
    left_out = Counter({"damaged file": indexed.damaged, "duplicate": indexed.duplicates, "no text": labelled.failed})
    left_out.update({name.replace("_", " "): num for name, num in filtered.reasons.items() if name != "failed"})
    left_out.update(figures.dropped)
    left_out[removals.REMOVED] = filtered.removed or 0
    num_known = indexed.utterances + (indexed.removed or 0)
    left_out["of the test split"] = num_known - filtered.judged - (filtered.removed or 0)
    counts = {name: num for name, num in left_out.items() if num > 0}
    if counts:
        log.warning("shard: left out: %s", ", ".join(f"{num:,} {name}" for name, num in counts.items()))
    return dataclasses.replace(figures, left_out=counts)
