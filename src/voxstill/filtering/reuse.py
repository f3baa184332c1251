"""Scores that are taken over: what was measured of the same labels in the same way is not measured again.

The identity of a part of utterances with its labels is a hash of everything that its scores depend on. Each row of
scores says the identity that it was measured under. So a corpus that has grown, a part of the labels, or another
combination of tables measures only what none of its scores were made of.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from voxstill.core.errors import VoxstillError
from voxstill.core.records import Utterance, fingerprint
from voxstill.filtering import measures
from voxstill.filtering.measures import MeasuredPart, ScoreRow
from voxstill.storage import tables, workdir
from voxstill.storage.figures import ScoreFigures
from voxstill.storage.store import Store


def method(phrases: Sequence[str], normalizer: str, *beside: str | None) -> str:
    """A hash of how labels are measured: by these phrases and normalizer, and `beside` tables of these recipes."""
    return fingerprint(measures.VERSION, measures.added_measures(), phrases, normalizer, beside)


def identified(work: Store, parts: Sequence[MeasuredPart], method: str, removed: Collection[str]) -> list[MeasuredPart]:
    """The parts with their identities: hashes of the method, and of the bytes of all tables that they are made of."""
    tables_of = [(part.part.labels, part.second, part.alignments) for part in parts]
    beside = dict.fromkeys(key for of_part in tables_of for keys in of_part for key in keys)
    with ThreadPoolExecutor(tables.READERS) as pool:
        content = dict(zip(beside, pool.map(lambda key: _content(work.read(key)), beside), strict=True))
        utterances = pool.map(lambda part: _utterances(work, part.part.utterances, removed), parts)
        return [
            dataclasses.replace(
                part,
                identity=fingerprint(method, part.part.name, of, [[content[key] for key in keys] for keys in of_part]),
            )
            for part, of, of_part in zip(parts, utterances, tables_of, strict=True)
        ]


def scored(work: Store, figures: ScoreFigures) -> Mapping[str, str]:
    """The part of scores that holds each identity, of the unfinished table itself and of the one that it grows from.

    That is the finished one of the same utterances, labels and method that has most labels.
    """
    recipes = (recipe for recipe in workdir.finished_recipes(work, "scores") if recipe != figures.recipe)
    others = [workdir.named(work, ScoreFigures, recipe) for recipe in recipes]
    matching = [other for other in others if _line(other) == _line(figures)]
    largest = max(matching, key=lambda other: (other.num_labels, other.recipe), default=figures)
    keys = [key for recipe in dict.fromkeys((largest.recipe, figures.recipe)) for key in _parts(work, recipe)]
    with ThreadPoolExecutor(tables.READERS) as pool:
        identities = pool.map(lambda key: _identities(work, key), keys)
        return {identity: key for key, of_key in zip(keys, identities, strict=True) for identity in of_key}


def delete_others(work: Store, prefix: str, names: Iterable[str]) -> None:
    """Delete the parts of scores that have none of these names, of utterances or labels that were others then."""
    planned = {f"{prefix}/{name}.parquet" for name in names}
    for key in tables.parts(work, prefix):
        if key not in planned:
            work.delete(key)


def _content(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _utterances(work: Store, key: str, removed: Collection[str]) -> tuple[str, list[str]]:
    """The content of a part of utterances, and those of it that were removed."""
    data = work.read(key)
    if not removed:
        return _content(data), []
    ids = tables.to_arrow(data, Utterance, work.uri(key), ("id",))["id"].to_pylist()
    return _content(data), sorted(set(ids).intersection(removed))


def _line(figures: ScoreFigures) -> tuple[str, str, str | None]:
    return figures.utterances, figures.labels, figures.method


def _parts(work: Store, recipe: str) -> list[str]:
    return tables.parts(work, workdir.prefix("scores", recipe))


def _identities(work: Store, key: str) -> set[str]:
    """The identities in a part of scores; none where it is damaged: it is not taken over then."""
    try:
        column = tables.to_arrow(work.read(key), ScoreRow, work.uri(key), ("part",))["part"]
    except VoxstillError:
        return set()
    return {identity for identity in column.unique().to_pylist() if identity is not None}
