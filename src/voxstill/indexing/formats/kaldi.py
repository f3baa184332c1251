"""Kaldi data directories: `wav.scp` with `segments`, `text`, `utt2spk` and `utt2lang` where they are there."""

from __future__ import annotations

import functools
import io
import os
import re
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from voxstill.core.errors import DataError
from voxstill.core.records import UtteranceInfo, hash64
from voxstill.indexing.failure import Failure, FailureKind
from voxstill.indexing.formats.entry import SourceEntry, bad_row, local_entry, time_ms, timed
from voxstill.indexing.formats.lines import decode_text, number_of
from voxstill.indexing.formats.remote_file import open_manifest, read_lines
from voxstill.storage.files import open_file
from voxstill.storage.uri import is_local, local_path

KALDI_NAME = "wav.scp"
"""The file by which a Kaldi data directory is known."""


def is_kaldi(folder: str) -> bool:
    """Whether a folder is a Kaldi data directory."""
    return Path(folder, KALDI_NAME).is_file()


def read_kaldi(folder: str) -> Iterator[SourceEntry]:
    """A row for each utterance of a Kaldi data directory, of each recording where there are no `segments`.

    Paths in `wav.scp` start in the directory, or where the command runs, as Kaldi has it. What would have to be run
    (`... |`) is not: it is a row with a reason. `reco2dur` is not needed: lengths are measured.
    """
    with ExitStack() as open_files:

        def table(name: str) -> KeyValueFile:
            return open_files.enter_context(KeyValueFile(os.path.join(folder, name)))

        wavs, texts, speakers, languages = map(table, ("wav.scp", "text", "utt2spk", "utt2lang"))
        is_table = re.compile(r"[^.]+(\.scp)?").fullmatch
        with os.scandir(folder) as files:
            columns = tuple(sorted(file.name for file in files if file.is_file() and is_table(file.name)))
        file_of = functools.lru_cache(maxsize=64)(_rxfile)

        def entry(id_: str, recording: str, rxfile: str, where: str) -> SourceEntry:
            info = UtteranceInfo(speaker=speakers.get(id_) or None, language=languages.get(id_) or None)
            metadata = SourceEntry(uri="", id=id_, text=texts.get(id_), info=info, where=where, columns=columns)
            return metadata.located(file_of(rxfile, recording, folder))

        segments = os.path.join(folder, "segments")
        if not os.path.exists(segments):
            for number, (id_, rxfile) in enumerate(pairs(wavs.path), start=1):
                yield entry(id_, id_, rxfile, f"{wavs.path}:{number}")
            return
        for number, (id_, rest) in enumerate(pairs(segments), start=1):
            where = f"{segments}:{number}"
            recording, *times = rest.split() or [""]
            if len(times) not in (2, 3):
                raise bad_row(where, "it is not `utterance recording start end [channel]`")
            recording_rxfile = wavs.get(recording)
            if recording_rxfile is None:
                raise bad_row(where, f"`{wavs.path}` has no recording `{recording}`")
            start, end = (time_ms({"time": number_of(part)}, "time", where, 1000) for part in times[:2])
            end = None if (end or 0) < 0 else end  # -1 is the end of the recording
            segment = timed(entry(id_, recording, recording_rxfile, where), start, end, where)
            yield replace(segment, channel=_channel(times[2:], where))


def _channel(parts: Sequence[str], where: str) -> int | None:
    if not parts or parts[0] == "-1":
        return None
    if parts[0] in ("A", "B"):
        return "AB".index(parts[0])
    if not parts[0].isdigit():
        raise bad_row(where, f"`{parts[0]}` is not a channel: 0, 1, A or B")
    return int(parts[0])


