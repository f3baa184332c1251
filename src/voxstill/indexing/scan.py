"""What a source holds: folders, buckets, single files and manifests, in the same order every time.

Nothing is decoded here and no source is held in memory. What a file holds is found out later; one that is not there
becomes a recording with a reason.
"""

from __future__ import annotations

import functools
import marshal
import os
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxstill.core.config import Source, sources_of
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.monitor import log
from voxstill.core.records import Split, UtteranceInfo, fingerprint, hash64
from voxstill.indexing.columns import ColumnsRead
from voxstill.indexing.failure import Failure
from voxstill.indexing.folder_splits import FolderSplits, is_held_out, splits_of_addresses, with_split
from voxstill.indexing.folders import folders_in, scan_bucket, scan_folder, tar_entries
from voxstill.indexing.formats.column_names import INFO_COLUMNS
from voxstill.indexing.formats.entry import NO_METADATA, SourceEntry, folder_of, local_entry
from voxstill.indexing.formats.kaldi import KALDI_NAME
from voxstill.indexing.formats.parquet_audio import holds_audio
from voxstill.indexing.formats.registry import reader_for
from voxstill.indexing.formats.tables import read_list
from voxstill.indexing.formats.webdataset import is_compressed, read_tar
from voxstill.indexing.refusals import refuse_credentials, without_texts
from voxstill.storage.cache import Cache
from voxstill.storage.fetch import fetch
from voxstill.storage.redaction import redact_uri
from voxstill.storage.store import Store
from voxstill.storage.uri import is_local, local_path


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file with every entry of the source about it; `id` is that of its recording."""

    id: str
    entries: tuple[SourceEntry, ...]

    @property
    def source(self) -> int:
        """The place of its source in the list of sources."""
        return self.entries[0].source

    @property
    def metadata_hash(self) -> str:
        """Equal where the same source says the same of the file, in whatever order."""
        return self._metadata_hash(self.entries)

    @property
    def untimed_hash(self) -> str:
        """`metadata_hash` without the times of words, as it was in versions that did not read them."""
        return self._metadata_hash([replace(entry, words=None) for entry in self.entries])

    def _metadata_hash(self, entries: Iterable[SourceEntry]) -> str:
        texts = sorted([repr(entry.metadata) for entry in entries])
        if self.source:
            texts.append(str(self.source))
        return f"{hash64(' '.join(texts)):016x}"


def scan(
    source: Source | Sequence[Source], work: Store | None = None, cache: Cache | None = None
) -> Iterator[SourceEntry]:
    """Everything in the sources, in their order; what a folder holds comes sorted, what a bucket holds as it lists it.

    Remote tars are read through the cache, where their audio is then.
    A compressed tar is unpacked into the work folder; without one it is an error, or in a folder a row with a reason.
    ConfigError if there is no source, DataError if a manifest cannot be read or where there is no audio.
    """
    by_source = [[one.uri] if isinstance(one.uri, str) else one.uri for one in sources_of(source)]
    all_uris = [uri for uris in by_source for uri in uris]
    if not all(by_source) or not all(all_uris):
        raise ConfigError(
            "there is no source",
            code="option-missing",
            why="`source.uri` is not set",
            fix="give a folder, file or manifest",
        )
    is_source_empty = True
    splits = splits_of_addresses(all_uris)
    for number, (options, uris) in enumerate(zip(sources_of(source), by_source, strict=True)):
        columns, has_text = ColumnsRead(), False
        for uri in uris:
            is_empty = True
            for entry in _scan_one(uri, work, splits.get(uri), cache):
                is_source_empty = is_empty = False
                columns.add(entry.columns)
                has_text |= entry.text is not None
                refuse_credentials(entry)
                of_source = replace(entry, source=number) if number else entry
                if options.split is not None:
                    of_source = replace(of_source, split=None, implied_split=options.split)
                yield with_split(of_source, splits.get(uri))
            if is_empty and len(all_uris) > 1:
                log.warning("index: `%s` contains no audio", redact_uri(uri))
        if words := str(columns):
            name = f"`{redact_uri(uris[0])}`" if len(uris) == 1 else f"source {number + 1}"
            log.info("index: columns of %s: %s", name, words)
        if options.supervised and not has_text and not is_source_empty:
            raise without_texts(uris)
    if is_source_empty:
        names = ", ".join(f"`{redact_uri(uri)}`" for uri in all_uris)
        raise DataError(
            f"there is no audio in {names}",
            code="no-audio",
            why="it is empty, or has neither audio files nor a known manifest",
            fix="give a folder, file or manifest with audio; docs/sources.md shows what is read",
        )


def _scan_one(uri: str, work: Store | None, split: Split | None, cache: Cache | None) -> Iterator[SourceEntry]:
    """What is at one address of a source, which is named after a split where there is one."""
    path = str(local_path(uri).expanduser().absolute()) if is_local(uri) else None
    if path is not None and os.path.basename(path) == KALDI_NAME and os.path.isfile(path):
        path = os.path.dirname(path)
    if path is not None and os.path.isdir(path):
        yield from scan_folder(path, work, split)
    elif (rows := _rows(uri, path, work, cache)) is not None:
        splits = FolderSplits(folder_of(uri), folders_in if path is not None else lambda _: (), split)
        for entry in rows:
            yield splits.apply(entry, path or uri)
        splits.log()
    elif path is None:
        yield from scan_bucket(uri.rstrip("/"), work, split, cache)
    elif not os.path.exists(path):
        raise DataError(
            f"the source `{path}` does not exist", code="no-source", why="it does not exist", fix="check `source.uri`"
        )
    else:
        yield local_entry(path)


def _rows(uri: str, path: str | None, work: Store | None, cache: Cache | None) -> Iterator[SourceEntry] | None:
    """What a manifest or tar holds; None if it is neither."""
    if work is not None and (is_compressed(uri) or holds_audio(uri)):
        file = local_entry(path) if path is not None else SourceEntry(uri=uri, etag=fetch(f"{uri}#0+1").etag)
        return tar_entries(file, work)
    read = reader_for(uri)
    if read is read_list:
        return (entry for row in read(uri) for entry in tar_entries(row, work, cache))
    if read is read_tar:
        return read_tar(uri, cache)
    return None if read is None else read(uri)


def split_of(entry: SourceEntry, source: Source, seed: int) -> Split:
    """Its named split, else one by hash of the speaker, else of the recording."""
    if (named := named_split(entry, source)) is not None:
        return named
    share = int(fingerprint("split", seed, entry.info.speaker or entry.recording_id), 16) / 16**16
    if share < source.test_share:
        return "test"
    return "dev" if share < source.test_share + source.dev_share else "train"


def named_split(entry: SourceEntry, source: Source) -> Split | None:
    """What the source says of the speaker, else the manifest or a name; None if chance decides.

    Where the source names speakers, all others but those that the manifest holds out are learnt from.
    """
    speaker = speaker_of(entry)
    if speaker is not None and speaker in source.test_speakers:
        return "test"
    if speaker is not None and speaker in source.dev_speakers:
        return "dev"
    named = entry.split or entry.implied_split
    is_for_training = not is_held_out(named) and (source.test_speakers or source.dev_speakers)
    return "train" if is_for_training else named


def speaker_of(entry: SourceEntry) -> str | None:
    """Its speaker as options name one, without spaces around the name."""
    return None if entry.info.speaker is None else entry.info.speaker.strip()


# ------------------------------------------------------------------------------------------------- rows by file


def by_file(entries: Iterable[SourceEntry]) -> SourceFiles:
    """One `SourceFile` for each address, where it first comes, with every entry about it.

    Files that links to folders give several addresses are one, by the first of these.
    An entry that comes twice counts once, and one without metadata adds nothing to others. Samples of tars whose ids
    are not theirs alone get others. DataError if two entries of manifests have one id.
    """
    return SourceFiles(entries)


_OWN_FIELDS = tuple(field.name for field in fields(SourceEntry) if field.name not in ("info", "failure", "columns"))
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


@functools.lru_cache(maxsize=4096)  # files of one folder follow one another
def _real_folder(_: str, folder: str) -> str:
    """A folder without links, for a process in this working directory, which a path may start at."""
    try:
        return os.path.realpath(folder or "/")
    except ValueError:  # a zero byte, which no path has
        return folder


def _real_address(entry: SourceEntry) -> str:
    """Its address without links to folders; a link to a file is a file of its own."""
    folder, slash, name = entry.uri.rpartition("/")
    return f"{_real_folder(os.getcwd(), folder)}/{name}" if slash and is_local(entry.uri) else entry.uri


def _by_first_address(first: SourceEntry, entry: SourceEntry) -> SourceEntry:
    """The entry by the address of another one, where that is of the same file."""
    is_other = first.uri != entry.uri and _real_address(first) == _real_address(entry)
    return replace(entry, uri=first.uri) if is_other else entry


class SourceFiles:
    """The entries of a source, by file: sized, and iterated as often as you like.

    Entries wait in a temporary file; in memory are some 50 bytes for each while they are put in order, then 17.
    """

    def __init__(self, entries: Iterable[SourceEntry]) -> None:
        self._rows = tempfile.TemporaryFile()  # noqa: SIM115  # goes with this object
        keys, ends, ids, id_rows = array("Q"), array("Q", [0]), array("Q"), array("Q")
        end = 0
        for entry in entries:
            if entry.utterance_id is not None:
                ids.append(hash64(entry.utterance_id))
                id_rows.append(len(keys))
            keys.append(hash64(_real_address(entry)))
            end += self._rows.write(_dump(entry))
            ends.append(end)
        self._rows.flush()
        self._end_N = np.frombuffer(ends, np.uint64)
        self._shared_ids: set[str] = set()
        """Ids that a sample of a tar does not have alone."""
        self._find_shared(np.frombuffer(ids, np.uint64), np.frombuffer(id_rows, np.uint64))
        self._order_N, self._is_first_N = _grouped(np.frombuffer(keys, np.uint64))

    def __len__(self) -> int:
        return int(self._is_first_N.sum())

    def __iter__(self) -> Iterator[SourceFile]:
        entries: list[SourceEntry] = []
        for row, is_first in zip(self._order_N, self._is_first_N, strict=True):
            if is_first and entries:
                yield from _files(entries)
                entries = []
            entry = self._entry(row)
            entry = _by_first_address(entries[0], entry) if entries else entry
            is_shared = entry.sample is not None and entry.utterance_id in self._shared_ids
            entries.append(entry.renamed() if is_shared else entry)
        yield from _files(entries)

    def _entry(self, row: np.integer[Any]) -> SourceEntry:
        start, end = self._end_N[row : row + 2].tolist()
        return _load(os.pread(self._rows.fileno(), end - start, start))

    def _find_shared(self, id_N: NDArray[np.uint64], row_N: NDArray[np.uint64]) -> None:
        """Note the ids that samples of tars share; DataError if two rows of manifests share one."""
        order_N = np.argsort(id_N, kind="stable")
        is_same_N = id_N[order_N][1:] == id_N[order_N][:-1]
        is_shared_N = np.zeros(len(id_N), np.bool_)
        is_shared_N[1:] = is_same_N
        is_shared_N[:-1] |= is_same_N
        first: SourceEntry | None = None
        for row in row_N[order_N[is_shared_N]]:
            entry = self._entry(row)
            entry = entry if first is None else _by_first_address(first, entry)
            if first is None or first.utterance_id != entry.utterance_id:
                first = entry
            elif not _is_same_row(first, entry):
                if first.uri == entry.uri:
                    _refuse_two_sources((first, entry))
                if first.uri == entry.uri or (first.sample is None and entry.sample is None):
                    why = f"first at {first.where}, again at {entry.where}"
                    raise DataError(
                        f"two lines have the id `{entry.utterance_id}`",
                        code="id-twice",
                        why=why,
                        fix="give each line its own id",
                    )
                self._shared_ids.add(str(entry.utterance_id))
                first = entry if entry.sample is None else first  # whose id must be unique


def _is_same_row(first: SourceEntry, entry: SourceEntry) -> bool:
    """Whether two entries are one row of a source; a link that is held out by its name gives a row once more."""
    is_split_open = None in (first.implied_split, entry.implied_split)
    return first == (replace(entry, implied_split=first.implied_split) if is_split_open else entry)


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
        _refuse_two_sources(entries)
        described = _from_manifests([entry for entry in entries if entry.metadata != NO_METADATA]) or list(entries)[:1]
        versioned = next((entry for entry in entries if entry.etag), described[0])
        if len(entries) > 1:  # a listing knows version and folder, a manifest the words
            held_out = next((entry.implied_split for entry in entries if is_held_out(entry.implied_split)), None)
            same = (
                _held_out(replace(entry, etag=versioned.etag, num_bytes=versioned.num_bytes), held_out)
                for entry in described
            )
            described = list(dict.fromkeys(same))
        _refuse_two_descriptions(described)
        yield SourceFile(versioned.recording_id, tuple(described))


def _held_out(entry: SourceEntry, split: Split | None) -> SourceEntry:
    """The entry with the split that another entry of its file has; a manifest may say otherwise, a folder may not."""
    is_listed = split is not None and entry.metadata == NO_METADATA
    return replace(entry, implied_split=split) if is_listed else with_split(entry, split)


def _from_manifests(entries: Sequence[SourceEntry]) -> Sequence[SourceEntry]:
    """What manifests say of a file, with the text of a file beside it where they give none; or what that file says."""
    beside = next((entry for entry in entries if entry.is_beside), None)
    rows = [entry for entry in entries if not entry.is_beside]
    if beside is None or not rows:
        return entries
    return [entry if entry.is_cut else replace(entry, text=beside.text, words=beside.words) for entry in rows]


def _refuse_two_descriptions(entries: Sequence[SourceEntry]) -> None:
    """DataError if two rows say different things of one stretch of a file, and their utterances have one id."""
    by_stretch: dict[tuple[int | None, ...], SourceEntry] = {}
    for entry in entries if len(entries) > 1 else ():
        if entry.utterance_id is not None:
            continue
        first = by_stretch.setdefault((entry.channel, entry.start_ms, entry.end_ms), entry)
        if (first.metadata, first.implied_split) != (entry.metadata, entry.implied_split):
            stretch = "" if entry.start_ms is entry.end_ms is None else f" from {entry.start_ms or 0} ms on"
            raise DataError(
                f"two rows differ about `{redact_uri(entry.uri)}`{stretch}",
                code="source-contradiction",
                why=f"{first.where} and {entry.where}: it is not clear which of them is right",
                fix="remove one of them, or give each an `id` to keep both as utterances",
            )


def _refuse_two_sources(entries: Iterable[SourceEntry]) -> None:
    """DataError if sources with options of their own name the same file."""
    numbers = {entry.source: entry for entry in entries}
    if len(numbers) > 1:
        first, *others = sorted(numbers)
        raise DataError(
            f"`{redact_uri(numbers[first].uri)}` is in source {first + 1} and in source {others[0] + 1}",
            code="source-contradiction",
            why="each source has its own language, data set and splits: it is not clear which of them are meant",
            fix="remove it from one of the sources, or list both addresses in the `uri` of one",
        )
