"""Sidecars that name the tars of other shards, so that their utterances are in another set and no audio is copied."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voxstill.sharding.write import WrittenShard
from voxstill.storage import shard_format, tables
from voxstill.storage.figures import ShardFigures
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store


@dataclass(frozen=True, slots=True)
class ShardSet:
    """Finished shards; with `dataset` all their utterances count as of that data set."""

    store: Store
    prefix: str
    figures: ShardFigures
    dataset: str | None = None

    def sidecars(self) -> list[str]:
        """The keys of the sidecars, by number."""
        return [f"{self.prefix}/{shard_format.sidecar_name(index)}" for index in range(self.figures.shards)]

    def utterances(self) -> Iterator[list[str]]:
        """The ids of the utterances in each sidecar, by number: of samples cut from one, that of the utterance."""
        sidecars = tables.columns(self.store, self.sidecars(), Sample, shard_format.UTTERANCE)
        return map(shard_format.utterance_ids, sidecars)


@dataclass(frozen=True, slots=True)
class Reference:
    """A shard of a set, and which rows of its sidecar are in the new one."""

    shards: ShardSet
    index: int
    is_kept_N: NDArray[np.bool_]


def write(work: Store, prefix: str, number: int, reference: Reference, *, here: bool = False) -> WrittenShard:
    """Write sidecar `number` below `prefix`, unless it is there: the rows to keep, with the address of their tar.

    With `here` both sets lie in one work folder, and the address is the key in it: a work folder may be moved.
    """
    import pyarrow as pa

    shards, key = reference.shards, reference.shards.sidecars()[reference.index]
    rows = tables.to_arrow(shards.store.read(key), Sample, shards.store.uri(key)).filter(pa.array(reference.is_kept_N))
    own = f"{shards.prefix}/{shard_format.tar_name(reference.index)}"
    tars = [tar or own for tar in rows["tar"].to_pylist()]
    columns = {"tar": tars if here else [shard_format.tar_address(shards.store, tar) for tar in tars]}
    if shards.dataset is not None:
        columns["dataset"] = [shards.dataset] * len(rows)
    for name, values in columns.items():
        place = rows.column_names.index(name)
        rows = rows.set_column(place, rows.schema.field(place), pa.array(values, pa.string()))
    work.create(f"{prefix}/{shard_format.sidecar_name(number)}", tables.arrow_to_parquet(rows))
    return WrittenShard(
        index=number,
        utterances=len(rows),
        duration_ms=sum(rows["duration_ms"].to_pylist()),
        num_bytes=sum(rows["num_bytes"].to_pylist()),
        dropped={},
        uncut={},
    )