def _rxfile(rxfile: str, recording: str, folder: str) -> SourceEntry:
    """The file that an entry of `wav.scp` means, without running anything."""
    if rxfile.endswith("|") or rxfile == "-":
        detail = f"`{rxfile}` is not run; run it once yourself, save its output and list the files"
        uri = f"{os.path.join(folder, 'wav.scp')}#{recording}"
        return SourceEntry(uri=uri, failure=Failure(FailureKind.COMMAND, detail))
    if "://" in rxfile and not is_local(rxfile):
        return SourceEntry(uri=rxfile)
    path, colon, offset = rxfile.rpartition(":")
    if not (colon and offset.isdigit()):
        return local_entry(_resolve(rxfile, folder))
    ark = local_entry(_resolve(path, folder))
    try:
        with open_file(ark.uri) as archive:
            archive.seek(int(offset))
            head = archive.read(12)
    except OSError:
        return ark
    num_bytes = 8 + int.from_bytes(head[4:8], "little")
    if head[:4] != b"RIFF" or head[8:] != b"WAVE" or num_bytes >= 0x7FFFF000:
        failure = Failure(FailureKind.NOT_AUDIO, f"there is no WAV with a known length at byte {offset}")
        return SourceEntry(uri=rxfile, etag=ark.etag, num_bytes=ark.num_bytes, failure=failure)
    return SourceEntry(uri=f"{ark.uri}#{offset}+{num_bytes}", etag=ark.etag, num_bytes=num_bytes)


def _resolve(path: str, folder: str) -> str:
    path = os.path.expanduser(str(local_path(path)))
    inside = os.path.normpath(os.path.join(folder, path))
    return inside if os.path.exists(inside) else os.path.abspath(path)


def pairs(path: str) -> Iterator[tuple[str, str]]:
    """First word and rest of each line; an empty line is an error, as in Kaldi."""
    with open_manifest(path) as file:
        for number, line in read_lines(file, path):
            where = f"{path}:{number}"
            words = decode_text(line, where).split(None, 1)
            if not words:
                raise bad_row(where, "it is empty")
            yield words[0], words[1].strip() if len(words) > 1 else ""


class KeyValueFile:
    """Lines of `key value` looked up by key, at 16 bytes of memory a line; a file that is not there is empty.

    DataError if a key has two lines.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._file = io.BufferedReader(open_file(path)) if os.path.exists(path) else None
        except OSError as error:
            raise DataError(
                f"cannot read `{path}`", code="no-source", why=error.strerror or str(error), fix="check the file"
            ) from None
        keys, starts, start = array("Q"), array("Q"), 0
        for _, line in read_lines(self._file, path) if self._file else ():
            words = line.split(None, 1)
            if words:
                keys.append(hash64(words[0].decode("utf-8", "replace")))
                starts.append(start)
            start += len(line)
        key_N, start_N = np.frombuffer(keys, np.uint64), np.frombuffer(starts, np.uint64)
        order_N = np.argsort(key_N, kind="stable")
        self._key_N, self._start_N = key_N[order_N], start_N[order_N]
        for index in np.flatnonzero(self._key_N[1:] == self._key_N[:-1])[:1]:
            first, second = (self._line(int(self._start_N[i]))[0] for i in (index, index + 1))
            if first == second:
                raise DataError(
                    f"`{path}` has the key `{first}` twice",
                    code="id-twice",
                    why="each key must have one line",
                    fix="remove one of them",
                )

    def __enter__(self) -> KeyValueFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def get(self, key: str) -> str | None:
        """The value of `key`; None if it has no line."""
        hashed = np.uint64(hash64(key))
        index = int(self._key_N.searchsorted(hashed))
        while index < len(self._key_N) and self._key_N[index] == hashed:
            line_key, value = self._line(int(self._start_N[index]))
            if line_key == key:
                return value
            index += 1
        return None

    def _line(self, start: int) -> tuple[str, str]:
        assert self._file is not None
        self._file.seek(start)
        words = decode_text(self._file.readline(), f"{self.path}: byte {start}").split(None, 1)
        return words[0] if words else "", words[1].strip() if len(words) > 1 else ""
