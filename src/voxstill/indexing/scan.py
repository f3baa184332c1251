"""What a source holds: folders, buckets, single files and manifests, in the same order every time.

Nothing is decoded here and no source is held in memory. What a file holds is found out later; one that is not there
becomes a recording with a reason.
"""

from __future__ import annotations

import marshal
import os
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxstill.core.config import Source
from voxstill.core.errors import ConfigError, DataError, StorageError
from voxstill.core.monitor import log
from voxstill.core.records import Split, UtteranceInfo, fingerprint, hash64
from voxstill.indexing import unpack
from voxstill.indexing.failure import Failure, FailureKind
from voxstill.indexing.formats.entry import INFO_COLUMNS, NO_METADATA, SourceEntry, local_entry, split_named
from voxstill.indexing.formats.kaldi import is_kaldi, read_kaldi
from voxstill.indexing.formats.lhotse_nemo import SHAR_CUTS
from voxstill.indexing.formats.registry import reader_for
from voxstill.indexing.formats.tables import METADATA_NAMES, names_audio, read_jsonl
from voxstill.indexing.formats.webdataset import is_compressed, read_tar
from voxstill.storage.fetch import fetch
from voxstill.storage.redaction import redact_uri
from voxstill.storage.store import Store
from voxstill.storage.uri import is_local, local_path

SIDECARS = {
    *(".jsonl", ".json", ".txt", ".lst", ".md", ".csv", ".tsv", ".parquet", ".yaml", ".yml"),
    *(".textgrid", ".srt", ".vtt", ".gz"),
}
"""Endings of what lies beside audio in a folder; any other file is tried."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file with every entry of the source about it; `id` is that of its recording."""

    id: str
    entries: tuple[SourceEntry, ...]

    @property
    def metadata_hash(self) -> str:
        """Equal where the source says the same of the file, in whatever order."""
        return f"{hash64(' '.join(sorted(repr(entry.metadata) for entry in self.entries))):016x}"


def scan(source: Source, work: Store | None = None) -> Iterator[SourceEntry]:
    """Everything in the source, in its order; what a folder holds comes sorted, what a bucket holds as it lists it.

    A compressed tar is unpacked into the work folder; without one it is an error, or in a folder a row with a reason.
    ConfigError where there is no source, DataError where a manifest cannot be read.
    """
    uris = [source.uri] if isinstance(source.uri, str) else source.uri
    if not any(uris):
        raise ConfigError("there is no source", why="`source.uri` is not set", fix="name a folder, file or manifest")
    for uri in uris:
        if is_local(uri) and (path := local_path(uri).expanduser().absolute()).is_dir():
            yield from _scan_splits(str(path), work)
        elif work is not None and is_compressed(uri):
            tar = local_entry(str(path)) if is_local(uri) else SourceEntry(uri=uri, etag=fetch(f"{uri}#0+1").etag)
            yield from read_tar(unpack.unpacked_tar(tar, work))
        elif (read := reader_for(uri)) is not None:
            yield from read(uri)
        elif is_local(uri):
            if not path.exists():
                raise DataError(f"there is no source `{path}`", why="it does not exist", fix="check `source.uri`")
            yield local_entry(str(path))
        else:
            yield from _scan_bucket(uri.rstrip("/"), work)


def split_of(entry: SourceEntry, source: Source, seed: int) -> Split:
    """What the source says of the speaker, else the manifest, else by hash of the speaker, else of the recording."""
    speaker = entry.info.speaker
    if speaker is not None and speaker in source.test_speakers:
        return "test"
    if speaker is not None and speaker in source.dev_speakers:
        return "dev"
    if source.test_speakers or source.dev_speakers:
        return "train"
    if (named := entry.split or entry.implied_split) is not None:
        return named
    share = int(fingerprint("split", seed, speaker or entry.recording_id), 16) / 16**16
    if share < source.test_share:
        return "test"
    return "dev" if share < source.test_share + source.dev_share else "train"


# ------------------------------------------------------------------------------------------------- rows by file


def by_file(entries: Iterable[SourceEntry]) -> SourceFiles:
    """One `SourceFile` for each address, where it first comes, with every entry about it.

    An entry that comes twice counts once, and one without metadata adds nothing to others. DataError where two entries
    have one id.
    """
    return SourceFiles(entries)


_OWN_FIELDS = tuple(field.name for field in fields(SourceEntry) if field.name not in ("info", "failure"))
_marshalled = attrgetter(*_OWN_FIELDS, *(f"info.{name}" for name in INFO_COLUMNS))


