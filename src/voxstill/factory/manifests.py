"""What manifests say: JSONL, CSV, Parquet, lists, WebDataset tars and Kaldi data directories, each read as a stream.

Every form becomes rows of `Found`. Nothing is decoded here and nothing is run. What a manifest says wrongly is a
DataError that names file and line; audio that cannot be had is a row with its `error`.
"""

from __future__ import annotations

import csv
import functools
import gzip
import hashlib
import io
import json
import math
import os
import re
import tarfile
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast, get_args

import numpy as np

from voxstill.errors import DataError, StorageError
from voxstill.records import Split, recording_id
from voxstill.store import fetch, is_local, local_etag, local_path, shown

AUDIO = {
    *("wav", "flac", "mp3", "ogg", "oga", "opus", "m4a", "aac", "mp4", "webm", "mka", "mkv", "mov", "3gp"),
    *("aif", "aiff", "au", "caf", "w64", "wma", "amr", "ac3", "sph"),
}
"""Endings by which a member of a tar is taken for audio."""
COMPRESSED = (".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4")
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Names that Hugging Face gives to what is known of the audio in a folder."""
SHAR_CUTS = re.compile(r"cuts(\.\d+)\.jsonl(\.gz)?$")
"""The name of one shard's cuts in lhotse's Shar; its audio lies beside it in `recording` and the same number."""
_SQUEEZED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18")  # gzip, bzip2, xz, zstd, lz4
_NO_SEEK = "nothing can be read from the middle of it"
_NAMES = {
    "audio": ("audio", "path", "audio_filepath", "file_name"),
    "id": ("id",),
    "text": ("text", "transcription", "transcript", "sentence"),
    "speaker": ("speaker", "speaker_id", "client_id"),
    "language": ("language", "lang", "locale"),
    "dialect": ("dialect",),
    "dataset": ("dataset",),
    "split": ("split",),
}
"""What a column may be called, ours first."""
_NUMBERS = ("start_ms", "end_ms", "channel", "offset", "duration")
_PARQUET_ROWS = 1024
_CUT_S = 0.05
"""A supervision that sticks out of its cut by more than this has words that nobody says there."""
_FAR_BYTES = 1 << 20
"""Fetched at a time of a manifest far away: of a tar, small files in one go and large ones without their middle."""
_STRETCH = re.compile(r"#\d+\+\d+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One file, or one stretch of it, and what its manifest knows. Without an etag its size stands for its content.

    With an `error` it is known already that it cannot be used. `where` tells a person where this was said.
    """

    uri: str
    etag: str | None = None
    num_bytes: int = 0
    id: str | None = None
    text: str | None = None
    speaker: str | None = None
    language: str | None = None
    dialect: str | None = None
    dataset: str | None = None
    split: Split | None = None
    channel: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    error: str | None = None
    where: str | None = field(default=None, compare=False)

    @property
    def recording_id(self) -> str:
        """The same for the same file with the same content."""
        return recording_id(self.uri, self.etag, self.num_bytes)

    @property
    def facts(self) -> tuple[str | int | None, ...]:
        """All that was said about the file; nothing but None of one that was merely found."""
        texts = (self.id, self.text, self.speaker, self.language, self.dialect, self.dataset, self.split)
        return (*texts, self.channel, self.start_ms, self.end_ms)


