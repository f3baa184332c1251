"""Join utterances with their labels part by part: neither table is held in memory.

A part of labels is named after the ids in it, so those of a chunk of utterances are found by name and nothing is
opened. What was labelled in other chunks (another `engine.chunk`, another version), or is the rest of one, is found by
an index of its ids.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from voxstill.core.config import Engine
from voxstill.core.records import Label, Utterance
from voxstill.storage import manifest, same_audio, tables
from voxstill.storage.cut import CUT_BY, chunk_ids
from voxstill.storage.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from _typeshed import DataclassInstance


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


def parts(work: Store, utterances: str, labels: str, cfg: Engine) -> list[Part]:
    """List one `Part` for each part of the table `utterances`, in the order of their names, whatever `cfg` says.

    `labels` is a table of labels, or another that has their `utterance_id`. What was labelled in the chunks of `cfg` is
    found without opening a part of it. DataError if labels are of other audio than their utterances.
    """
    if labels.startswith("labels/"):
        same_audio.check(work, utterances, labels)
    keys = manifest.parts(work, utterances)
    label_keys = dict.fromkeys(manifest.parts(work, labels))
    joined = []
    for table in tables.columns(work, keys, Utterance, ("id", *CUT_BY)):
        chunk_keys = (f"{labels}/{name}.parquet" for name in chunk_ids(table, cfg))
        joined.append([key for key in chunk_keys if key in label_keys])
    other_keys = sorted(label_keys.keys() - set(itertools.chain.from_iterable(joined)))
    if other_keys:
        places = tables.IdMap(_ids(work, other_keys, Label, "utterance_id"))
        for part_keys, ids in zip(joined, _ids(work, keys, Utterance, "id"), strict=True):
            part_keys += [other_keys[place] for place in set(places.of(ids).tolist()) if place >= 0]
    return [Part(key, tuple(sorted(part_keys))) for key, part_keys in zip(keys, joined, strict=True)]


def unlabelled(work: Store, utterances: str) -> list[Part]:
    """List one `Part` for each part of the table, in the order of their names, of utterances without labels."""
    return [Part(key, (), labelled=False) for key in manifest.parts(work, utterances)]


def columns(
    work: Store,
    chosen: Sequence[Part],
    utterances: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Read utterances and labels of each part as two Arrow tables, all columns or those named; read ahead."""
    import pyarrow as pa

    fields = [field for field in tables.schema(Label) if labels is None or field.name in labels]
    empty = pa.schema(fields).empty_table()
    label_tables = tables.columns(work, (key for part in chosen for key in part.labels), Label, labels)
    utterance_tables = tables.columns(work, (part.utterances for part in chosen), Utterance, utterances)
    for part, utterance_table in zip(chosen, utterance_tables, strict=True):
        yield utterance_table, pa.concat_tables([empty, *itertools.islice(label_tables, len(part.labels))])


def rows_of(ids: Sequence[str], labelled: Sequence[str]) -> list[int | None]:
    """The row of each id's label among `labelled`, None if it has none; of two labels the first counts."""
    first = {id_: len(labelled) - back for back, id_ in enumerate(reversed(labelled), start=1)}
    return [first.get(id_) for id_ in ids]


def _ids(work: Store, keys: Iterable[str], kind: type[DataclassInstance], name: str) -> Iterator[list[str]]:
    return (table[name].to_pylist() for table in tables.columns(work, keys, kind, [name]))
