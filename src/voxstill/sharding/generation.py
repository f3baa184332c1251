"""Generations of shards: what an earlier generation holds stays in its tars, and only what is new is written.

A corpus that grows is sharded again and again. Each generation is a whole set of shards: new tars, and sidecars that
name the tars of earlier generations. Two generations are of one lineage where they differ in what was indexed and
labelled alone, not in an option.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from voxstill.core.errors import DataError
from voxstill.sharding import references
from voxstill.sharding.label_texts import SAMPLE_TEXT, LabelTexts
from voxstill.sharding.references import Reference, ShardSet
from voxstill.sharding.write import WrittenShard
from voxstill.storage import checked_json, shard_format, tables, workdir
from voxstill.storage.arrays import numpy_array
from voxstill.storage.figures import ShardFigures
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import MAX_JSON_BYTES, Store

LEAST_KEPT = 0.5
"""A tar of which less than this share of the bytes is still kept is not named: what is kept of it is written again."""
BASE = "_base.json"
"""Below the prefix of shards: the recipe of the generation that they continue from."""


def begin(work: Store, prefix: str, lineage: str | None, source: str, content: str | None = None) -> ShardSet | None:
    """The generation that the shards below `prefix` continue from: the newest finished one of the lineage, if any.

    The first answer is written down with the listing of the utterances, which is `source`, and with their `content`
    where it is given: who continues with unfinished shards gets the same.
    """
    if not work.exists(f"{prefix}/{BASE}"):
        finished = [workdir.named(work, ShardFigures, recipe) for recipe in workdir.finished_recipes(work, "shards")]
        generations = [figures for figures in finished if lineage is not None and figures.lineage == lineage]
        newest = max(generations, key=lambda figures: (figures.generation or 1, figures.recipe), default=None)
        values = {"recipe": None if newest is None else newest.recipe, "source": source}
        values |= {} if content is None else {"content": content}
        work.create(f"{prefix}/{BASE}", checked_json.encode(values))
    if (recipe := base_of(work, prefix)) is None:
        return None
    return ShardSet(work, workdir.prefix("shards", recipe), workdir.named(work, ShardFigures, recipe))


def newest(shards: Sequence[ShardFigures]) -> list[ShardFigures]:
    """Of every lineage the newest generation, and all shards without a lineage."""
    by_lineage: dict[str, ShardFigures] = {}
    for figures in sorted(shards, key=lambda figures: (figures.generation or 1, figures.recipe)):
        by_lineage[figures.lineage or figures.recipe] = figures
    return list(by_lineage.values())


def source_of(work: Store, prefix: str) -> str | None:
    """The listing of the utterances that the shards below `prefix` were started with; None if it is not known."""
    return _known(work, prefix, "source")


def content_of(work: Store, prefix: str) -> str | None:
    """The content of these utterances, as `begin` got it; None if it is not known."""
    return _known(work, prefix, "content")


def base_of(work: Store, prefix: str) -> str | None:
    """The recipe of the generation that the shards below `prefix` continue from, None if none; DataError if what
    `begin` wrote down is not what it wrote."""
    return _value(work, prefix, "recipe")


def has_its_base(work: Store, prefix: str) -> bool:
    """Whether the shards below `prefix` go on from none, or from a generation that is finished: their plan is known."""
    recipe = base_of(work, prefix)
    return recipe is None or work.exists(f"{workdir.prefix('shards', recipe)}/{tables.SUCCESS}")


def _known(work: Store, prefix: str, name: str) -> str | None:
    """What `begin` wrote down; None also where it is damaged: it is made again."""
    try:
        return _value(work, prefix, name)
    except DataError:
        return None


def _value(work: Store, prefix: str, name: str) -> str | None:
    key = f"{prefix}/{BASE}"
    data = work.read_or_none(key, MAX_JSON_BYTES)
    value = None if data is None else checked_json.decode(data, work.uri(key)).get(name)
    return None if value is None else str(value)


def reusable(
    base: ShardSet,
    kept: tables.IdSet | None,
    removed: Collection[str] = (),
    texts: LabelTexts | None = None,
) -> list[Reference]:
    """The shards of a generation that a new one names, and their utterances that are kept; without `kept` all are.

    With `texts` an utterance whose label has another text now is none of them. A tar that holds the audio of one of the
    `removed` utterances is not named.
    """
    sizes: dict[str, int] = {}
    holds_removed: dict[str, bool] = {}
    references = []
    names = (*SAMPLE_TEXT, "tar", "num_bytes")
    for index, rows in enumerate(tables.columns(base.store, base.sidecars(), Sample, names)):
        ids = shard_format.utterance_ids(rows)
        is_kept_N = np.ones(len(ids), np.bool_) if kept is None else kept.has(ids)
        if texts is not None:
            is_kept_N = is_kept_N & texts.agree(rows)
        tar = (rows["tar"][0].as_py() if ids else None) or f"{base.prefix}/{shard_format.tar_name(index)}"
        if tar not in sizes:
            sizes |= {entry.key: entry.num_bytes for entry in base.store.list(tar.rpartition("/")[0])}
        if removed and tar not in holds_removed:
            holds_removed[tar] = _holds_any(base, tar, removed)
        if holds_removed.get(tar):
            continue
        kept_bytes = int(numpy_array(rows["num_bytes"])[is_kept_N].sum())
        if is_kept_N.any() and kept_bytes >= LEAST_KEPT * sizes.get(tar, np.inf):
            references.append(Reference(base, index, is_kept_N))
    return references


def _holds_any(base: ShardSet, tar: str, removed: Collection[str]) -> bool:
    """Whether a tar holds one of the utterances: the sidecar written with it knows, a later one may have dropped it."""
    written = tables.columns(base.store, [tar.removesuffix(".tar") + ".parquet"], Sample, shard_format.UTTERANCE)
    return any(id_ in removed for table in written for id_ in shard_format.utterance_ids(table))


def ids(base: ShardSet, chosen: Sequence[Reference]) -> Iterator[str]:
    """The ids of the utterances that are kept in the chosen shards of a generation."""
    by_index: dict[int, NDArray[np.bool_]] = {reference.index: reference.is_kept_N for reference in chosen}
    for index, shard_ids in enumerate(base.utterances()):
        if index in by_index:
            yield from (id_ for id_, is_kept in zip(shard_ids, by_index[index].tolist(), strict=True) if is_kept)


def write(work: Store, prefix: str, chosen: Sequence[Reference], first: int) -> list[WrittenShard]:
    """Write the sidecars that name the tars of the chosen shards, numbered from `first`."""
    with ThreadPoolExecutor(tables.READERS) as pool:
        return list(
            pool.map(
                lambda numbered: references.write(work, prefix, first + numbered[0], numbered[1], here=True),
                enumerate(chosen),
            )
        )