def hash64(text: str) -> int:
    """Equal for equal texts, and among ten million different ones as good as never."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def here(path: str, **facts: Any) -> Found:
    """A local file with its size and its etag, which is made of time and size; without them where it is not there."""
    try:
        path.encode()
    except UnicodeEncodeError:
        shown = path.encode("utf-8", "backslashreplace").decode()
        return Found(uri=shown, error="unreadable name: it is not UTF-8; rename the file", **facts)
    try:
        stat = os.stat(_STRETCH.sub("", path) if "#" in path else path)
    except (OSError, ValueError):
        return Found(uri=path, **facts)
    return Found(uri=path, etag=local_etag(stat), num_bytes=stat.st_size, **facts)


def reader(uri: str) -> Callable[[str], Iterator[Found]] | None:
    """What reads a manifest of this name; None where the name is not that of a manifest.

    DataError for a compressed tar.
    """
    if is_compressed(uri):
        raise _compressed(uri)
    if _name(uri).endswith(".jsonl.gz"):  # as lhotse writes its manifests
        return json_lines
    return _READERS.get(PurePosixPath(_name(uri)).suffix)


def is_compressed(uri: str) -> bool:
    """Whether it has the name of a compressed tar."""
    return _name(uri).endswith(COMPRESSED)


def _name(uri: str) -> str:
    return (uri.partition("?")[0] if uri.startswith(("http://", "https://")) else uri).lower()


def tells_of_audio(uri: str) -> bool:
    """Whether a file named like Hugging Face's metadata is that: its first line, or its columns, know `file_name`."""
    with opened(uri) as file:
        if uri.endswith(".parquet"):
            import pyarrow.parquet as pq

            return "file_name" in pq.read_schema(file).names
        line = file.readline(1 << 20).decode("utf-8-sig", "replace")
    if uri.endswith(".csv"):
        return "file_name" in next(csv.reader([line]), [])
    return '"file_name"' in line


# ------------------------------------------------------------------------------------------------- rows of any form


def json_lines(uri: str) -> Iterator[Found]:
    """A row for each line of a JSONL manifest, gzipped or not."""
    with opened(uri) as file:
        lines = gzip.GzipFile(fileobj=file) if _name(uri).endswith(".gz") else file
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _found(_json(line, f"{shown(uri)}:{number}"), uri, f"{shown(uri)}:{number}")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            fix = "write it again"
            raise DataError(f"the manifest `{shown(uri)}` is damaged", why=str(error), fix=fix) from None


def csv_lines(uri: str) -> Iterator[Found]:
    """A row for each line of a CSV manifest, whose first line names the columns; an empty cell says nothing."""
    with opened(uri) as file:
        rows = csv.DictReader(io.TextIOWrapper(file, "utf-8-sig", newline=""))
        while True:
            where = f"{shown(uri)}:{rows.line_num + 1}"
            try:
                where = f"{shown(uri)}:{rows.line_num + 1}" if rows.fieldnames else where  # which are read first
                row: dict[str | None, Any] | None = next(rows, None)
            except (csv.Error, UnicodeDecodeError) as error:
                raise _bad_row(where, str(error)) from None
            if row is None:
                return
            if None in row:
                raise _bad_row(where, "it has more cells than there are columns")
            said = {str(name): value or None for name, value in row.items()}
            said |= {name: _number(cell) for name in _NUMBERS if (cell := said.get(name))}
            yield _found(said, uri, where)