def _dump(entry: SourceEntry) -> bytes:
    reason = None if entry.failure is None else entry.failure.text
    return marshal.dumps((reason, *_marshalled(entry)))


def _load(data: bytes) -> SourceEntry:
    reason, *values = marshal.loads(data)
    return SourceEntry(
        **dict(zip(_OWN_FIELDS, values[: len(_OWN_FIELDS)], strict=True)),
        info=UtteranceInfo(**dict(zip(INFO_COLUMNS, values[len(_OWN_FIELDS) :], strict=True))),
        failure=None if reason is None else Failure.parse(reason),
    )


class SourceFiles:
    """The entries of a source, by file: sized, and iterated as often as you like.

    Entries wait in a temporary file; in memory are some 50 bytes for each while they are put in order, then 17.
    """

    def __init__(self, entries: Iterable[SourceEntry]) -> None:
        self._rows = tempfile.TemporaryFile()  # noqa: SIM115  # goes with this object
        keys, ends, ids, id_rows = array("Q"), array("Q", [0]), array("Q"), array("Q")
        end = 0
        for entry in entries:
            if entry.id is not None:
                ids.append(hash64(entry.id))
                id_rows.append(len(keys))
            keys.append(hash64(entry.uri))
            end += self._rows.write(_dump(entry))
            ends.append(end)
        self._rows.flush()
        self._end_N = np.frombuffer(ends, np.uint64)
        self._refuse_twice(np.frombuffer(ids, np.uint64), np.frombuffer(id_rows, np.uint64))
        self._order_N, self._is_first_N = _grouped(np.frombuffer(keys, np.uint64))

    def __len__(self) -> int:
        return int(self._is_first_N.sum())

    def __iter__(self) -> Iterator[SourceFile]:
        entries: list[SourceEntry] = []
        for row, is_first in zip(self._order_N, self._is_first_N, strict=True):
            if is_first and entries:
                yield from _files(entries)
                entries = []
            entries.append(self._entry(row))
        yield from _files(entries)

    def _entry(self, row: np.integer[Any]) -> SourceEntry:
        start, end = self._end_N[row : row + 2].tolist()
        return _load(os.pread(self._rows.fileno(), end - start, start))

    def _refuse_twice(self, id_N: NDArray[np.uint64], row_N: NDArray[np.uint64]) -> None:
        order_N = np.argsort(id_N, kind="stable")
        same_N = np.flatnonzero(id_N[order_N][1:] == id_N[order_N][:-1])
        for left, right in zip(row_N[order_N[same_N]], row_N[order_N[same_N + 1]], strict=True):
            first, again = self._entry(left), self._entry(right)
            if first.id == again.id and first != again:
                why = f"first at {first.where}, again at {again.where}"
                raise DataError(f"the id `{again.id}` is said twice", why=why, fix="give each line its own id")


