"""Transcripts that lie apart from their audio: those of MLS and LJSpeech, and the lists of fairseq with their texts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import zip_longest

from voxstill.core.records import UtteranceInfo
from voxstill.indexing.formats.entry import SourceEntry, bad_row, folder_of, local_entry, resolve, split_named
from voxstill.indexing.formats.lines import decode_text
from voxstill.indexing.formats.remote_file import open_manifest, read_lines
from voxstill.storage.redaction import redact_uri
from voxstill.storage.store import Store
from voxstill.storage.uri import is_local

MLS_NAME = "transcripts.txt"
_MLS_ID = re.compile(r"(\d+)_(\d+)_\d+")
"""Speaker, book and utterance."""
LJSPEECH_NAME = "metadata.csv"
_LJSPEECH_AUDIO = "wavs"
_FAIRSEQ_TEXTS = (".wrd", ".ltr")
"""Endings of the texts beside a list of fairseq: words, and letters with `|` behind each word."""
_FAIRSEQ_ROW = re.compile(rb"[^\t\r\n]+\t\d+\r?\n?")


def is_mls(uri: str) -> bool:
    """Whether a file is the transcripts of MLS, by its name and its first line."""
    if uri.rpartition("/")[2] != MLS_NAME:
        return False
    with open_manifest(uri) as file:
        name, tab, _ = file.readline(1 << 16).decode("utf-8", "replace").partition("\t")
    return bool(tab) and _MLS_ID.fullmatch(name) is not None


def read_mls(uri: str) -> Iterator[SourceEntry]:
    """A row for each line `speaker_book_number<tab>text`, whose audio lies in `audio/speaker/book` beside it."""
    with open_manifest(uri) as file:
        for number, line in read_lines(file, redact_uri(uri)):
            where = f"{redact_uri(uri)}:{number}"
            name, tab, text = decode_text(line, where).strip("\r\n").partition("\t")
            match = _MLS_ID.fullmatch(name)
            if not tab or match is None:
                raise bad_row(where, "it is not `speaker_book_number`, a tab and the text")
            metadata = SourceEntry(uri="", id=name, text=text, info=UtteranceInfo(speaker=match[1]), where=where)
            stem = f"{folder_of(uri)}/audio/{match[1]}/{match[2]}/{name}"
            if is_local(uri):
                ending = ".opus" if os.path.exists(f"{stem}.opus") else ".flac"
                yield metadata.located(local_entry(stem + ending))
            else:
                yield metadata.located(SourceEntry(uri=f"{stem}.flac"))


def is_ljspeech(uri: str) -> bool:
    """Whether a file is the metadata of LJSpeech: its name, and `|` behind the name of audio in `wavs` beside it."""
    if uri.rpartition("/")[2] != LJSPEECH_NAME:
        return False
    with open_manifest(uri) as file:
        name, mark, _ = file.readline(1 << 16).decode("utf-8-sig", "replace").partition("|")
    return bool(mark) and bool(name) and Store(folder_of(uri)).exists(f"{_LJSPEECH_AUDIO}/{name}.wav")


def read_ljspeech(uri: str) -> Iterator[SourceEntry]:
    """A row for each line `name|text|normalised text`, of which the normalised one counts where it is there."""
    with open_manifest(uri) as file:
        for number, line in enumerate(file, start=1):
            where = f"{redact_uri(uri)}:{number}"
            name, *texts = decode_text(line, where).strip("\r\n").split("|")
            if not 1 <= len(texts) <= 2 or not name:
                raise bad_row(where, "it is not `name|text|normalised text`")
            metadata = SourceEntry(uri="", id=name, text=texts[-1].strip() or texts[0].strip() or None, where=where)
            yield metadata.located(resolve(f"{_LJSPEECH_AUDIO}/{name}.wav", uri))


def is_fairseq(uri: str) -> bool:
    """Whether a table with tabs is a list of fairseq: a folder, and below it a path and a number of samples a line."""
    with open_manifest(uri) as file:
        root, first = file.readline(1 << 16), file.readline(1 << 16)
    return bool(root.strip()) and b"\t" not in root and _FAIRSEQ_ROW.fullmatch(first) is not None


def read_fairseq(uri: str) -> Iterator[SourceEntry]:
    """A row for each line of a list of fairseq, with the line of the same number of the `.wrd` or `.ltr` beside it.

    `train.tsv`, `valid.tsv` and `test.tsv` are splits. DataError if the texts are more or fewer than the paths.
    """
    stem = uri.removesuffix(".tsv")
    split = split_named(stem.rpartition("/")[2])
    with ExitStack() as files:
        paths = _lines(uri, files)
        root = decode_text(next(paths, b""), f"{redact_uri(uri)}:1").strip()
        if not is_local(uri) and "://" not in root:
            raise bad_row(
                f"{redact_uri(uri)}:1", f"`{root}` is a folder of another machine: write its path on this one there"
            )
        texts, ending = _texts_beside(stem, files)
        for number, (line, text) in enumerate(zip_longest(paths, texts or ()), start=2):
            where = f"{redact_uri(uri)}:{number}"
            if line is None or _FAIRSEQ_ROW.fullmatch(line) is None:
                raise bad_row(where, "it is not a path, a tab and a number of samples")
            if texts is not None and text is None:
                raise bad_row(where, f"`{redact_uri(stem)}{ending}` has no line for it")
            path = decode_text(line, where).partition("\t")[0]
            words = None if text is None else _words(decode_text(text, where), ending)
            metadata = SourceEntry(uri="", text=words, implied_split=split, where=where)
            yield metadata.located(resolve(f"{root.rstrip('/')}/{path}", uri))


def _lines(uri: str, files: ExitStack) -> Iterator[bytes]:
    return (line for _, line in read_lines(files.enter_context(open_manifest(uri)), redact_uri(uri)))


def _texts_beside(stem: str, files: ExitStack) -> tuple[Iterator[bytes] | None, str]:
    """The lines of the texts of a list, and their ending; None if there are none."""
    folder = Store(folder_of(stem))
    for ending in _FAIRSEQ_TEXTS:
        if folder.exists(stem.rpartition("/")[2] + ending):
            return _lines(stem + ending, files), ending
    return None, ""


def _words(line: str, ending: str) -> str:
    return " ".join(line.replace(" ", "").replace("|", " ").split()) if ending == ".ltr" else line.strip()