def parquet_rows(uri: str) -> Iterator[Found]:
    """A row for each row of a Parquet manifest, a thousand held at a time; only columns that are known are read.

    DataError where it has audio inside: a page of Parquet is compressed as a whole, so no file can be read alone.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = {name for names in _NAMES.values() for name in names} | set(_NUMBERS)
    with opened(uri) as file:
        try:
            table = pq.ParquetFile(file)
            if _holds_bytes(table.metadata):
                raise DataError(
                    f"`{shown(uri)}` holds the audio itself",
                    why="Parquet compresses pages of many rows, so that no recording could be read alone",
                    fix="write its audio into files or a WebDataset tar: docs/sources.md shows how",
                )
            number = 0
            leaves = (table.metadata.schema.column(index).path for index in range(table.metadata.num_columns))
            columns = [leaf for leaf in leaves if leaf.partition(".")[0] in wanted and leaf != "audio.bytes"]
            for batch in table.iter_batches(_PARQUET_ROWS, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield _found(row, uri, f"{shown(uri)}:{number}")
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"`{shown(uri)}` is not a Parquet manifest", why=str(error).splitlines()[0], fix="write the file anew"
            ) from None


def _holds_bytes(metadata: Any) -> bool:
    """Whether a column `audio.bytes` has a value; told by the footer, nothing of it is read."""
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            if column.path_in_schema == "audio.bytes":
                nulls = column.statistics.null_count if column.statistics is not None else 0
                if nulls < column.num_values:
                    return True
    return False


def listed(uri: str) -> Iterator[Found]:
    """A row for each path or URI of a list, one a line."""
    with opened(uri) as file:
        for number, line in enumerate(file, start=1):
            if name := _text_of(line, f"{shown(uri)}:{number}").strip():
                yield _beside(name, uri, where=f"{shown(uri)}:{number}")


def _found(row: Mapping[str, Any], manifest: str, where: str) -> Found:
    if isinstance(row.get("recording"), Mapping) and "supervisions" in row:
        return _cut(row, manifest, where)
    audio = _first(row, "audio")
    if isinstance(audio, Mapping):  # as Hugging Face writes it
        audio = audio.get("path")
    if not isinstance(audio, str) or not audio:
        raise _bad_row(where, "it has no `audio`")
    start_ms, end_ms = _time(row, "start_ms", where), _time(row, "end_ms", where)
    if start_ms is None and "audio_filepath" in row and row.get("offset") is not None:  # as NeMo writes it
        start_ms = _time(row, "offset", where, 1000)
        duration_ms = _time(row, "duration", where, 1000)
        end_ms = None if duration_ms is None else (start_ms or 0) + duration_ms
    facts: dict[str, Any] = {"where": where, **_facts(row, where), **_stretch(start_ms, end_ms, where)}
    if "audio_filepath" in row and row.get("shard_id") is not None:
        return _in_nemo_tar(audio, row["shard_id"], manifest, facts)
    return _beside(audio, manifest, **facts)


def _cut(row: Mapping[str, Any], manifest: str, where: str) -> Found:
    """What a cut of lhotse means. Its supervisions are one text, in their order, where each has one and lies within."""
    recording, said = row["recording"], [each for each in row["supervisions"] or () if isinstance(each, Mapping)]
    sources = [each for each in recording.get("sources") or () if isinstance(each, Mapping)]
    start_ms = _time(row, "start", where, 1000) or 0
    duration_ms = _time(row, "duration", where, 1000)
    if row.get("type", "MonoCut") != "MonoCut" or len(sources) != 1 or duration_ms is None:
        raise _bad_row(where, "it is not a MonoCut with one source: only those can be read")
    texts = [each.get("text") for each in sorted(said, key=lambda each: each.get("start") or 0)]
    inside = all(
        (each.get("start") or 0) >= -_CUT_S
        and (each.get("start") or 0) + (each.get("duration") or 0) <= duration_ms / 1000 + _CUT_S
        for each in said
    )
    has_all = bool(texts) and inside and all(isinstance(each, str) for each in texts)
    text = " ".join(map(str, texts)) if has_all else None
    speakers, languages = ({each.get(name) for each in said} for name in ("speaker", "language"))
    known = {
        "id": row.get("id"),
        "text": text,
        "speaker": speakers.pop() if len(speakers) == 1 else None,
        "language": languages.pop() if len(languages) == 1 else None,
        "channel": row.get("channel") if len(sources[0].get("channels") or [0]) > 1 else None,
    }
    facts: dict[str, Any] = {"where": where, **_facts(known, where)}
    is_all = start_ms == 0 and duration_ms >= (_time(recording, "duration", where, 1000) or math.inf)
    facts |= _stretch(None, None, where) if is_all else _stretch(start_ms, start_ms + duration_ms, where)
    kind, source = sources[0].get("type"), sources[0].get("source")
    if kind == "shar":
        return _in_shar_tar(manifest, facts)
    if kind not in ("file", "url") or not isinstance(source, str):
        reason = f"its audio is a `{kind}`, which is not read; let lhotse write it into files"
        return Found(uri=f"{manifest}#{facts['id']}", error=reason, **facts)
    found = _beside(source, manifest, **facts)
    if is_local(source) and is_local(manifest) and not os.path.exists(found.uri):  # lhotse starts where it runs
        return here(os.path.abspath(source), **facts)
    return found


def _in_nemo_tar(name: str, shard: Any, manifest: str, facts: Mapping[str, Any]) -> Found:
    """The member that a line of NeMo's tarred manifest means: in `audio_<shard_id>.tar` beside it, or one folder up."""
    folder = _beside_which(manifest)
    places = [f"{at}/audio_{shard}.tar" for at in (folder, folder.rpartition("/")[0])]
    for uri in places:
        members = _members(uri)
        if members is not None:
            break
    else:
        reason = f"cannot be read: no `audio_{shard}.tar` beside the manifest can be opened"
        return Found(uri=f"{places[0]}#{name}", error=reason, **facts)
    stem, dot, ending = name.rpartition(".")  # several stretches of one member have names of their own
    found = members.get(name) or members.get(f"{re.sub(r'-sub[0-9]+$', '', stem)}{dot}{ending}")
    if found is None:
        return Found(uri=f"{uri}#{name}", error=f"not there: no member of `audio_{shard}.tar` has this name", **facts)
    return replace(found, **facts)


