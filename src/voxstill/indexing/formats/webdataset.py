"""WebDataset tars: each audio member is a row, addressed by its bytes so that it can be read alone."""

from __future__ import annotations

import re
import tarfile
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np

from voxstill.core.errors import DataError
from voxstill.core.records import UtteranceInfo, hash64
from voxstill.indexing.failure import Failure, FailureKind
from voxstill.indexing.formats.column_names import INFO_COLUMNS
from voxstill.indexing.formats.entry import (
    SourceEntry,
    bad_row,
    local_entry,
    metadata_of,
    stretch_ms,
    timed,
    with_known_names,
)
from voxstill.indexing.formats.lines import decode_text, parse_json
from voxstill.indexing.formats.remote_file import MAX_LINE_BYTES, RemoteFile, open_manifest
from voxstill.indexing.formats.word_times import read_words
from voxstill.storage.cache import Cache
from voxstill.storage.redaction import redact_uri
from voxstill.storage.uri import local_path

T = TypeVar("T")
AUDIO = {
    *("wav", "flac", "mp3", "ogg", "oga", "opus", "m4a", "aac", "mp4", "webm", "mka", "mkv", "mov", "3gp"),
    *("aif", "aiff", "au", "caf", "w64", "wma", "amr", "ac3", "sph", "audio"),
}
"""Endings by which a member of a tar is taken for audio."""
TEXTS = ("txt", "text", "lab", "transcript")
"""Endings of members that hold the text of their sample and nothing else."""
_HTK_LABEL = re.compile(r"\d+\s+\d+\s+\S")
"""How a line of HTK's `.lab` begins, which is no text but phones with their times."""
_TIMIT_TIMES = re.compile(r"\A0\s+\d{4,}\s+(?=\S)")
"""First and last sample, which TIMIT writes before its text."""
_AGAIN = Failure(FailureKind.AMBIGUOUS, "the tar has this name more than once, as after `tar --append`; repack the tar")
COMPRESSED_ENDINGS = (".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4")
TAR_ERRORS = (tarfile.TarError, ValueError, OverflowError, RecursionError)
"""What `tarfile` raises of headers that cannot be."""
_MAX_HEADER_BYTES = 1 << 16
_ENDINGS_SHOWN = 5
_WITHOUT_LINKS = "repack the tar with the files it points to (`tar --dereference --hard-dereference`)"
_COMPRESSED_STARTS = (
    b"\x1f\x8b",
    b"BZh",
    b"\xfd7zXZ",
    b"\x28\xb5\x2f\xfd",
    b"\x04\x22\x4d\x18",
)  # gz, bz2, xz, zstd, lz4


def read_tar(uri: str, cache: Cache | None = None) -> Iterator[SourceEntry]:
    """A row for each audio member of a WebDataset tar, which is read through the cache where it is remote.

    Members that follow one another and share their name up to its first dot are one sample: its `.json` and `.txt`
    are the metadata of its audio. A sample that is described wrongly is rows with that reason. A tar that ends in the
    middle gives what it holds, and a row that says so. DataError if it is compressed.
    """
    with open_manifest(uri, cache) as file:
        tar = tar_entry(uri, file)
        if file.read(8).startswith(_COMPRESSED_STARTS):
            raise compressed_tar_error(uri)
        file.seek(0)
        num_audio = 0
        fault = None
        separated, names, num_again = _Apart(), _Names(), 0
        unknown_endings = Counter[str]()
        try:
            archive = open_tar(file)
            for sample in _samples(archive):
                separated.count(sample)
                unknown_endings.update(_unknown_endings(sample))
                is_again = sum(names.add(member.name) for member in sample) > 0
                entries = list(_sample_entries(file, sample, tar))
                num_audio += len(entries)
                num_again += is_again and not entries
                yield from (replace(entry, failure=_AGAIN) if is_again else entry for entry in entries)
            file.seek(archive.offset)  # `tarfile` takes a header that it cannot read for the end
            rest = file.read(tarfile.BLOCKSIZE)
            if rest.strip(b"\0") or len(rest) % tarfile.BLOCKSIZE:
                fault = f"there is no header at byte {archive.offset}"
        except TAR_ERRORS as error:
            fault = str(error) if isinstance(error, tarfile.TarError) else "a header is invalid"
    if fault is not None:
        yield replace(tar, failure=Failure(FailureKind.DAMAGED_TAR, f"after {num_audio} recordings: {fault}"))
    elif num_apart := len(separated):
        detail = f"{num_apart} samples have a text that is not next to their audio; repack it, sorted by name"
        yield replace(tar, failure=Failure(FailureKind.APART, detail))
    elif num_again:
        yield replace(
            tar, failure=Failure(FailureKind.AMBIGUOUS, f"{num_again} texts are in it more than once; repack it")
        )
    elif unknown_endings:
        names_of = ", ".join(f"{num} `.{ending}`" for ending, num in unknown_endings.most_common(_ENDINGS_SHOWN))
        detail = f"samples with a text have no member with the ending of an audio file, but {names_of}"
        yield replace(tar, failure=Failure(FailureKind.NO_AUDIO, detail))
    elif not num_audio:
        yield replace(tar, failure=Failure(FailureKind.NO_AUDIO, "no member has the ending of an audio file"))


