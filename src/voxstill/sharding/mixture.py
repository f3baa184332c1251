"""Mix the shards of several corpora: sidecars that name the tars where they are, so no audio is copied.

Each utterance is in the mixture once, from the first corpus that has it. What is held out to judge on is in none. Two
utterances are the same where they are one stretch of one file, or have one id and are not known to be other audio.
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

DOUBLE, HELD_OUT, REMOVED = "in an earlier corpus", "of a test split", "removed"


@dataclass(frozen=True, slots=True)
class Mixture:
    """The shards of a mixture, and how many utterances were left out, by reason."""

    shards: Sequence[WrittenShard]
    dropped: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The ids of a corpus that are left out: those held out to judge on, those that were removed from another work
    folder, and those of audio in an earlier corpus. Those of `other` audio than earlier corpora have under the same id
    are not."""

    held_out: tables.IdSet
    removed: tables.IdSet
    double: tables.IdSet
    other: tables.IdSet


def write(work: Store, prefix: str, corpora: Sequence[ShardSet], left_out: Sequence[LeftOut]) -> Mixture:
    """Write the sidecars of the mixture below `prefix`; writing the same a second time does no harm.

    `left_out` is beside what earlier corpora have under the same id. DataError if a sidecar of a corpus cannot be
    read.
    """
    dropped: Counter[str] = Counter()
    chosen = [reference for reference in _chosen(corpora, left_out, dropped) if reference.is_kept_N.any()]
    with ThreadPoolExecutor(tables.READERS) as pool:
        written = pool.map(lambda number: references.write(work, prefix, number, chosen[number]), range(len(chosen)))
        return Mixture(list(written), dict(dropped))


def _chosen(corpora: Sequence[ShardSet], left_out: Sequence[LeftOut], dropped: Counter[str]) -> Iterator[Reference]:
    """Each shard of the corpora with its rows to keep; the others are counted in `dropped`."""
    earlier: list[tables.IdSet] = []
    for number, (corpus, left) in enumerate(zip(corpora, left_out, strict=True)):
        if number:
            earlier.append(tables.IdSet(id_ for ids in corpora[number - 1].utterances() for id_ in ids))
        for index, ids in enumerate(corpus.utterances()):
            is_held_out_N = left.held_out.has(ids)
            is_known_N = np.any([of_corpus.has(ids) for of_corpus in (tables.IdSet(()), *earlier)], axis=0)
            is_double_N = left.double.has(ids) | (is_known_N & ~left.other.has(ids))
            is_removed_N = left.removed.has(ids) & ~is_held_out_N
            is_double_N &= ~is_held_out_N & ~is_removed_N
            reasons = {HELD_OUT: is_held_out_N, REMOVED: is_removed_N, DOUBLE: is_double_N}
            dropped.update({reason: int(is_left_out_N.sum()) for reason, is_left_out_N in reasons.items()})
            yield Reference(corpus, index, ~(is_held_out_N | is_removed_N | is_double_N))