def _in_shar_tar(manifest: str, facts: Mapping[str, Any]) -> Found:
    """The member that a cut of lhotse's Shar means: it has the cut's id and some ending of audio."""
    name = manifest.rpartition("/")[2]
    tar_name = SHAR_CUTS.sub(r"recording\1.tar", name)
    uri = f"{_beside_which(manifest)}/{tar_name}"
    members = _members(uri)
    if members is None or tar_name == name:
        reason = f"cannot be read: there is no tar `{tar_name}` of its audio beside `{name}`"
        return Found(uri=f"{uri}#{facts['id']}", error=reason, **facts)
    for ending in sorted(AUDIO):
        if (found := members.get(f"{facts['id']}.{ending}")) is not None:
            return replace(found, **facts)
    return Found(uri=f"{uri}#{facts['id']}", error=f"not there: no member of `{tar_name}` has this name", **facts)


def _beside_which(manifest: str) -> str:
    """Where the folder of a manifest lies."""
    return _folder(manifest) if is_local(manifest) else manifest.rpartition("/")[0]


@functools.lru_cache(maxsize=4)  # lines of one shard follow one another
def _members(uri: str) -> dict[str, Found] | None:
    """Where each member of a tar lies, by its name; None where no such tar can be opened."""
    try:
        with opened(uri) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            known = _whole(uri, file)
            return {
                member.name: Found(
                    uri=f"{known.uri}#{member.offset_data}+{member.size}", etag=known.etag, num_bytes=member.size
                )
                for member in archive
                if member.isfile()
            }
    except (DataError, tarfile.TarError):
        return None


