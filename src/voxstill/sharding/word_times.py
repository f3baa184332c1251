"""Word times by forced alignment, for labels that are to be cut and whose teacher gives none."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from voxstill.core.records import Alignment
from voxstill.storage import join, tables
from voxstill.storage.arrays import numpy_array
from voxstill.storage.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = ("utterance_id", "text", "words")


@dataclass(frozen=True, slots=True)
class AlignedParts:
    """The parts of a table of alignments by the part of utterances that they are of; labels of more audio are cut."""

    keys: Mapping[str, Sequence[str]]
    max_ms: int


def read(work: Store, chosen: Sequence[join.Part], aligned: AlignedParts | None) -> Iterator[pa.Table | None]:
    """The alignments of each of these parts as one Arrow table, None without any; read ahead."""
    import pyarrow as pa

    keys_P = [() if aligned is None else aligned.keys.get(part.utterances, ()) for part in chosen]
    read_ahead = tables.columns(work, itertools.chain.from_iterable(keys_P), Alignment, _COLUMNS)
    for keys in keys_P:
        yield pa.concat_tables(itertools.islice(read_ahead, len(keys))) if keys else None


def added(labels: pa.Table, utterances: pa.Table, alignments: pa.Table, max_ms: int) -> pa.Table:
    """The labels of these utterances, row by row, with words of the alignments where they have none and are too long.

    An alignment is of one text: that of a label which was changed since has no say.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    is_long_N = pc.greater(pc.subtract(utterances["end_ms"], utterances["start_ms"]), max_ms)
    has_no_words_N = pc.equal(pc.list_value_length(labels["words"]), 0)
    row_K = np.flatnonzero(numpy_array(pc.and_(is_long_N, has_no_words_N)))
    timed = alignments.filter(pc.is_valid(alignments["words"]))
    place_of = {key: i for i, key in enumerate(_keys(timed), start=len(labels))}
    place_N = np.arange(len(labels))
    for row, key in zip(row_K.tolist(), _keys(labels.take(row_K)), strict=True):
        place_N[row] = place_of.get(key, row)
    field = labels.schema.field("words")
    words = pa.chunked_array([*labels["words"].chunks, *timed["words"].cast(field.type).chunks], field.type)
    return labels.set_column(labels.schema.get_field_index("words"), field, words.take(place_N))


def _keys(table: pa.Table) -> Iterator[tuple[str, str]]:
    return zip(table["utterance_id"].to_pylist(), table["text"].to_pylist(), strict=True)
