"""Say once where what a step reads is older than what is before it, as after an index that has grown.

A step reads the finished table before it. Where earlier steps have something new, it works on what was there before, or
has nothing to do: then the log names the first step to run.
"""

from __future__ import annotations

import functools

from voxstill.core.config import Config, identity, sources_of
from voxstill.core.errors import DataError
from voxstill.core.monitor import log
from voxstill.core.records import Utterance
from voxstill.filtering.verdicts import SPLITS
from voxstill.labelling.so_far import num_labelled
from voxstill.storage import tables, workdir
from voxstill.storage.figures import IndexFigures, LabelFigures, ShardFigures, VerdictFigures
from voxstill.storage.store import Store


def tell_other_index(cfg: Config, source: IndexFigures) -> None:
    """Warn of other utterances than those of this configuration, where it says of what and how to index.

    DataError if one of `source.test_speakers` or `source.dev_speakers` is in other splits there and not in that.
    """
    _refuse_learning_from_held_out(cfg, source)
    sources = sources_of(cfg.source)
    # the configuration of an experiment has every option set: one that is at its default says nothing
    if any(one.uri for one in sources) or any(map(identity, (*sources, cfg.segment, cfg.audio, cfg.diarize))):
        _warn(
            f"`{Store(cfg.work).root}`: the utterances {source.recipe}, the only ones there, were made with other "
            "options of `index` "
            "and are used: to make new ones, run `voxstill index` first"
        )


def _refuse_learning_from_held_out(cfg: Config, source: IndexFigures) -> None:
    sources = sources_of(cfg.source)
    wanted = [("dev", speaker) for one in sources for speaker in one.dev_speakers]
    wanted += [("test", speaker) for one in sources for speaker in one.test_speakers]
    if not wanted:
        return
    work = Store(cfg.work)
    keys = tables.parts(work, workdir.prefix("utterances", source.recipe))
    splits: dict[str, set[str]] = {}
    for part in tables.columns(work, keys, Utterance, ("speaker", "split")):
        for row in part.group_by(["speaker", "split"]).aggregate([]).to_pylist():
            splits.setdefault(row["speaker"], set()).add(row["split"])
    for split, speaker in wanted:
        # of several sources, another may have a speaker of this name
        if splits.get(speaker, {split}).isdisjoint({split}):
            raise DataError(
                f"`source.{split}_speakers` contains `{speaker}`, whose split is "
                f"{' and '.join(sorted(splits[speaker]))} "
                f"in the only utterances, {source.recipe}, in `{work.root}`",
                code="step-outdated",
                why="they were indexed with other options, and `voxstill index` assigns the splits",
                fix="run `voxstill index` with these options first",
            )


def tell_unlabelled(work: Store, source: IndexFigures, labels: LabelFigures) -> bool:
    """Warn of utterances that have no label, and return whether there are any.

    Labels of other utterances, as of another segmentation, count for nothing.
    """
    utterances = workdir.prefix("utterances", source.recipe)
    now = tables.parts_hash(work, utterances)
    num = 0 if labels.source == now else _num_unlabelled(work.root, utterances, labels.recipe, (now, labels.listing))
    if num > 0:
        _warn(f"`{work.root}`: {num:,} utterances have no label yet and are left out: run `voxstill label` first")
    return num > 0


def tell_unjudged(work: Store, source: IndexFigures, verdicts: VerdictFigures, wanted: str) -> None:
    """Warn of utterances that have no verdict, or of other verdicts than those of the recipe `wanted`."""
    rows = sum(source.splits.get(split, 0) for split in SPLITS)
    num = rows + (source.removed or 0) - verdicts.judged - (verdicts.removed or 0)
    if verdicts.utterances == source.recipe and num > 0:
        _warn(f"`{work.root}`: {num:,} utterances have no verdict yet and are left out: run `voxstill filter` first")
    elif verdicts.recipe != wanted:
        _warn(
            f"`{work.root}`: the verdicts {verdicts.recipe}, the only ones there, were made from other labels or "
            "with other options "
            f"of `filter` and are used: to make new ones, run `voxstill filter` first"
        )


def tell_unsharded(work: Store, shards: ShardFigures, wanted: str) -> None:
    """Warn of other shards than those of the recipe `wanted`."""
    if shards.recipe != wanted:
        _warn(
            f"`{work.root}`: the shards {shards.recipe}, the only ones there, were made from other verdicts or "
            "with other options "
            f"of `shard` and are used: to make new ones, run `voxstill shard` first"
        )


@functools.lru_cache(maxsize=16)
def _num_unlabelled(root: str, utterances: str, labels: str, _: tuple[str | None, ...]) -> int:
    """Utterances without a label: the ids of both tables are read, once for each of their states."""
    work = Store(root)
    total = sum(len(part) for part in tables.columns(work, tables.parts(work, utterances), Utterance, ("id",)))
    return total - num_labelled(work, utterances, tables.parts(work, workdir.prefix("labels", labels)))


@functools.cache
def _warn(text: str) -> None:
    log.warning("%s", text)
