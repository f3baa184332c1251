"""Which samples of earlier shards have the text that their label has now: labels may have been made again since."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from voxstill.core.records import Label, hash64
from voxstill.storage import join, shard_format, tables
from voxstill.storage.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLE_TEXT = (*shard_format.UTTERANCE, "text")
"""Columns for `LabelTexts.agree`."""


class LabelTexts:
    """The hashes of all texts by the ids of their utterances: 28 bytes for each label."""

    def __init__(self, work: Store, parts: Sequence[join.Part]) -> None:
        keys = dict.fromkeys(key for part in parts for key in part.labels)
        hashes = array("Q")

        def ids() -> Iterator[list[str]]:
            for table in tables.columns(work, keys, Label, ("utterance_id", "text")):
                hashes.extend(_hash([text]) for text in table["text"].to_pylist())
                yield from ([id_] for id_ in table["utterance_id"].to_pylist())

        self._places = tables.IdMap(ids())
        self._hash_L = np.frombuffer(hashes, np.uint64)

    def agree(self, samples: pa.Table) -> NDArray[np.bool_]:
        """Whether each sample has the text of the label of its utterance; those cut from one have it together, [N]."""
        ids = shard_format.utterance_ids(samples)
        texts: dict[str, list[str]] = {}
        for id_, text in zip(ids, samples["text"].to_pylist(), strict=True):
            texts.setdefault(id_, []).append(text)
        place_U = self._places.of(list(texts))
        hash_U = np.fromiter(map(_hash, texts.values()), np.uint64, len(texts))
        is_same_U = place_U >= 0
        is_same_U[is_same_U] = self._hash_L[place_U[is_same_U]] == hash_U[is_same_U]
        is_same = dict(zip(texts, is_same_U.tolist(), strict=True))
        return np.array([is_same[id_] for id_ in ids], np.bool_)


def _hash(texts: Iterable[str]) -> int:
    """Equal for a text and for its parts, whatever the spaces at which it was cut."""
    return hash64("".join("".join(texts).split()))