def open_tar(file: BinaryIO) -> tarfile.TarFile:
    """A tar of which the headers are read; TAR_ERRORS where the first cannot be."""
    return tarfile.open(fileobj=cast(BinaryIO, _Headers(file)), mode="r:")


class _Headers:
    """A file as `tarfile` may read it, which takes the size of a header from the header, and its parts by a pattern
    that is slow on long ones."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.seek, self.tell = file, file.seek, file.tell

    def read(self, num_bytes: int) -> bytes:
        """The next bytes, of which a header has not many."""
        if not 0 <= num_bytes <= _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"there is a header of {num_bytes} bytes")
        return self._file.read(num_bytes)


def tar_entry(uri: str, file: BinaryIO) -> SourceEntry:
    """The opened tar itself, with its version."""
    remote = getattr(file, "raw", None)
    if isinstance(remote, RemoteFile):
        return SourceEntry(uri=uri, etag=remote.etag)
    return local_entry(str(local_path(uri).expanduser().absolute()))


def member_entry(tar: SourceEntry, member: tarfile.TarInfo) -> SourceEntry:
    """A member of a tar as a file of its own: a range of the tar's bytes."""
    return SourceEntry(uri=f"{tar.uri}#{member.offset_data}+{member.size}", etag=tar.etag, num_bytes=member.size)


def _samples(archive: tarfile.TarFile) -> Iterator[list[tarfile.TarInfo]]:
    """The members of each sample."""
    sample: list[tarfile.TarInfo] = []
    key = None
    while (member := archive.next()) is not None:
        cast(Any, archive).members = []  # which would otherwise grow with the tar
        if member.size < 0:
            raise tarfile.ReadError(f"`{member.name}` has a negative size")
        if not (member.isfile() or member.issym() or member.islnk()) or member.name.rpartition("/")[2].startswith("."):
            continue
        if _key(member) != key:
            if sample:
                yield sample
            sample, key = [], _key(member)
        sample.append(member)
    if sample:
        yield sample