def _grouped(key_N: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Rows so that those of one key follow one another, from where it came first; and which are the first of a key."""
    order_N = np.argsort(key_N, kind="stable")
    sorted_N = key_N[order_N]
    is_first_N = np.ones(len(key_N), np.bool_)
    np.not_equal(sorted_N[1:], sorted_N[:-1], out=is_first_N[1:])
    del sorted_N
    if is_first_N.all():
        return np.arange(len(key_N)), is_first_N
    leader_N = np.empty_like(order_N)
    leader_N[order_N] = order_N[is_first_N][np.cumsum(is_first_N) - 1]
    order_N = np.argsort(leader_N, kind="stable")
    return order_N, leader_N[order_N] == order_N


def _files(rows: Sequence[SourceEntry]) -> Iterator[SourceFile]:
    """The files of entries whose addresses have one hash, and so nearly always one address."""
    by_uri: dict[str, dict[SourceEntry, None]] = {}
    if len(rows) == 1:
        yield SourceFile(rows[0].recording_id, (rows[0],))
        return
    for entry in rows:
        by_uri.setdefault(entry.uri, {})[entry] = None
    for entries in by_uri.values():
        described = [entry for entry in entries if entry.metadata != NO_METADATA] or list(entries)[:1]
        versioned = next((entry for entry in entries if entry.etag), described[0])
        if len(entries) > 1:  # a listing knows the version, a manifest the words
            same = (replace(entry, etag=versioned.etag, num_bytes=versioned.num_bytes) for entry in described)
            described = list(dict.fromkeys(same))
        yield SourceFile(versioned.recording_id, tuple(described))


# ------------------------------------------------------------------------------------------------- folders and buckets


def _scan_splits(path: str, work: Store | None) -> Iterator[SourceEntry]:
    """The files of a folder, with the splits that its folders are named after."""
    try:
        with os.scandir(path) as children:
            splits = _splits_of_folders(child.name for child in children if child.is_dir())
    except OSError:  # which is a row below
        splits = {}
    for entry in _scan_folder(path, work):
        folder = entry.uri.removeprefix(f"{path.rstrip('/')}/").partition("/")[0]
        yield _with_split(entry, splits.get(folder))


def _splits_of_folders(names: Iterable[str]) -> dict[str, Split]:
    """The split of each folder that is named after one, where another is named after `train`; else of none.

    So Hugging Face lays out audio folders (`train`, `validation`, `test`), and LibriSpeech its parts (`dev-clean`).
    """
    splits = {name: split for name in names if (split := split_named(name)) is not None}
    if not {"train"} < set(splits.values()):
        return {}
    named = ", ".join(f"`{name}` is {split}" for name, split in sorted(splits.items()))
    log.info("index: folders are named after splits: %s", named)
    return splits


def _with_split(entry: SourceEntry, split: Split | None) -> SourceEntry:
    is_known = split is None or entry.split is not None or entry.implied_split is not None
    return entry if is_known else replace(entry, implied_split=split)


def _scan_folder(path: str, work: Store | None) -> Iterator[SourceEntry]:
    """Files of a folder, then those of its folders; manifests that are known by name, tars and Kaldi's are read."""
    if is_kaldi(path):
        yield from read_kaldi(path)
        return
    try:
        with os.scandir(path) as children:
            visible = [child for child in children if not child.name.startswith(".")]
            folders = sorted(child.name for child in visible if child.is_dir(follow_symlinks=False))
            names = sorted(child.name for child in visible if not _is_folder(child))
    except OSError as error:
        yield SourceEntry(uri=path, failure=Failure(FailureKind.UNREADABLE, str(error.strerror)))
        return
    del visible
    for name in names:
        yield from _expand(local_entry(f"{path.rstrip('/')}/{name}"), name, work)
    for name in folders:
        folder = f"{path.rstrip('/')}/{name}"
        if work is not None and folder == work.root:
            log.info("index: the work folder `%s` lies in the source and is left out", folder)
        else:
            yield from _scan_folder(folder, work)


def _is_folder(child: os.DirEntry[str]) -> bool:
    try:
        return child.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _scan_bucket(uri: str, work: Store | None) -> Iterator[SourceEntry]:
    """The objects below an address, or the one that is there."""
    is_empty = True
    if not uri.startswith(("http://", "https://")):  # where nothing can be listed
        folder = Store(uri)
        splits = _splits_of_folders(folder.folders())
        for item in folder.list():
            is_empty = False
            is_in_work = work is not None and folder.uri(item.key).startswith(f"{work.root}/")
            if not is_in_work and not any(part.startswith(".") for part in PurePosixPath(item.key).parts):
                entry = SourceEntry(uri=folder.uri(item.key), etag=item.etag or None, num_bytes=item.num_bytes)
                for row in _expand(entry, item.key.rpartition("/")[2], work):
                    yield _with_split(row, splits.get(item.key.partition("/")[0]))
    if is_empty:
        try:
            first = fetch(f"{uri}#0+1")
        except StorageError as error:
            raise DataError(
                f"there is no source `{redact_uri(uri)}`", why=error.why, fix="check `source.uri`"
            ) from None
        yield SourceEntry(uri=uri, etag=first.etag, num_bytes=first.num_bytes)


def _expand(file: SourceEntry, name: str, work: Store | None) -> Iterator[SourceEntry]:
    """The entries that a file of a folder stands for: itself, or what a manifest or tar holds."""
    ending = os.path.splitext(name)[1].lower()
    if name.startswith("."):
        return
    if name in METADATA_NAMES:
        read = reader_for(name)
        if read is not None and names_audio(file.uri):
            yield from read(file.uri)
        else:
            log.warning("index: `%s` has no column `file_name` and is not read", redact_uri(file.uri))
    elif SHAR_CUTS.fullmatch(name):
        yield from read_jsonl(file.uri)
    elif is_compressed(name) and work is not None:
        yield from read_tar(unpack.unpacked_tar(file, work))
    elif is_compressed(name):
        detail = "nothing can be read from its middle; unpack or repack it"
        yield replace(file, failure=Failure(FailureKind.COMPRESSED_TAR, detail))
    elif ending == ".tar":
        yield from read_tar(file.uri)
    elif ending not in SIDECARS:
        yield file
