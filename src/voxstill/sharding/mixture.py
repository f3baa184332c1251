"""Mix the shards of several corpora: sidecars that name the tars where they are, so no audio is copied.

Each utterance is in the mixture once, from the first corpus that has it. What is held out to judge on is in none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voxstill.storage import shard_format, tables
from voxstill.storage.figures import ShardFigures
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store

DOUBLE, HELD_OUT = "in an earlier corpus", "of a test split"


@dataclass(frozen=True, slots=True)
class Corpus:
    """Finished shards to mix; with `dataset` all their utterances count as of that data set."""

    store: Store
    prefix: str
    figures: ShardFigures
    dataset: str | None = None

    def sidecars(self) -> list[str]:
        """The keys of the sidecars, by number."""
        return [f"{self.prefix}/{shard_format.sidecar_name(index)}" for index in range(self.figures.shards)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureCounts:
    """What a mixture holds, and how many utterances were left out, by reason."""

    shards: int
    utterances: int
    duration_ms: int
    num_bytes: int
    dropped: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Sidecar:
    """A sidecar of a corpus that goes into the mixture, and which of its rows do."""

    corpus: Corpus
    index: int
    is_kept_N: NDArray[np.bool_]


def write(work: Store, prefix: str, corpora: Sequence[Corpus], held_out: tables.IdSet) -> MixtureCounts:
    """Write the sidecars of the mixture below `prefix`; whoever writes the same a second time does no harm.

    DataError where a sidecar of a corpus cannot be read.
    """
    dropped: Counter[str] = Counter()
    chosen = [sidecar for sidecar in _chosen(corpora, held_out, dropped) if sidecar.is_kept_N.any()]
    with ThreadPoolExecutor(tables.READERS) as pool:
        numbers = range(len(chosen))
        sizes = list(pool.map(lambda number: _write(work, prefix, number, chosen[number]), numbers))
    return MixtureCounts(
        shards=len(chosen),
        utterances=sum(int(sidecar.is_kept_N.sum()) for sidecar in chosen),
        duration_ms=sum(duration_ms for duration_ms, _ in sizes),
        num_bytes=sum(num_bytes for _, num_bytes in sizes),
        dropped=dict(dropped),
    )


def _chosen(corpora: Sequence[Corpus], held_out: tables.IdSet, dropped: Counter[str]) -> Iterator[_Sidecar]:
    """Each sidecar of the corpora with its rows to keep; the others are counted in `dropped`."""
    earlier: list[tables.IdSet] = []
    for number, corpus in enumerate(corpora):
        if number:
            earlier.append(tables.IdSet(id_ for ids in _ids(corpora[number - 1]) for id_ in ids))
        for index, ids in enumerate(_ids(corpus)):
            is_held_out_N = held_out.has(ids)
            is_double_N = ~is_held_out_N & np.any(
                [other.has(ids) for other in earlier] or [np.zeros_like(is_held_out_N)], 0
            )
            dropped.update({HELD_OUT: int(is_held_out_N.sum()), DOUBLE: int(is_double_N.sum())})
            yield _Sidecar(corpus, index, ~is_held_out_N & ~is_double_N)


def _ids(corpus: Corpus) -> Iterator[list[str]]:
    """The ids in each sidecar of a corpus."""
    return (table["id"].to_pylist() for table in tables.columns(corpus.store, corpus.sidecars(), Sample, ("id",)))


def _write(work: Store, prefix: str, number: int, sidecar: _Sidecar) -> tuple[int, int]:
    """Write one sidecar of the mixture; milliseconds and bytes of its audio."""
    import pyarrow as pa

    corpus, key = sidecar.corpus, sidecar.corpus.sidecars()[sidecar.index]
    rows = tables.to_arrow(corpus.store.read(key), Sample, corpus.store.uri(key)).filter(pa.array(sidecar.is_kept_N))
    tar = corpus.store.uri(f"{corpus.prefix}/{shard_format.tar_name(sidecar.index)}")
    columns = {"tar": [address or tar for address in rows["tar"].to_pylist()]}
    if corpus.dataset is not None:
        columns["dataset"] = [corpus.dataset] * len(rows)
    for name, values in columns.items():
        place = rows.column_names.index(name)
        rows = rows.set_column(place, rows.schema.field(place), pa.array(values, pa.string()))
    work.create(f"{prefix}/{shard_format.sidecar_name(number)}", tables.arrow_to_parquet(rows))
    return sum(rows["duration_ms"].to_pylist()), sum(rows["num_bytes"].to_pylist())
