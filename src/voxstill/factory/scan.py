"""What there is to hear: folders, buckets, single files and manifests, in the same order every time.

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

from voxstill.config import Source
from voxstill.errors import ConfigError, DataError, StorageError
from voxstill.factory import manifests, unpack
from voxstill.factory.manifests import Found, hash64, here
from voxstill.monitor import log
from voxstill.records import Split, fingerprint
from voxstill.store import Store, fetch, is_local, local_path, shown

SIDECARS = {
    *(".jsonl", ".json", ".txt", ".lst", ".md", ".csv", ".tsv", ".parquet", ".yaml", ".yml"),
    *(".textgrid", ".srt", ".vtt", ".gz"),
}
"""Endings of what lies beside audio in a folder; any other file is tried."""
_FIELDS = tuple(field.name for field in fields(Found))
_values = attrgetter(*_FIELDS)


@dataclass(frozen=True, slots=True)
class File:
    """One file with everything that was found of it; `id` is that of its recording."""

    id: str
    found: tuple[Found, ...]

    @property
    def said(self) -> str:
        """Equal where the source says the same of the file, in whatever order."""
        return f"{hash64(' '.join(sorted(repr(each.facts) for each in self.found))):016x}"


_SILENT = Found(uri="").facts


def scan(source: Source, work: Store | None = None) -> Iterator[Found]:
    """Everything in the source, in its order; what a folder holds comes sorted, what a bucket holds as it lists it.

    A compressed tar is unpacked into the work folder; without one it is an error, or in a folder a row with a reason.
    ConfigError where there is no source, DataError where a manifest cannot be read.
    """
    uris = [source.uri] if isinstance(source.uri, str) else source.uri
    if not any(uris):
        raise ConfigError("there is no source", why="`source.uri` is not set", fix="name a folder, file or manifest")
    for uri in uris:
        if is_local(uri) and (path := local_path(uri).expanduser().absolute()).is_dir():
            yield from _folder(str(path), work)
        elif work is not None and manifests.is_compressed(uri):
            found = here(str(path)) if is_local(uri) else Found(uri=uri, etag=fetch(f"{uri}#0+1").etag)
            yield from manifests.tar(unpack.plain(found, work))
        elif (read := manifests.reader(uri)) is not None:
            yield from read(uri)
        elif is_local(uri):
            if not path.exists():
                raise DataError(f"there is no source `{path}`", why="it does not exist", fix="check `source.uri`")
            yield here(str(path))
        else:
            yield from _far(uri.rstrip("/"), work)


def split_of(found: Found, source: Source, seed: int) -> Split:
    """What the source says of the speaker, else the manifest, else by hash of the speaker, else of the recording."""
    if found.speaker is not None and found.speaker in source.test_speakers:
        return "test"
    if found.speaker is not None and found.speaker in source.dev_speakers:
        return "dev"
    if source.test_speakers or source.dev_speakers:
        return "train"
    if found.split is not None:
        return found.split
    place = int(fingerprint("split", seed, found.speaker or found.recording_id), 16) / 16**16
    if place < source.test_share:
        return "test"
    return "dev" if place < source.test_share + source.dev_share else "train"


# ------------------------------------------------------------------------------------------------- rows by file


def by_file(found: Iterable[Found]) -> Files:
    """One `File` for each address, where it was first found, with every row about it.

    A row found twice counts once, and a row that says nothing adds nothing to others. DataError where an id is said
    twice.
    """
    return Files(found)


class Files:
    """What was found, by file: sized, and iterated as often as you like.

    Rows wait in a temporary file; in memory are some 50 bytes for each while they are put in order, then 17.
    """

    def __init__(self, found: Iterable[Found]) -> None:
        self._rows = tempfile.TemporaryFile()  # noqa: SIM115  # goes with this object
        keys, ends, ids, id_rows = array("Q"), array("Q", [0]), array("Q"), array("Q")
        at = 0
        for each in found:
            if each.id is not None:
                ids.append(hash64(each.id))
                id_rows.append(len(keys))
            keys.append(hash64(each.uri))
            at += self._rows.write(marshal.dumps(_values(each)))
            ends.append(at)
        self._rows.flush()
        self._end_N = np.frombuffer(ends, np.uint64)
        self._refuse_twice(np.frombuffer(ids, np.uint64), np.frombuffer(id_rows, np.uint64))
        self._order_N, self._is_first_N = _in_order(np.frombuffer(keys, np.uint64))

    def __len__(self) -> int:
        return int(self._is_first_N.sum())

    def __iter__(self) -> Iterator[File]:
        rows: list[Found] = []
        for row, is_first in zip(self._order_N, self._is_first_N, strict=True):
            if is_first and rows:
                yield from _files(rows)
                rows = []
            rows.append(self._row(row))
        yield from _files(rows)

    def _row(self, index: np.integer[Any]) -> Found:
        start, end = self._end_N[index : index + 2].tolist()
        values = marshal.loads(os.pread(self._rows.fileno(), end - start, start))
        return Found(**dict(zip(_FIELDS, values, strict=True)))

    def _refuse_twice(self, id_N: NDArray[np.uint64], row_N: NDArray[np.uint64]) -> None:
        order_N = np.argsort(id_N, kind="stable")
        same_N = np.flatnonzero(id_N[order_N][1:] == id_N[order_N][:-1])
        for left, right in zip(row_N[order_N[same_N]], row_N[order_N[same_N + 1]], strict=True):
            first, again = self._row(left), self._row(right)
            if first.id == again.id and first != again:
                why = f"first at {first.where}, again at {again.where}"
                raise DataError(f"the id `{again.id}` is said twice", why=why, fix="give each line its own id")


def _in_order(key_N: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
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


def _files(rows: Sequence[Found]) -> Iterator[File]:
    """Rows whose addresses have one hash, and so nearly always one address."""
    by_uri: dict[str, dict[Found, None]] = {}
    if len(rows) == 1:
        yield File(rows[0].recording_id, (rows[0],))
        return
    for each in rows:
        by_uri.setdefault(each.uri, {})[each] = None
    for found in by_uri.values():
        telling = [each for each in found if each.facts != _SILENT] or list(found)[:1]
        known = next((each for each in found if each.etag), telling[0])
        if len(found) > 1:  # a listing knows the version, a manifest the words
            alike = (replace(each, etag=known.etag, num_bytes=known.num_bytes) for each in telling)
            telling = list(dict.fromkeys(alike))
        yield File(known.recording_id, tuple(telling))


# ------------------------------------------------------------------------------------------------- folders and buckets


def _folder(path: str, work: Store | None) -> Iterator[Found]:
    """Files of a folder, then those of its folders; manifests that are known by name, tars and Kaldi's are read."""
    if manifests.is_kaldi(path):
        yield from manifests.kaldi(path)
        return
    try:
        with os.scandir(path) as entries:
            visible = [entry for entry in entries if not entry.name.startswith(".")]
            folders = sorted(entry.name for entry in visible if entry.is_dir(follow_symlinks=False))
            names = sorted(entry.name for entry in visible if not _is_folder(entry))
    except OSError as error:
        yield Found(uri=path, error=f"cannot be read: {error.strerror}")
        return
    del visible
    for name in names:
        yield from _entry(here(f"{path.rstrip('/')}/{name}"), name, work)
    for name in folders:
        yield from _folder(f"{path.rstrip('/')}/{name}", work)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _far(uri: str, work: Store | None) -> Iterator[Found]:
    """The objects below an address, or the one that is there."""
    is_empty = True
    if not uri.startswith(("http://", "https://")):  # where nothing can be listed
        folder = Store(uri)
        for entry in folder.list():
            is_empty = False
            if not any(part.startswith(".") for part in PurePosixPath(entry.key).parts):
                found = Found(uri=folder.uri(entry.key), etag=entry.etag or None, num_bytes=entry.num_bytes)
                yield from _entry(found, entry.key.rpartition("/")[2], work)
    if is_empty:
        try:
            first = fetch(f"{uri}#0+1")
        except StorageError as error:
            raise DataError(f"there is no source `{shown(uri)}`", why=error.why, fix="check `source.uri`") from None
        yield Found(uri=uri, etag=first.etag, num_bytes=first.num_bytes)


def _entry(found: Found, name: str, work: Store | None) -> Iterator[Found]:
    """What a file of a folder means."""
    ending = os.path.splitext(name)[1].lower()
    if name.startswith("."):
        return
    if name in manifests.METADATA:
        read = manifests.reader(name)
        if read is not None and manifests.tells_of_audio(found.uri):
            yield from read(found.uri)
        else:
            log.warning("index: `%s` has no column `file_name` and is not read", shown(found.uri))
    elif manifests.SHAR_CUTS.fullmatch(name):
        yield from manifests.json_lines(found.uri)
    elif manifests.is_compressed(name) and work is not None:
        yield from manifests.tar(unpack.plain(found, work))
    elif manifests.is_compressed(name):
        yield replace(found, error="compressed tar: nothing can be read from its middle; unpack or repack it")
    elif ending == ".tar":
        yield from manifests.tar(found.uri)
    elif ending not in SIDECARS:
        yield found
