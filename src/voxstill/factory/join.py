"""Each part of a table of utterances meets the parts of labels that hold its labels; neither table is held in memory.

A part of labels is named after the ids in it, so those of a chunk of utterances are found by name and nothing is
opened. What was labelled with another `engine.chunk`, or is the rest of such a chunk, is found by an index of its ids.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from voxstill import tables
from voxstill.factory import engine
from voxstill.records import Label, Utterance
from voxstill.store import Store


@dataclass(frozen=True, slots=True)
class Part:
    """A part of utterances and, in the order of their names, the parts in which the labels of its utterances are."""

    utterances: str
    labels: tuple[str, ...]
    labelled: bool = True
    """Whether each utterance that was kept must have a label."""

    @property
    def name(self) -> str:
        """That of the part of utterances, which depends on what is in it."""
        return self.utterances.rpartition("/")[2].removesuffix(".parquet")


def parts(work: Store, utterances: str, labels: str, size: int) -> list[Part]:
    """One `Part` for each part of the table `utterances`, in the order of their names, whatever `size` is.

    `labels` is a table of labels, or another that has their `utterance_id`. What is cut by `size`, which is
    `engine.chunk`, is found without opening a part of it.
    """
    keys = tables.parts(work, utterances)
    there = dict.fromkeys(tables.parts(work, labels))
    named = []
    for ids in _ids(work, keys, Utterance, "id"):
        chunks = (f"{labels}/{engine.chunk_id(some)}.parquet" for some in _cut(ids, size))
        named.append([key for key in chunks if key in there])
    others = sorted(there.keys() - set(itertools.chain.from_iterable(named)))
    if others:
        places = tables.Places(_ids(work, others, Label, "utterance_id"))
        for found, ids in zip(named, _ids(work, keys, Utterance, "id"), strict=True):
            found += [others[place] for place in set(places.of(ids).tolist()) if place >= 0]
    return [Part(key, tuple(sorted(found))) for key, found in zip(keys, named, strict=True)]


def unlabelled(work: Store, utterances: str) -> list[Part]:
    """One `Part` for each part of the table, in the order of their names, of utterances that are to have no labels."""
    return [Part(key, (), labelled=False) for key in tables.parts(work, utterances)]


def columns(
    work: Store,
    wanted: Sequence[Part],
    utterances: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
) -> Iterator[tuple[Any, Any]]:
    """Utterances and labels of each part as two Arrow tables, all columns or those named; the next are read ahead."""
    import pyarrow as pa

    fields = [field for field in tables.schema(Label) if labels is None or field.name in labels]
    empty = pa.schema(fields).empty_table()
    heard = tables.columns(work, (key for part in wanted for key in part.labels), Label, labels)
    said = tables.columns(work, (part.utterances for part in wanted), Utterance, utterances)
    for part, rows in zip(wanted, said, strict=True):
        yield rows, pa.concat_tables([empty, *itertools.islice(heard, len(part.labels))])


def rows_of(ids: Sequence[str], labelled: Sequence[str]) -> list[int | None]:
    """Where the label of each id is among `labelled`: of an utterance with two labels the first counts, wherever."""
    first = {id_: len(labelled) - back for back, id_ in enumerate(reversed(labelled), start=1)}
    return [first.get(id_) for id_ in ids]


def _ids(work: Store, keys: Iterable[str], kind: Any, name: str) -> Iterator[list[str]]:
    return (table[name].to_pylist() for table in tables.columns(work, keys, kind, [name]))


def _cut(ids: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (ids[start : start + size] for start in range(0, len(ids), size))
