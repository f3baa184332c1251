"""Compare the audio that was labelled with that of the utterances to which the labels are joined.

Labels are joined by the id of their utterance. An id may come from a manifest, and in another table of utterances it
may be that of another recording, channel or stretch. So a label has a hash of its audio (`Utterance.audio`).

`_utterances.json` in a table of labels names the table of utterances with which all of them were compared, in the state
of then: for that one nothing is read again. It goes by etags, for sizes may be the same where a channel is another.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from voxstill.core.errors import DataError
from voxstill.core.records import Label, Utterance, audio_hash, language_hash, text_hash
from voxstill.storage import tables
from voxstill.storage.redaction import redact_uri
from voxstill.storage.store import Store

NAME = "_utterances.json"
_AUDIO = ("recording_id", "channel", "start_ms", "end_ms")
_LABELLED = (*_AUDIO, "text", "language")


def check(work: Store, utterances: str, labels: str) -> None:
    """DataError where a label is of other audio than the utterance of its id, unless `begin` has compared them."""
    if work.read_json(f"{labels}/{NAME}") != _state(work, utterances):
        compare(work, utterances, labels)


def begin(work: Store, utterances: str, labels: str) -> None:
    """`check`, and write down that it was done: what is labelled next is of this table of utterances."""
    state = _state(work, utterances)
    if work.read_json(f"{labels}/{NAME}") != state:
        compare(work, utterances, labels)
        work.write_json(f"{labels}/{NAME}", state)


def compared_with(work: Store, labels: str) -> str:
    """The table of utterances that `begin` compared all labels with, in whatever state; empty where there is none."""
    return str((work.read_json(f"{labels}/{NAME}") or {}).get("utterances", ""))


def compare(work: Store, utterances: str, labels: str) -> None:
    """DataError where a label is of other audio than the utterance of its id; labels that do not say are left alone.

    Reads both tables, a part at a time, and holds 36 bytes for each label.
    """
    _compare(work.root, utterances, _state(work, utterances)["state"], labels, tables.parts_hash(work, labels))


def _state(work: Store, utterances: str) -> dict[str, str]:
    """A table of utterances and the state that it is in, which other content changes, though its size be the same."""
    listed = (entry for entry in work.list(utterances) if entry.key.endswith(".parquet"))
    entries = sorted((entry.key, entry.num_bytes, entry.etag) for entry in listed)
    return {"utterances": utterances, "state": hashlib.sha256(json.dumps(entries).encode()).hexdigest()}


@functools.lru_cache(maxsize=16)
def _compare(root: str, utterances: str, state: str, labels: str, listing: str) -> None:
    """`compare`, once for each state of both tables."""
    import pyarrow as pa

    work = Store(root)
    audio: list[NDArray[np.bytes_]] = []

    def labelled() -> Iterator[list[str]]:
        for table in tables.columns(work, tables.parts(work, labels), Label, ("utterance_id", "audio")):
            known = table.filter(table["audio"].is_valid())
            audio.append(np.array(known["audio"].to_pylist(), "S16"))
            yield from ([id_] for id_ in known["utterance_id"].to_pylist())

    place_of = tables.IdMap(labelled())
    audio_L = np.concatenate([np.zeros(0, "S16"), *audio])
    if not len(audio_L):
        return
    different: list[str] = []
    for table in tables.columns(work, tables.parts(work, utterances), Utterance, ("id", *_LABELLED)):
        place_N = place_of.of(table["id"].to_pylist())
        rows = table.take(np.flatnonzero(place_N >= 0))
        columns = (rows[name].to_pylist() for name in _AUDIO)
        hashes = [audio_hash(*row) for row in zip(*columns, strict=True)]
        labelled_N = audio_L[place_N[place_N >= 0]]
        is_other_N = np.array(hashes, "S16") != labelled_N
        for row in np.flatnonzero(is_other_N).tolist():  # of a teacher that was shown the text or the language
            text, language = (rows[name][row].as_py() for name in ("text", "language"))
            shown = hashes[row], text_hash(hashes[row], text)
            of_now = {*shown, *(language_hash(one, language) for one in shown)}
            is_other_N[row] = labelled_N[row].decode() not in of_now
        different += rows.filter(pa.array(is_other_N))["id"].to_pylist()
    if different:
        raise DataError(
            f"{len(different):,} labels in `{redact_uri(work.uri(labels))}` are of other audio than the utterances of "
            f"their ids in `{utterances}`, or of another language",
            why=f"`{different[0]}`, for one, was another recording, channel or stretch when it was labelled, "
            "its file was changed since, or its text or language was where the teacher is shown it",
            fix="index and label into another work folder, without these labels, or use the source and the options "
            f"of `index` of then. Where the language was corrected: remove `{labels}` and run `voxstill label`",
        )