class _Names:
    """The names of the members of a tar, in some 20 bytes for each."""

    def __init__(self) -> None:
        self._new: set[int] = set()
        self._sorted_N = np.empty(0, np.uint64)

    def add(self, name: str) -> bool:
        """Note a name, and return whether it was there before."""
        key = hash64(name)
        at = int(self._sorted_N.searchsorted(np.uint64(key)))
        is_known = key in self._new or (at < len(self._sorted_N) and int(self._sorted_N[at]) == key)
        self._new.add(key)
        if len(self._new) > max(1 << 16, len(self._sorted_N) // 16):
            self._sorted_N = np.union1d(self._sorted_N, np.fromiter(self._new, np.uint64))
            self._new.clear()
        return is_known


class _Apart:
    """Samples whose descriptions and audio do not follow one another, as in tars of unsorted folders."""

    def __init__(self) -> None:
        self._audio, self._texts = array("Q"), array("Q")

    def count(self, sample: Sequence[tarfile.TarInfo]) -> None:
        has_audio = any(_ending(member) in AUDIO for member in sample)
        has_text = any(_ending(member) in (*TEXTS, "json") for member in sample)
        if has_audio != has_text:
            (self._audio if has_audio else self._texts).append(hash64(_key(sample[0])))

    def __len__(self) -> int:
        audio_N, text_N = (np.frombuffer(keys, np.uint64) for keys in (self._audio, self._texts))
        return len(np.intersect1d(audio_N, text_N))


def _sample_entries(file: BinaryIO, sample: Sequence[tarfile.TarInfo], tar: SourceEntry) -> Iterator[SourceEntry]:
    """A row for each audio member of a sample."""
    audio = [member for member in sample if _ending(member) in AUDIO]
    failure = None
    metadata = SourceEntry(uri="")
    try:
        metadata = description(_members(file, sample, tar)) if audio else metadata
    except DataError as error:
        failure = Failure(FailureKind.BAD_DESCRIPTION, f"{error.what}: {error.why}")
    if len(audio) > 1:
        if metadata.text is not None:
            failure = ambiguous(_key(sample[0]), len(audio))
        metadata = replace(metadata, id=None, implied_id=None)
    for member in audio:
        where = f"{redact_uri(tar.uri)}:{member.name}"
        entry = replace(metadata.located(member_entry(tar, member)), where=where, sample=_key(member))
        if not member.isfile():
            entry = entry.failed(entry.uri, FailureKind.NO_AUDIO, f"`{member.name}` is a link; {_WITHOUT_LINKS}")
        elif not member.size:
            entry = entry.failed(entry.uri, FailureKind.NO_AUDIO, f"`{member.name}` has no bytes")
        if member.issparse():
            entry = entry.failed(entry.uri, FailureKind.SPARSE, "it is a sparse file; repack the tar")
        yield entry if failure is None else replace(entry, failure=failure)


def _members(file: BinaryIO, sample: Sequence[tarfile.TarInfo], tar: SourceEntry) -> Iterator[Member]:
    """The members of a sample that are not audio; those that say nothing without their bytes."""
    for member in sample:
        ending = _ending(member)
        if ending not in AUDIO:
            where = f"{redact_uri(tar.uri)}:{member.name}"
            yield Member(ending, where, _content(file, member, where) if ending in (*TEXTS, "json") else b"")


@dataclass(frozen=True, slots=True)
class Member:
    """What may describe the audio of a sample: its ending, where it lies, and its bytes."""

    ending: str
    where: str
    data: bytes


def description(members: Iterable[Member]) -> SourceEntry:
    """What the other members of a sample say of its audio; DataError if one cannot be read."""
    metadata = SourceEntry(uri="")
    plain_text = None
    columns: list[str] = []
    for member in members:
        columns.append(f".{member.ending}")
        if member.ending in TEXTS:
            text = decode_text(member.data, member.where).strip()
            if not text or (member.ending == "lab" and _HTK_LABEL.match(text)):
                continue  # an empty file is not a transcript of silence: more often it was not written yet
            text = _TIMIT_TIMES.sub("", text)
            if plain_text is not None and text.split() != plain_text.split():
                raise DataError(
                    f"`{member.where}` differs from the text in a file with another extension beside it",
                    code="source-contradiction",
                    why="it is not clear which of them is spoken",
                    fix="remove one of them",
                )
            plain_text = text if plain_text is None else plain_text
        elif member.ending == "json":
            row: Mapping[str, object] = parse_json(member.data, member.where)
            if "sources" in row:  # of lhotse's Shar: it tells how the audio was cut, the cuts tell the rest
                continue
            columns.extend(row)
            row = with_known_names(row, member.where)
            if row.get("teacher") is not None:  # a shard of ours: its text is a teacher's label
                later = metadata_of({**row, "text": row.get("reference"), "weight": None}, member.where)
            else:
                later = _with_times(metadata_of(row, member.where), row, member.where)
            metadata = _updated(metadata, later)
    return replace(
        metadata, text=plain_text if metadata.text is None else metadata.text, columns=tuple(dict.fromkeys(columns))
    )


def ambiguous(name: str, num_audio: int) -> Failure:
    """The failure of audio that shares a text with other audio."""
    detail = f"`{name}` has one text and {num_audio} audio members; give each its own name"
    return Failure(FailureKind.AMBIGUOUS, detail)


def _with_times(metadata: SourceEntry, row: Mapping[str, object], where: str) -> SourceEntry:
    """The description of a sample with the times in it; DataError if they are none."""
    start_ms, end_ms, duration_ms = stretch_ms(row, where)
    timed(metadata, start_ms, end_ms, where)
    is_stretch = start_ms is not None or end_ms is not None
    sample_ms = (start_ms, end_ms) if is_stretch else None
    return replace(metadata, sample_ms=sample_ms, duration_ms=duration_ms, words=read_words(row.get("words"), where))


def _updated(metadata: SourceEntry, later: SourceEntry) -> SourceEntry:
    """Metadata with what a later file of the sample says."""

    def known(new: T | None, old: T) -> T:
        return old if new is None else new

    info = {name: known(getattr(later.info, name), getattr(metadata.info, name)) for name in INFO_COLUMNS}
    return replace(
        metadata,
        id=known(later.id, metadata.id),
        implied_id=metadata.implied_id if later.id is None else later.implied_id,
        text=known(later.text, metadata.text),
        info=UtteranceInfo(**info),
        split=known(later.split, metadata.split),
        implied_split=known(later.implied_split, metadata.implied_split),
        implied_info=(*metadata.implied_info, *later.implied_info),
        channel=known(later.channel, metadata.channel),
        weight=known(later.weight, metadata.weight),
        words=known(later.words, metadata.words),
        sample_ms=known(later.sample_ms, metadata.sample_ms),
        duration_ms=known(later.duration_ms, metadata.duration_ms),
    )


def _key(member: tarfile.TarInfo) -> str:
    """The name of the sample that a member belongs to: its own, up to the first dot after the last slash."""
    folder, slash, name = member.name.rpartition("/")
    return f"{folder}{slash}{name.partition('.')[0]}"


def _ending(member: tarfile.TarInfo) -> str:
    return member.name.rpartition("/")[2].rpartition(".")[2].lower()


def _unknown_endings(sample: Sequence[tarfile.TarInfo]) -> list[str]:
    """The endings of what may be the audio of a sample that has a text and no member that is known as audio."""
    endings = [_ending(member) for member in sample]
    texts = {*TEXTS, "json"}
    has_text_alone = not texts.isdisjoint(endings) and AUDIO.isdisjoint(endings)
    return [ending for ending in endings if ending not in {*texts, "md"}] if has_text_alone else []


def _content(file: BinaryIO, member: tarfile.TarInfo, where: str) -> bytes:
    if not member.isfile():
        raise bad_row(where, f"it is a link; {_WITHOUT_LINKS}")
    if member.size > MAX_LINE_BYTES or member.issparse():
        raise bad_row(where, "its bytes are too many to describe audio, or it is a sparse file")
    file.seek(member.offset_data)
    return file.read(member.size)


def is_compressed(uri: str) -> bool:
    """Whether it has the name of a compressed tar."""
    return file_name(uri).endswith(COMPRESSED_ENDINGS)


def file_name(uri: str) -> str:
    """The name that shows the format of a file: in lower case, a web address without its query."""
    return (uri.partition("?")[0] if uri.startswith(("http://", "https://")) else uri).lower()


def compressed_tar_error(uri: str) -> DataError:
    """The error of a compressed tar that is not unpacked."""
    return DataError(
        f"`{redact_uri(uri)}` is a compressed tar",
        code="source-layout",
        why="random access is not possible in it: reading a recording means unpacking all before it",
        fix="unpack it, or repack it as a plain tar: compression hardly makes audio smaller",
    )
