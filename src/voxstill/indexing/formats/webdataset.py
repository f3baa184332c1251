"""WebDataset tars: each audio member is a row, addressed by its bytes so that it can be read alone."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, BinaryIO, TypeVar, cast

from voxstill.core.errors import DataError
from voxstill.core.records import UtteranceInfo
from voxstill.indexing.failure import Failure, FailureKind
from voxstill.indexing.formats.entry import (
    INFO_COLUMNS,
    SourceEntry,
    decode_text,
    local_entry,
    metadata_of,
    parse_json,
)
from voxstill.indexing.formats.remote_file import RemoteFile, open_manifest
from voxstill.storage.redaction import redact_uri
from voxstill.storage.uri import local_path

T = TypeVar("T")
AUDIO = {
    *("wav", "flac", "mp3", "ogg", "oga", "opus", "m4a", "aac", "mp4", "webm", "mka", "mkv", "mov", "3gp"),
    *("aif", "aiff", "au", "caf", "w64", "wma", "amr", "ac3", "sph"),
}
"""Endings by which a member of a tar is taken for audio."""
COMPRESSED_ENDINGS = (".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4")
_COMPRESSED_STARTS = (
    b"\x1f\x8b",
    b"BZh",
    b"\xfd7zXZ",
    b"\x28\xb5\x2f\xfd",
    b"\x04\x22\x4d\x18",
)  # gz, bz2, xz, zstd, lz4


def read_tar(uri: str) -> Iterator[SourceEntry]:
    """A row for each audio member of a WebDataset tar.

    Members that follow one another and share their name up to its first dot are one sample: its `.json` and `.txt`
    are the metadata of its audio. A tar that ends in the middle gives what it holds, and a row that says so. DataError
    where it is compressed.
    """
    with open_manifest(uri) as file:
        tar = tar_entry(uri, file)
        if file.read(8).startswith(_COMPRESSED_STARTS):
            raise compressed_tar_error(uri)
        file.seek(0)
        num_audio = 0
        fault = None
        try:
            archive = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115  # closes with its file
            for sample in _samples(archive):
                for entry in _sample_entries(archive, sample, tar):
                    num_audio += 1
                    yield entry
            file.seek(archive.offset)  # `tarfile` takes a header that it cannot read for the end
            rest = file.read(tarfile.BLOCKSIZE)
            if rest.strip(b"\0") or len(rest) % tarfile.BLOCKSIZE:
                fault = f"there is no header at byte {archive.offset}"
        except tarfile.TarError as error:
            fault = str(error)
    if fault is not None:
        yield replace(tar, failure=Failure(FailureKind.DAMAGED_TAR, f"after {num_audio} recordings: {fault}"))
    elif not num_audio:
        yield replace(tar, failure=Failure(FailureKind.NO_AUDIO, "no member has the ending of an audio file"))


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


def _sample_entries(
    archive: tarfile.TarFile, sample: Sequence[tarfile.TarInfo], tar: SourceEntry
) -> Iterator[SourceEntry]:
    """A row for each audio member of a sample."""
    audio = [member for member in sample if _ending(member) in AUDIO]
    metadata = SourceEntry(uri="")
    plain_text = None
    for member in sample if audio else ():
        where = f"{redact_uri(tar.uri)}:{member.name}"
        if _ending(member) == "txt":
            text = decode_text(_content(archive, member), where).strip()
            plain_text = text if plain_text is None else plain_text
        elif _ending(member) == "json":
            row = parse_json(_content(archive, member), where)
            if "sources" in row:  # of lhotse's Shar: it tells how the audio was cut, the cuts tell the rest
                continue
            if row.get("teacher") is not None:  # a shard of ours: its text is a teacher's label
                row["text"] = row.get("reference")
            metadata = _updated(metadata, metadata_of(row, where))
    if metadata.text is None:
        metadata = replace(metadata, text=plain_text)
    if len(audio) > 1:
        metadata = replace(metadata, id=None)
    for member in audio:
        entry = replace(metadata.located(member_entry(tar, member)), where=f"{redact_uri(tar.uri)}:{member.name}")
        if member.issparse():
            entry = entry.failed(entry.uri, FailureKind.SPARSE, "its bytes do not lie together; repack the tar")
        yield entry


def _updated(metadata: SourceEntry, later: SourceEntry) -> SourceEntry:
    """Metadata with what a later file of the sample says."""

    def known(new: T | None, old: T) -> T:
        return old if new is None else new

    info = {name: known(getattr(later.info, name), getattr(metadata.info, name)) for name in INFO_COLUMNS}
    return replace(
        metadata,
        id=known(later.id, metadata.id),
        text=known(later.text, metadata.text),
        info=UtteranceInfo(**info),
        split=known(later.split, metadata.split),
        implied_split=known(later.implied_split, metadata.implied_split),
        channel=known(later.channel, metadata.channel),
    )


def _ending(member: tarfile.TarInfo) -> str:
    return member.name.rpartition("/")[2].rpartition(".")[2].lower()


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    return b"" if file is None else file.read()


def is_compressed(uri: str) -> bool:
    """Whether it has the name of a compressed tar."""
    return file_name(uri).endswith(COMPRESSED_ENDINGS)


def file_name(uri: str) -> str:
    """The name by which the kind of a file is told: in lower case, a web address without its query."""
    return (uri.partition("?")[0] if uri.startswith(("http://", "https://")) else uri).lower()


def compressed_tar_error(uri: str) -> DataError:
    """The error of a compressed tar that nobody unpacks."""
    return DataError(
        f"`{redact_uri(uri)}` is a compressed tar",
        why="nothing can be read from the middle of it: each recording would cost the unpacking of all before it",
        fix="unpack it, or repack it as a plain tar: audio hardly gets smaller by compression",
    )
