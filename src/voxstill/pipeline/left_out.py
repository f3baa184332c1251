"""What a mixture leaves out of its corpora: what is held out, what was removed elsewhere, and audio that comes again.

Audio is the same where it is one stretch of one file, of one address or of equal bytes. Utterances of one id are two
where the bytes of both are known and differ. One that has the length of a held-out or removed utterance too may be
another encoding of it, and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from voxstill.core.monitor import log
from voxstill.core.records import Utterance, audio_hash
from voxstill.indexing.segment import IndexRow
from voxstill.sharding import mixture, references
from voxstill.storage import manifest, tables
from voxstill.storage.removals import Removal, Stretch, overlap
from voxstill.storage.store import Store

Table = tuple[str, str]
"""The root of a work folder, and the recipe of a table of utterances in it."""
_COLUMNS = ("id", "recording_id", "uri", "channel", "start_ms", "end_ms", "split")
_SAME_LENGTH_MS = 100
"""Another encoding of a recording is longer or shorter by so much at most."""


@dataclass(frozen=True, slots=True)
class _Row:
    """An utterance, with its file by address and, where the index knows it, by content."""

    id: str
    recording_id: str
    uri: str
    content: str | None
    stretch: Stretch
    split: str

    @property
    def audio(self) -> str:
        """Equal for equal stretches of one recording."""
        return audio_hash(self.recording_id, *self.stretch)

    @property
    def audio_by_content(self) -> str:
        """Equal for equal stretches of files of equal bytes; `audio` where these are not known."""
        return self.audio if self.content is None else audio_hash(self.content, *self.stretch)


class _Withheld:
    """Stretches that no corpus may give to a training, by their files and by their ids."""

    def __init__(self) -> None:
        self._by_file: dict[str, list[Stretch]] = {}
        self._by_id: dict[str, list[tuple[str | None, int]]] = {}
        self.num_by_id = 0
        """Utterances of other bytes that were found by their ids and lengths."""

    def add(self, id_: str, uri: str, content: str | None, stretch: Stretch) -> None:
        for file in {uri, content or uri}:
            self._by_file.setdefault(file, []).append(stretch)
        self._by_id.setdefault(id_, []).append((content, stretch[2] - stretch[1]))

    def ids(self, known: tables.IdSet) -> list[str]:
        """The ids but for those of `known` utterances, which `holds` decides on."""
        ids = list(self._by_id)
        return [id_ for id_, is_known in zip(ids, known.has(ids).tolist(), strict=True) if not is_known]

    def holds(self, row: _Row) -> bool:
        if any(overlap(row.stretch, other) for file in {row.uri, row.content or row.uri} for other in self._of(file)):
            return True
        for content, length_ms in self._by_id.get(row.id, ()):
            if content is None or row.content is None:
                return True
            if abs(length_ms - (row.stretch[2] - row.stretch[1])) <= _SAME_LENGTH_MS:
                self.num_by_id += 1
                return True
        return False

    def _of(self, file: str) -> Sequence[Stretch]:
        return self._by_file.get(file, ())


@dataclass(frozen=True, slots=True)
class _Earlier:
    """What a corpus gives: all ids, those of them whose bytes are known, and audio."""

    ids: tables.IdSet
    known_ids: tables.IdSet
    audio: tables.IdSet


def left_out(
    corpora: Sequence[references.ShardSet],
    indexed: Sequence[Sequence[Table]],
    tests: Sequence[Table],
    removed: Sequence[Removal],
) -> list[mixture.LeftOut]:
    """What each corpus has that is held out, removed or audio of an earlier one, and what has but the id of such.

    `indexed` are the tables that each was made of, where they are there. Of other utterances the ids decide.
    """
    held_out, gone = _Withheld(), _Withheld()
    for removal in removed:
        gone.add(removal.id, removal.uri, removal.content, removal.stretch)
    for table in tests:
        for row in (row for rows in _parts(*table) for row in rows if row.split == "test"):
            held_out.add(row.id, row.uri, row.content, row.stretch)
    answers: list[mixture.LeftOut] = []
    earlier: list[_Earlier] = []
    for corpus, of_corpus in zip(corpora, indexed, strict=True):
        own = tables.IdSet(id_ for ids in corpus.utterances() for id_ in ids)
        known, known_bytes, audio = list[str](), list[str](), list[str]()
        held_out_ids, gone_ids, double, other = list[str](), list[str](), list[str](), list[str]()
        for rows in (rows for table in of_corpus for rows in _parts(*table)):
            is_own_N = own.has([row.id for row in rows])
            chosen = [rows[number] for number in np.flatnonzero(is_own_N).tolist()]
            ids = [row.id for row in chosen]
            hashes = [row.audio for row in chosen], [row.audio_by_content for row in chosen]
            is_double_N = np.zeros(len(ids), np.bool_)
            is_other_N = np.array([row.content is not None for row in chosen], np.bool_)
            for before in earlier:
                is_double_N |= before.audio.has(hashes[0]) | before.audio.has(hashes[1])
                is_other_N &= ~before.ids.has(ids) | before.known_ids.has(ids)
            held_out_ids += (row.id for row in chosen if held_out.holds(row))
            gone_ids += (row.id for row in chosen if gone.holds(row))
            double += (ids[row] for row in np.flatnonzero(is_double_N).tolist())
            other += (ids[row] for row in np.flatnonzero(is_other_N).tolist())
            known += ids
            known_bytes += (row.id for row in chosen if row.content is not None)
            audio += {*hashes[0], *hashes[1]}
        known_ids = tables.IdSet(known)
        answers.append(
            mixture.LeftOut(
                held_out=tables.IdSet([*held_out.ids(known_ids), *held_out_ids]),
                removed=tables.IdSet([*gone.ids(known_ids), *gone_ids]),
                double=tables.IdSet(double),
                other=tables.IdSet(other),
            )
        )
        earlier.append(_Earlier(own, tables.IdSet(known_bytes), tables.IdSet(audio)))
    if num := held_out.num_by_id + gone.num_by_id:
        log.warning(
            "train: %d utterances are left out that have the id and length of a held-out or removed one, in different "
            "files; if they are different audio, index that corpus with its own ids",
            num,
        )
    return answers


def _parts(root: str, recipe: str) -> Iterator[list[_Row]]:
    """The parts of a table of utterances, joined with the contents of their recordings."""
    store = Store(root)
    keys = manifest.parts(store, f"utterances/{recipe}")
    recordings = set(tables.parts(store, f"recordings/{recipe}"))
    beside = [f"recordings/{recipe}/{key.rpartition('/')[2]}" for key in keys]
    contents = tables.columns(store, (key for key in beside if key in recordings), IndexRow, ("id", "content_hash"))
    for key, part in zip(beside, tables.columns(store, keys, Utterance, _COLUMNS), strict=True):
        content_of: dict[str, str | None] = {}
        if key in recordings:
            of_part = next(contents)
            content_of = dict(zip(of_part["id"].to_pylist(), of_part["content_hash"].to_pylist(), strict=True))
        columns = (part[name].to_pylist() for name in _COLUMNS)
        yield [
            _Row(id_, recording_id, uri, content_of.get(recording_id), (channel, start_ms, end_ms), split)
            for id_, recording_id, uri, channel, start_ms, end_ms, split in zip(*columns, strict=True)
        ]