def _facts(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    texts = {name: _text(row, name, where) for name in _NAMES if name != "audio"}
    if texts["split"] not in get_args(Split):
        texts["split"] = None  # `unlabelled`, `-` and the like: not for us to judge by
    channel = row.get("channel")
    if channel is not None and (isinstance(channel, bool) or not isinstance(channel, int | float) or channel < 0):
        raise _bad_row(where, f"`channel` is {channel!r}, not a number of a channel from 0")
    return {**texts, "channel": None if channel is None else int(channel)}


def _stretch(start_ms: int | None, end_ms: int | None, where: str) -> dict[str, int | None]:
    if (start_ms or 0) < 0 or (end_ms is not None and end_ms <= (start_ms or 0)):
        raise _bad_row(where, f"it starts at {start_ms or 0} ms and ends at {end_ms} ms")
    return {"start_ms": start_ms, "end_ms": end_ms}


def _beside(audio: str, manifest: str, **facts: Any) -> Found:
    """The file that a manifest means: its paths start where it lies."""
    if "://" in audio and not is_local(audio):
        return Found(uri=audio, **facts)
    if is_local(manifest):
        path = os.path.expanduser(str(local_path(audio)))
        return here(os.path.normpath(os.path.join(_folder(manifest), path)), **facts)
    return Found(uri=f"{manifest.rpartition('/')[0]}/{audio}", **facts)


@functools.lru_cache(maxsize=1)
def _folder(manifest: str) -> str:
    return str(local_path(manifest).expanduser().absolute().parent)


def _first(row: Mapping[str, Any], name: str) -> Any:
    """The first of the columns called so that says something."""
    return next((row[each] for each in _NAMES[name] if row.get(each) is not None), None)


def _text(row: Mapping[str, Any], name: str, where: str) -> str | None:
    value = _first(row, name)
    if name in {"id", "speaker"} and isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if value is not None and not isinstance(value, str):
        raise _bad_row(where, f"`{name}` is {value!r}, not text")
    return value if name == "text" else value or None


def _time(row: Mapping[str, Any], name: str, where: str, unit_ms: int = 1) -> int | None:
    value = row.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise _bad_row(where, f"`{name}` is {value!r}, not {'milliseconds' if unit_ms == 1 else 'seconds'}")
    return round(value * unit_ms)


def _number(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell  # and the error names it


def _json(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(_text_of(line, where))
    except (ValueError, RecursionError) as error:
        raise _bad_row(where, f"it is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise _bad_row(where, f"it is {type(row).__name__}, not an object")
    return row


def _text_of(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise _bad_row(where, f"it is not UTF-8: {error}") from None


def _bad_row(where: str, why: str) -> DataError:
    return DataError(f"{where} is not a line of a manifest", why=why, fix="correct the line or take it out")


@contextmanager
def opened(uri: str) -> Iterator[BinaryIO]:
    """The bytes of a manifest; DataError where they cannot be read."""
    try:
        if is_local(uri):
            with local_path(uri).expanduser().open("rb") as file:
                yield file
        else:
            with io.BufferedReader(_Far(uri), _FAR_BYTES) as far:
                yield cast(BinaryIO, far)
    except StorageError as error:
        raise DataError(f"cannot read the manifest `{shown(uri)}`", why=error.why, fix="check `source.uri`") from None
    except OSError as error:
        why = "it does not exist" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        raise DataError(f"cannot read the manifest `{shown(uri)}`", why=why, fix="check `source.uri`") from None


class _Far(io.RawIOBase):
    """An object far away as a file: a stretch of it is fetched for each read, or all at once where no server can."""

    def __init__(self, uri: str) -> None:
        self._whole: bytes | None = None
        try:
            first = fetch(f"{uri}#0+1")
        except StorageError as error:
            if "range request" not in error.why.lower():
                raise
            first = fetch(uri)
            self._whole = first.data
        self.etag = first.etag
        self._uri, self._num_bytes, self._at = uri, first.num_bytes, 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As in any file."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._num_bytes}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """As in any file."""
        length = max(0, min(len(buffer), self._num_bytes - self._at))
        if length:
            stretch = slice(self._at, self._at + length)
            data = fetch(f"{self._uri}#{self._at}+{length}").data if self._whole is None else self._whole[stretch]
            length = len(data)
            buffer[:length] = data
            self._at += length
        return length


# ------------------------------------------------------------------------------------------------- WebDataset tars


def tar(uri: str) -> Iterator[Found]:
    """A row for each audio member of a WebDataset tar, addressed by its bytes so that it can be read alone.

    Members that follow one another and share their name up to its first dot are one sample: its `.json` and `.txt`
    tell of its audio. A tar that ends in the middle gives what it holds, and a row that says so. DataError where it is
    compressed.
    """
    with opened(uri) as file:
        known = _whole(uri, file)
        if file.read(8).startswith(_SQUEEZED):
            raise _compressed(uri)
        file.seek(0)
        num_audio = 0
        fault = None
        try:
            archive = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115  # closes with its file
            for sample in _samples(archive):
                for found in _sample(archive, sample, known):
                    num_audio += 1
                    yield found
            file.seek(archive.offset)  # `tarfile` takes a header that it cannot read for the end
            rest = file.read(tarfile.BLOCKSIZE)
            if rest.strip(b"\0") or len(rest) % tarfile.BLOCKSIZE:
                fault = f"there is no header at byte {archive.offset}"
        except tarfile.TarError as error:
            fault = str(error)
    if fault is not None:
        reason = f"damaged tar: after {num_audio} recordings: {fault}"
        yield Found(uri=known.uri, etag=known.etag, num_bytes=known.num_bytes, error=reason)
    elif not num_audio:
        reason = "no audio: no member has the ending of an audio file"
        yield Found(uri=known.uri, etag=known.etag, num_bytes=known.num_bytes, error=reason)


def _whole(uri: str, file: BinaryIO) -> Found:
    """The opened tar itself, and its version."""
    far = getattr(file, "raw", None)
    if isinstance(far, _Far):
        return Found(uri=uri, etag=far.etag)
    return here(str(local_path(uri).expanduser().absolute()))


def _samples(archive: tarfile.TarFile) -> Iterator[list[tarfile.TarInfo]]:
    sample: list[tarfile.TarInfo] = []
    key = None
    while (member := archive.next()) is not None:
        cast(Any, archive).members = []  # which would otherwise grow with the tar
        folder, _, name = member.name.rpartition("/")
        if not member.isfile() or name.startswith("."):
            continue
        if (folder, name.partition(".")[0]) != key:
            if sample:
                yield sample
            sample, key = [], (folder, name.partition(".")[0])
        sample.append(member)
    if sample:
        yield sample


def _sample(archive: tarfile.TarFile, sample: Sequence[tarfile.TarInfo], known: Found) -> Iterator[Found]:
    audio = [each for each in sample if _ending(each) in AUDIO]
    facts: dict[str, Any] = {}
    for member in sample if audio else ():
        where = f"{shown(known.uri)}:{member.name}"
        if _ending(member) == "txt":
            facts = {"text": _text_of(_content(archive, member), where).strip()} | facts
        elif _ending(member) == "json":
            row = _json(_content(archive, member), where)
            if "sources" in row:  # of lhotse's Shar: it tells how the audio was cut, the cuts tell the rest
                continue
            if row.get("teacher") is not None:  # a shard of ours: its text is what a machine heard
                row["text"] = row.get("reference")
            facts |= {name: value for name, value in _facts(row, where).items() if value is not None}
    if len(audio) > 1:
        facts.pop("id", None)
    for member in audio:
        place = {"uri": f"{known.uri}#{member.offset_data}+{member.size}", "etag": known.etag, "num_bytes": member.size}
        error = "sparse: its bytes do not lie together; repack the tar" if member.issparse() else None
        yield Found(**cast(Any, place | facts), error=error, where=f"{shown(known.uri)}:{member.name}")


def _ending(member: tarfile.TarInfo) -> str:
    return member.name.rpartition("/")[2].rpartition(".")[2].lower()


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    return b"" if file is None else file.read()


def _compressed(uri: str) -> DataError:
    return DataError(
        f"`{shown(uri)}` is a compressed tar",
        why=f"{_NO_SEEK}: each recording would cost the unpacking of all before it",
        fix="unpack it, or repack it as a plain tar: audio hardly gets smaller by compression",
    )


# ------------------------------------------------------------------------------------------------- Kaldi


def kaldi(folder: str) -> Iterator[Found]:
    """A row for each utterance of a Kaldi data directory, of each recording where there are no `segments`.

    Paths in `wav.scp` start in the directory, or where the command runs, as Kaldi has it. What would have to be run
    (`... |`) is not: it is a row with a reason. `reco2dur` is not needed: lengths are measured.
    """
    with ExitStack() as open_files:

        def table(name: str) -> _Table:
            return open_files.enter_context(_Table(os.path.join(folder, name)))

        wavs, texts, speakers, languages = map(table, ("wav.scp", "text", "utt2spk", "utt2lang"))
        place = functools.lru_cache(maxsize=64)(_rxfile)

        def said(id_: str, recording: str, wav: str, where: str, **stretch: int | None) -> Found:
            file = place(wav, recording, folder)
            speaker, language = speakers.get(id_) or None, languages.get(id_) or None
            known: dict[str, Any] = {"text": texts.get(id_), "speaker": speaker, "language": language, **stretch}
            return replace(file, id=id_, where=where, **known)

        segments = os.path.join(folder, "segments")
        if not os.path.exists(segments):
            for number, (id_, wav) in enumerate(_pairs(wavs.path), start=1):
                yield said(id_, id_, wav, f"{wavs.path}:{number}")
            return
        for number, (id_, rest) in enumerate(_pairs(segments), start=1):
            where = f"{segments}:{number}"
            recording, *times = rest.split() or [""]
            if len(times) not in (2, 3):
                raise _bad_row(where, "it is not `utterance recording start end [channel]`")
            entry = wavs.get(recording)
            if entry is None:
                raise _bad_row(where, f"`{wavs.path}` has no recording `{recording}`")
            start, end = (_time({"time": _number(part)}, "time", where, 1000) for part in times[:2])
            stretch = _stretch(start, None if (end or 0) < 0 else end, where)  # -1 is the end of the recording
            yield said(id_, recording, entry, where, **stretch, channel=_channel(times[2:], where))


def _channel(parts: Sequence[str], where: str) -> int | None:
    if not parts or parts[0] == "-1":
        return None
    if parts[0] in ("A", "B"):
        return "AB".index(parts[0])
    if not parts[0].isdigit():
        raise _bad_row(where, f"`{parts[0]}` is not a channel: 0, 1, A or B")
    return int(parts[0])


def _rxfile(said: str, name: str, folder: str) -> Found:
    """What an entry of `wav.scp` means, without running anything."""
    if said.endswith("|") or said == "-":
        reason = f"is a command: `{said}` is not run; run it once for all, keep its output and name the files"
        return Found(uri=f"{os.path.join(folder, 'wav.scp')}#{name}", error=reason)
    if "://" in said and not is_local(said):
        return Found(uri=said)
    path, colon, offset = said.rpartition(":")
    if not (colon and offset.isdigit()):
        return here(_near(said, folder))
    file = here(_near(path, folder))
    try:
        with open(file.uri, "rb") as archive:
            archive.seek(int(offset))
            head = archive.read(12)
    except OSError:
        return file
    num_bytes = 8 + int.from_bytes(head[4:8], "little")
    if head[:4] != b"RIFF" or head[8:] != b"WAVE" or num_bytes >= 0x7FFFF000:
        reason = f"not audio: there is no WAV of a known length at byte {offset}"
        return Found(uri=said, etag=file.etag, num_bytes=file.num_bytes, error=reason)
    return Found(uri=f"{file.uri}#{offset}+{num_bytes}", etag=file.etag, num_bytes=num_bytes)


def _near(path: str, folder: str) -> str:
    path = os.path.expanduser(str(local_path(path)))
    inside = os.path.normpath(os.path.join(folder, path))
    return inside if os.path.exists(inside) else os.path.abspath(path)


def _pairs(path: str) -> Iterator[tuple[str, str]]:
    """First word and rest of each line; an empty line is an error, as in Kaldi."""
    with opened(path) as file:
        for number, line in enumerate(file, start=1):
            where = f"{path}:{number}"
            words = _text_of(line, where).split(None, 1)
            if not words:
                raise _bad_row(where, "it is empty")
            yield words[0], words[1].strip() if len(words) > 1 else ""


class _Table:
    """Lines of `key value` found by key, at 16 bytes of memory a line; one that is not there is empty.

    DataError where a key is said twice.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._file: BinaryIO | None = open(path, "rb") if os.path.exists(path) else None  # noqa: SIM115
        keys, starts, at = array("Q"), array("Q"), 0
        for line in self._file or ():
            words = line.split(None, 1)
            if words:
                keys.append(hash64(words[0].decode("utf-8", "replace")))
                starts.append(at)
            at += len(line)
        key_N, start_N = np.frombuffer(keys, np.uint64), np.frombuffer(starts, np.uint64)
        order_N = np.argsort(key_N, kind="stable")
        self._key_N, self._start_N = key_N[order_N], start_N[order_N]
        for twice in np.flatnonzero(self._key_N[1:] == self._key_N[:-1])[:1]:
            first, second = (self._line(int(self._start_N[index]))[0] for index in (twice, twice + 1))
            if first == second:
                raise DataError(f"`{path}` says `{first}` twice", why="a key has one line", fix="remove one of them")

    def __enter__(self) -> _Table:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def get(self, key: str) -> str | None:
        """What the line of `key` says; None where it has none."""
        wanted = np.uint64(hash64(key))
        at = int(self._key_N.searchsorted(wanted))
        while at < len(self._key_N) and self._key_N[at] == wanted:
            found, value = self._line(int(self._start_N[at]))
            if found == key:
                return value
            at += 1
        return None

    def _line(self, start: int) -> tuple[str, str]:
        assert self._file is not None
        self._file.seek(start)
        words = _text_of(self._file.readline(), f"{self.path}: byte {start}").split(None, 1)
        return words[0], words[1].strip() if len(words) > 1 else ""


def is_kaldi(folder: str) -> bool:
    """Whether a folder is a Kaldi data directory."""
    return Path(folder, "wav.scp").is_file()


_READERS: Mapping[str, Callable[[str], Iterator[Found]]] = {
    ".jsonl": json_lines,
    ".json": json_lines,
    ".csv": csv_lines,
    ".parquet": parquet_rows,
    ".txt": listed,
    ".lst": listed,
    ".tar": tar,
}
