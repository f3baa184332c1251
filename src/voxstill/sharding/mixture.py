"""Mix the shards of several corpora: sidecars that name the tars where they are, so no audio is copied.

Each utterance is in the mixture once, from the first corpus that has it. What is held out to judge on is in none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from voxstill.sharding import references
from voxstill.sharding.references import Reference, ShardSet
from voxstill.sharding.write import WrittenShard
from voxstill.storage import tables
from voxstill.storage.store import Store

DOUBLE, HELD_OUT = "in an earlier corpus", "of a test split"


@dataclass(frozen=True, slots=True)
class Mixture:
    """The shards of a mixture, and how many utterances were left out, by reason."""

    shards: Sequence[WrittenShard]
    dropped: Mapping[str, int]


def write(work: Store, prefix: str, corpora: Sequence[ShardSet], held_out: tables.IdSet) -> Mixture:
    """Write the sidecars of the mixture below `prefix`; whoever writes the same a second time does no harm.

    DataError where a sidecar of a corpus cannot be read.
    """
    dropped: Counter[str] = Counter()
    chosen = [reference for reference in _chosen(corpora, held_out, dropped) if reference.is_kept_N.any()]
    with ThreadPoolExecutor(tables.READERS) as pool:
        written = pool.map(lambda number: references.write(work, prefix, number, chosen[number]), range(len(chosen)))
        return Mixture(list(written), dict(dropped))


def _chosen(corpora: Sequence[ShardSet], held_out: tables.IdSet, dropped: Counter[str]) -> Iterator[Reference]:
    """Each shard of the corpora with its rows to keep; the others are counted in `dropped`."""
    earlier: list[tables.IdSet] = []
    for number, corpus in enumerate(corpora):
        if number:
            earlier.append(tables.IdSet(id_ for ids in corpora[number - 1].utterances() for id_ in ids))
        for index, ids in enumerate(corpus.utterances()):
            is_held_out_N = held_out.has(ids)
            is_double_N = np.any([other.has(ids) for other in earlier] or [np.zeros_like(is_held_out_N)], axis=0)
            is_double_N &= ~is_held_out_N
            dropped.update({HELD_OUT: int(is_held_out_N.sum()), DOUBLE: int(is_double_N.sum())})
            yield Reference(corpus, index, ~is_held_out_N & ~is_double_N)
