"""Compare the audio that was labelled with that of the utterances to which the labels are joined.

Labels are joined by the id of their utterance. An id may come from a manifest, and in another table of utterances it
may be that of another recording, channel or stretch. So a label has a hash of its audio (`Utterance.audio`).
A label is also of a kind: that of a teacher, or for a supervised utterance the text of its manifest.

`_utterances.json` in a table of labels names the table of utterances with which all of them were compared, in the state
of then: for that one nothing is read again. It goes by etags, for sizes may be the same where a channel is another.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from voxstill.core.errors import DataError
from voxstill.core.records import REFERENCE, Label, Utterance, Word, audio_hash, language_hash, text_hash
from voxstill.storage import tables
from voxstill.storage.arrays import numpy_array
from voxstill.storage.redaction import redact_uri
from voxstill.storage.removals import REMOVED
from voxstill.storage.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "_utterances.json"
_AUDIO = ("recording_id", "channel", "start_ms", "end_ms")
_LABELLED = (*_AUDIO, "text", "language", "words")
_COMPARED = ("utterance_id", "recipe", "teacher", "error", "audio")
_TEACHER, _TEXT, _EITHER = 0, 1, 2
"""Kinds of labels. Those of a run of the teacher `reference`, and of removed utterances, fit both."""


def check(work: Store, utterances: str, labels: str) -> None:
    """DataError if a label is of other audio than the utterance of its id, unless `begin` has compared them."""
    if work.read_json(f"{labels}/{NAME}") != _state(work, utterances):
        compare(work, utterances, labels)


def begin(work: Store, utterances: str, labels: str) -> None:
    """`check`, and write down that it was done: what is labelled next is of this table of utterances."""
    state = _state(work, utterances)
    if work.read_json(f"{labels}/{NAME}") != state:
        compare(work, utterances, labels)
        work.write_json(f"{labels}/{NAME}", state)


def compared_with(work: Store, labels: str) -> str:
    """The table of utterances that `begin` compared all labels with, in whatever state; empty if there is none."""
    return str((work.read_json(f"{labels}/{NAME}") or {}).get("utterances", ""))


def compare(work: Store, utterances: str, labels: str) -> None:
    """DataError if a label is of other audio than the utterance of its id, or of another kind than it.

    Labels that do not say of which audio they are can be of any. Reads both tables, a part at a time, and holds 37
    bytes for each label.
    """
    of_other_audio, of_other_kind = _compared(work, utterances, labels)
    if of_other_audio:
        raise DataError(
            f"{len(of_other_audio):,} labels in `{redact_uri(work.uri(labels))}` are of different audio than the "
            f"utterances with their ids in `{utterances}`, or of another language",
            code="step-outdated",
            why=f"`{of_other_audio[0]}`, for example, was another recording, channel or segment when it was labelled, "
            "or its file was changed since, or its text, word times or language were changed and the teacher sees them",
            fix="index and label into another work folder, without these labels, or use the earlier source and "
            f"options of `index`. If the language was corrected: remove `{labels}` and run `voxstill label`",
        )
    if of_other_kind:
        raise DataError(
            f"{len(of_other_kind):,} labels in `{redact_uri(work.uri(labels))}` are of another kind than their source",
            code="step-outdated",
            why=f"`source.supervised` was changed after, for example, `{of_other_kind[0]}` was labelled: if it is true "
            "labels are the texts of the manifest, else those of the teacher",
            fix="run `voxstill label --retry-failed`, which makes them again; to keep them, index and label into "
            "another work folder",
        )


def of_other_kind(work: Store, utterances: str, labels: str) -> list[str]:
    """The ids of the labels that are of another kind than their utterance; reads both tables."""
    return _compared(work, utterances, labels)[1]


def is_of_supervised(work: Store, labels: str, recipe: str, teacher: str) -> bool:
    """Whether the labels of a recipe and teacher, in the table `labels`, are the texts of supervised utterances.

    Where the run is one of the teacher `reference`, or that took over in it, they are labels as any other.
    """
    is_own = recipe == labels.rpartition("/")[2]
    return teacher.startswith(REFERENCE) and not is_own and not work.exists(options_key(labels, recipe))


def options_key(labels: str, recipe: str) -> str:
    """The key of the options of a teacher that took over: a row names its recipe and no more."""
    return f"{labels}/_{recipe}.json"


def _compared(work: Store, utterances: str, labels: str) -> tuple[list[str], list[str]]:
    state, listing = _state(work, utterances)["state"], tables.parts_hash(work, labels)
    return _compare(work.root, utterances, state, labels, listing)


def _state(work: Store, utterances: str) -> dict[str, str]:
    """A table of utterances and the state that it is in, which other content changes, though its size be the same."""
    listed = (entry for entry in work.list(utterances) if entry.key.endswith(".parquet"))
    entries = sorted((entry.key, entry.num_bytes, entry.etag) for entry in listed)
    return {"utterances": utterances, "state": hashlib.sha256(json.dumps(entries).encode()).hexdigest()}


@functools.lru_cache(maxsize=16)
def _compare(root: str, utterances: str, state: str, labels: str, listing: str) -> tuple[list[str], list[str]]:
    """The ids of labels of other audio, and of another kind, once for each state of both tables."""
    import pyarrow as pa

    work = Store(root)
    is_text = functools.cache(functools.partial(is_of_supervised, work, labels))
    audio: list[NDArray[np.bytes_]] = []
    kinds: list[NDArray[np.int8]] = []

    def labelled() -> Iterator[list[str]]:
        for table in tables.columns(work, tables.parts(work, labels), Label, _COMPARED):
            audio.append(np.array([of or "" for of in table["audio"].to_pylist()], "S16"))
            kinds.append(_kinds(table, is_text))
            yield from ([id_] for id_ in table["utterance_id"].to_pylist())

    place_of = tables.IdMap(labelled())
    if not audio:
        return [], []
    audio_L, kind_L = np.concatenate(audio), np.concatenate(kinds)
    different: list[str] = []
    of_other_kind: list[str] = []
    for table in tables.columns(work, tables.parts(work, utterances), Utterance, ("id", "supervised", *_LABELLED)):
        place_N = place_of.of(table["id"].to_pylist())
        rows = table.take(np.flatnonzero(place_N >= 0))
        columns = (rows[name].to_pylist() for name in _AUDIO)
        hashes = [audio_hash(*row) for row in zip(*columns, strict=True)]
        labelled_N, kind_N = audio_L[place_N[place_N >= 0]], kind_L[place_N[place_N >= 0]]
        wanted_N = np.where(np.array(rows["supervised"].to_pylist(), bool), _TEXT, _TEACHER)  # null is false
        of_other_kind += rows.filter(pa.array((kind_N != wanted_N) & (kind_N != _EITHER)))["id"].to_pylist()
        is_other_N = (np.array(hashes, "S16") != labelled_N) & (labelled_N != b"")
        for row in np.flatnonzero(is_other_N).tolist():  # of a teacher that was shown the text or the language
            text, language, words = (rows[name][row].as_py() for name in ("text", "language", "words"))
            timed = None if words is None else [tables.from_columns(word, Word) for word in words]
            shown = hashes[row], text_hash(hashes[row], text, timed)
            of_now = {*shown, *(language_hash(one, language) for one in shown)}
            is_other_N[row] = labelled_N[row].decode() not in of_now
        different += rows.filter(pa.array(is_other_N))["id"].to_pylist()
    return different, of_other_kind


def _kinds(rows: pa.Table, is_text: Callable[[str, str], bool]) -> NDArray[np.int8]:
    """The kind of each of these labels; `is_text` says of recipe and teacher whether they are of supervised ones."""
    import pyarrow.compute as pc

    kind_N = np.full(len(rows), _TEACHER, np.int8)
    makers = rows.group_by(["recipe", "teacher"]).aggregate([]).to_pylist()
    for recipe, teacher in ((maker["recipe"], maker["teacher"]) for maker in makers):
        if teacher.startswith(REFERENCE):
            kind_N[numpy_array(pc.equal(rows["recipe"], recipe))] = _TEXT if is_text(recipe, teacher) else _EITHER
    kind_N[numpy_array(pc.equal(rows["error"], REMOVED).fill_null(False))] = _EITHER
    return kind_N
