"""Transcripts of LibriSpeech: `84-121123.trans.txt` has a line `84-121123-0000 TEXT` for `84-121123-0000.flac`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from voxstill.core.records import UtteranceInfo
from voxstill.indexing.formats.entry import SourceEntry, bad_row, folder_of, local_entry
from voxstill.indexing.formats.lines import decode_text
from voxstill.indexing.formats.remote_file import open_manifest, read_lines
from voxstill.indexing.formats.webdataset import AUDIO
from voxstill.storage.redaction import redact_uri
from voxstill.storage.uri import is_local

ENDING = ".trans.txt"
_ID = re.compile(r"(\d+)-\d+-\d+")
"""Speaker, chapter and utterance."""


def is_librispeech(uri: str) -> bool:
    """Whether the first line of a file named `*.trans.txt` begins with the name of audio beside it."""
    with open_manifest(uri) as file:
        id_ = file.readline(1 << 16).decode("utf-8", "replace").partition(" ")[0].strip()
    stem = uri.rpartition("/")[2].removesuffix(ENDING)
    return id_.startswith(f"{stem}-") or (bool(id_) and _audio_of(id_, uri).etag is not None)


def read_librispeech(uri: str) -> Iterator[SourceEntry]:
    """A row for each line of a transcript, whose audio lies beside it; its speaker where the name has the number."""
    with open_manifest(uri) as file:
        for number, line in read_lines(file, redact_uri(uri)):
            where = f"{redact_uri(uri)}:{number}"
            words = decode_text(line, where).split(None, 1)
            if not words:
                continue
            if len(words) < 2:
                raise bad_row(where, "it has no text after the name of its audio")
            match = _ID.fullmatch(words[0])
            info = UtteranceInfo(speaker=match[1] if match else None)
            metadata = SourceEntry(uri="", id=words[0], text=words[1].strip(), info=info, where=where)
            yield metadata.located(_audio_of(words[0], uri))


def _audio_of(id_: str, transcript: str) -> SourceEntry:
    """The audio beside a transcript: FLAC, as LibriSpeech has it, or whatever lies there in its place."""
    stem = f"{folder_of(transcript)}/{id_}"
    if not is_local(transcript):
        return SourceEntry(uri=f"{stem}.flac")
    endings = ("flac", *sorted(AUDIO - {"flac"}))
    return local_entry(next((path for end in endings if os.path.exists(path := f"{stem}.{end}")), f"{stem}.flac"))
