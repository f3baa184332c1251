"""Folders and buckets as sources: which of their files may be audio, and which say what the others are.

Manifests that are known by name, tars, Parquet files with audio inside and the directories of Kaldi, LibriSpeech and
Common Voice are read.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from voxstill.core.errors import DataError, StorageError
from voxstill.core.monitor import log
from voxstill.core.records import Split
from voxstill.indexing import unpack
from voxstill.indexing.beside import with_descriptions
from voxstill.indexing.failure import Failure, FailureKind
from voxstill.indexing.folder_splits import FolderSplits, is_held_out, with_split
from voxstill.indexing.formats import aishell, common_voice
from voxstill.indexing.formats.entry import SourceEntry, local_entry, split_named
from voxstill.indexing.formats.kaldi import KALDI_NAME, is_kaldi, read_kaldi
from voxstill.indexing.formats.lhotse_nemo import SHAR_CUTS
from voxstill.indexing.formats.parquet_audio import holds_audio, split_of_name
from voxstill.indexing.formats.registry import reader_for, transcripts_reader
from voxstill.indexing.formats.remote_file import RemoteFile
from voxstill.indexing.formats.tables import (
    MANIFEST_NAMES,
    METADATA_NAMES,
    names_audio,
    read_jsonl,
    read_list,
)
from voxstill.indexing.formats.webdataset import file_name, is_compressed, read_tar
from voxstill.storage.cache import Cache
from voxstill.storage.fetch import WebPageError
from voxstill.storage.redaction import redact_uri
from voxstill.storage.store import Entry, Store
from voxstill.storage.uri import is_local
from voxstill.storage.workdir import OWN_NAMES

SIDECARS = {
    *(".jsonl", ".json", ".txt", ".lst", ".list", ".md", ".csv", ".tsv", ".parquet", ".yaml", ".yml"),
    *(".textgrid", ".srt", ".vtt", ".ltr", ".wrd", ".phn", ".km", ".gz"),
}
"""Endings of what lies beside audio in a folder; any other file is tried."""
_MANIFESTS_KEPT = 16
_MANIFEST_ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".csv", ".tsv", ".parquet", ".list")


_RECIPE = re.compile("[0-9a-f]{16}")


@dataclass(slots=True)
class _Walk:
    """One walk through a folder or bucket, with what it leaves for later."""

    work: Store | None
    cache: Cache | None
    """Through which remote tars are read."""
    splits: FolderSplits
    work_path: str | None = None
    """Real path of the work folder on this machine."""
    skip: list[str] = field(default_factory=list)
    """Real paths of folders that are not entered: they were, or hold the work."""
    links: deque[str] = field(default_factory=deque)
    """Links to folders, which are followed at the end."""
    manifests: list[str] = field(default_factory=list)
    """The first files that have the ending of a manifest and were not read."""


# ------------------------------------------------------------------------------------------------- folders


def scan_folder(path: str, work: Store | None, split: Split | None = None) -> Iterator[SourceEntry]:
    """The files of a folder, with the splits that its folders are named after; links to folders are followed last."""
    work_path = os.path.realpath(work.root) if work is not None and is_local(work.root) else None
    walk = _Walk(work, None, FolderSplits(path, folders_in, split), work_path)
    is_empty = True
    for entry in _follow(path, walk):
        is_empty = False
        yield entry
    yield from _unread_manifests(path, walk, is_empty)
    walk.splits.log()


def folders_in(path: str) -> list[str]:
    """Names of the folders in a folder of this machine."""
    try:
        with os.scandir(path) as children:
            return [child.name for child in children if _is_folder(child)]
    except OSError:  # which is a row by then
        return []


def _follow(path: str, walk: _Walk) -> Iterator[SourceEntry]:
    """Everything below a folder, each real folder once: a link to one that was read already leads nowhere new.

    A link that is held out by its name is followed also then, so that its files come once more, as held out.
    """
    yield from _scan_folder(path, walk, is_linked=False)
    seen = [os.path.realpath(path)]
    if walk.work_path is not None:
        walk.skip.append(walk.work_path)
    while walk.links:
        link = walk.links.popleft()
        target = os.path.realpath(link)
        if _is_inside(target, (*seen, *walk.skip)):
            if _holds_out(link, target, walk):
                yield from _scan_folder(
                    link, _Walk(walk.work, walk.cache, walk.splits, walk.work_path), is_linked=False
                )
                continue
            log.info("index: the link `%s` points to a folder that is already read or left out", link)
            continue
        walk.skip.extend(seen)
        seen = [target]
        yield from _scan_folder(link, walk, is_linked=True)


def _holds_out(link: str, target: str, walk: _Walk) -> bool:
    """Whether a link to a folder of the source is held out by its name; not one to where it lies itself, or to work."""
    is_loop = _is_inside(os.path.realpath(os.path.dirname(link)), [target])
    is_work = walk.work_path is not None and _is_inside(target, [walk.work_path])
    return not is_loop and not is_work and is_held_out(walk.splits.of(f"{link}/"))


def _is_inside(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def _scan_folder(path: str, walk: _Walk, is_linked: bool) -> Iterator[SourceEntry]:
    """What is in a folder, with the texts of the transcript beside it where it is of AISHELL."""
    entries, transcript = _scan_files(path, walk, is_linked), aishell.transcript_beside(path)
    yield from aishell.with_texts(entries, transcript) if transcript is not None else entries


def _scan_files(path: str, walk: _Walk, is_linked: bool) -> Iterator[SourceEntry]:
    """Files of a folder, then those of its folders; what is known by its name or its layout is read."""
    if is_kaldi(path):
        for entry in read_kaldi(path):
            yield walk.splits.apply(entry, f"{path}/{KALDI_NAME}")
        return
    try:
        with os.scandir(path) as children:
            visible = [child for child in children if not child.name.startswith(".")]
            links = sorted(child.name for child in visible if _is_folder(child) and child.is_symlink())
            folders = sorted(child.name for child in visible if child.is_dir(follow_symlinks=False))
            names = sorted(child.name for child in visible if not _is_folder(child))
    except OSError as error:
        yield SourceEntry(uri=path, failure=Failure(FailureKind.UNREADABLE, str(error.strerror)))
        return
    del visible
    is_source = walk.work_path is not None and os.path.realpath(path) == walk.work_path
    if is_source or _is_work(path, folders):  # what is in a work folder are copies of what is elsewhere
        links, folders, names = ([name for name in part if name not in OWN_NAMES] for part in (links, folders, names))
    if tables := common_voice.tables_in(path, names, (*folders, *links)):
        yield from _read_common_voice(path, tables)
        return
    walk.links.extend(f"{path.rstrip('/')}/{name}" for name in links)
    for file in with_descriptions(local_entry(f"{path.rstrip('/')}/{name}") for name in names):
        yield from _expand(file, walk)
    for name in folders:
        folder = f"{path.rstrip('/')}/{name}"
        if walk.work_path is not None and os.path.realpath(folder) == walk.work_path:
            log.info("index: the work folder `%s` is inside the source and is left out", folder)
        elif not (is_linked and _is_inside(os.path.realpath(folder), walk.skip)):
            yield from _scan_folder(folder, walk, is_linked)


def _is_work(path: str, folders: Sequence[str]) -> bool:
    """Whether a folder is a work folder, of this or of another corpus."""
    if not {"recordings", "utterances"} <= set(folders):
        return False
    return any(_RECIPE.fullmatch(name) for name in folders_in(f"{path.rstrip('/')}/utterances"))


def _is_folder(child: os.DirEntry[str]) -> bool:
    try:
        return child.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _read_common_voice(path: str, tables: Sequence[str]) -> Iterator[SourceEntry]:
    """The clips that the tables of Common Voice name; others are of speakers whose split is unknown."""
    log.info("index: `%s` is Common Voice: %s are read", path, ", ".join(f"`{name}`" for name in tables))
    for name in tables:
        yield from common_voice.read_tsv(f"{path.rstrip('/')}/{name}")


# ------------------------------------------------------------------------------------------------- buckets


def scan_bucket(
    uri: str, work: Store | None, split: Split | None = None, cache: Cache | None = None
) -> Iterator[SourceEntry]:
    """The objects below an address, or the one that is there."""
    is_missing = True
    if not uri.startswith(("http://", "https://")):  # where nothing can be listed
        folder, walk = Store(uri), _Walk(work, cache, FolderSplits(uri, lambda prefix: Store(prefix).folders(), split))
        items = folder.list()
        first, is_empty = next(items, None), True
        is_missing = first is None
        for file in with_descriptions(_objects(itertools.chain([first] if first else [], items), folder, work)):
            for entry in _expand(file, walk):
                is_empty = False
                yield entry
        if not is_missing:
            yield from _unread_manifests(uri, walk, is_empty)
            walk.splits.log()
    if is_missing:
        yield _single_object(uri)


def _objects(items: Iterable[Entry], folder: Store, work: Store | None) -> Iterator[SourceEntry]:
    """The objects below an address that are not hidden and not of the work folder."""
    for item in items:
        is_of_work = work is not None and _is_of_work(folder.uri(item.key), folder, work)
        if not is_of_work and not any(part.startswith(".") for part in PurePosixPath(item.key).parts):
            _refuse_layout(folder.uri(item.key), item.key.rpartition("/")[2])
            yield SourceEntry(uri=folder.uri(item.key), etag=item.etag or None, num_bytes=item.num_bytes)


def _is_of_work(uri: str, folder: Store, work: Store) -> bool:
    """Whether an object of the source is of the work folder; where the source lies in that, only its own files are."""
    if not uri.startswith(f"{work.root}/"):
        return False
    is_source_inside = f"{folder.root}/".startswith(f"{work.root}/")
    return not is_source_inside or uri.removeprefix(f"{work.root}/").partition("/")[0] in OWN_NAMES


def _single_object(uri: str) -> SourceEntry:
    """The object at an address; DataError if there is none, or where it is a page of a web server."""
    is_web = uri.startswith(("http://", "https://"))
    try:
        with closing(RemoteFile(uri)) as file:
            is_page = is_web and file.read(1) == b"<"
            entry = SourceEntry(uri=uri, etag=file.etag, num_bytes=file.seek(0, os.SEEK_END))
    except WebPageError:
        is_page = True
    except StorageError as error:
        raise DataError(
            f"the source `{redact_uri(uri)}` does not exist", code=error.code, why=error.why, fix="check `source.uri`"
        ) from None
    if is_page:
        raise DataError(
            f"`{redact_uri(uri)}` is a web page",
            code="web-page",
            why="a web server does not list its files as a bucket does, and may answer with a login",
            fix="give a file there, or a manifest or list of addresses; put a user and password into ~/.netrc",
        )
    return entry


def _refuse_layout(uri: str, name: str) -> None:
    """DataError for a layout that is read from a folder of this machine only."""
    if name == KALDI_NAME:
        raise DataError(
            f"`{redact_uri(uri)}` belongs to a Kaldi directory, which is not read from a bucket",
            code="source-layout",
            why="its paths are relative to a folder of a machine, and its tables are read line by line",
            fix="copy the directory (not the audio) to this machine, with addresses in `wav.scp`, and give that",
        )
    if aishell.is_in_bucket(uri):
        raise DataError(
            f"`{redact_uri(uri)}` is the transcript of AISHELL, whose folder is not read from a bucket",
            code="source-layout",
            why="the transcript does not say where the audio of a line is",
            fix="write a manifest with addresses, or copy the folder to this machine",
        )
    if name in common_voice.SPLIT_TABLES and common_voice.is_common_voice(uri):
        raise DataError(
            f"`{redact_uri(uri)}` belongs to Common Voice, whose folder is not read from a bucket",
            code="source-layout",
            why="a listing does not show which of its clips are held out",
            fix="give its tables instead of the folder: `train.tsv`, `dev.tsv` and `test.tsv`",
        )


# ------------------------------------------------------------------------------------------------- files


def _expand(file: SourceEntry, walk: _Walk) -> Iterator[SourceEntry]:
    """The entries that a file of a folder stands for, with their splits."""
    for entry in _entries(file, file.uri.rpartition("/")[2], walk):
        yield walk.splits.apply(entry, file.uri)


def _entries(file: SourceEntry, name: str, walk: _Walk) -> Iterator[SourceEntry]:
    """A file of a folder itself, or what it holds as a manifest or tar."""
    ending = os.path.splitext(name)[1].lower()
    if name.startswith("."):
        return
    if file.failure is not None:
        yield file
    elif ending == ".parquet" and holds_audio(file.uri):
        yield from tar_entries(file, walk.work, walk.cache)
    elif (read_transcripts := transcripts_reader(file.uri)) is not None:
        yield from read_transcripts(file.uri)
    elif name in METADATA_NAMES or name in MANIFEST_NAMES:
        read = reader_for(file.uri)
        if read is not None and names_audio(file.uri):
            yield from read(file.uri)
        else:
            column = "file_name" if name in METADATA_NAMES else "audio"
            log.warning("index: `%s` has no column `%s` and is not read", redact_uri(file.uri), column)
    elif name == "data.list":
        for entry in read_list(file.uri):
            yield from tar_entries(entry, walk.work, walk.cache)
    elif SHAR_CUTS.fullmatch(name):
        yield from read_jsonl(file.uri)
    elif ending == ".tar" or is_compressed(name):
        yield from tar_entries(file, walk.work, walk.cache)
    elif ending not in SIDECARS:
        yield file
    elif name.endswith(_MANIFEST_ENDINGS) and len(walk.manifests) < _MANIFESTS_KEPT:
        walk.manifests.append(file.uri)


def tar_entries(file: SourceEntry, work: Store | None, cache: Cache | None = None) -> Iterator[SourceEntry]:
    """What a tar or a Parquet file with audio inside holds, or the file itself where it is none.

    A compressed one is unpacked into the work folder; without that it is a row with a reason.
    """
    is_parquet = holds_audio(file.uri)
    if work is not None and (is_compressed(file.uri) or is_parquet):
        split = (split_of_name(file.uri) if is_parquet else None) or _held_out_by_name(file.uri)
        for entry in read_tar(unpack.unpacked_tar(file, work)):
            unpacked = _of_row(entry, file.uri) if is_parquet else entry
            yield with_split(replace(unpacked, origin=file.uri), split)
    elif is_parquet:
        detail = "no recording can be read alone; `voxstill index` unpacks it into its work folder"
        yield replace(file, failure=Failure(FailureKind.IN_PARQUET, detail))
    elif is_compressed(file.uri):
        detail = "random access is not possible in it; unpack or repack it"
        yield replace(file, failure=Failure(FailureKind.COMPRESSED_TAR, detail))
    elif file_name(file.uri).endswith(".tar"):
        for entry in read_tar(file.uri, cache):
            yield with_split(entry, _held_out_by_name(file.uri))
    else:
        yield file


def _held_out_by_name(uri: str) -> Split | None:
    """The split that a tar or Parquet file is held out as by its name, `test.tar` or `dev-000.parquet`."""
    split = split_named(file_name(uri).rpartition("/")[2].partition(".")[0])
    return split if is_held_out(split) else None


def _of_row(entry: SourceEntry, parquet: str) -> SourceEntry:
    """An entry that was a row of a Parquet file; without audio its failure names the row."""
    if entry.failure is None or entry.failure.kind != FailureKind.NO_AUDIO or entry.sample is None:
        return entry
    detail = f"row {int(entry.sample) + 1} of `{redact_uri(parquet)}` has no bytes"
    return replace(entry, failure=Failure(FailureKind.NO_AUDIO, detail))


def _unread_manifests(uri: str, walk: _Walk, is_empty: bool) -> Iterator[SourceEntry]:
    """The rows of the only manifest in a folder without audio; a warning where audio is read and a manifest is not.

    DataError if several manifests might be meant.
    """
    manifests = []
    for manifest in walk.manifests:
        try:
            # beside audio, a `.json` is of one file; a list of paths has no columns
            if (is_empty or not manifest.endswith(".json")) and (manifest.endswith(".list") or names_audio(manifest)):
                manifests.append(manifest)
        except DataError:  # it was not requested
            log.warning("index: `%s` cannot be opened", redact_uri(manifest))
    if not manifests:
        return
    names = ", ".join(f"`{redact_uri(manifest)}`" for manifest in manifests)
    if not is_empty:
        log.warning(
            "index: the folder is read without these manifests; to read them, give them as the source: %s", names
        )
        return
    if len(manifests) > 1:
        raise DataError(
            f"`{redact_uri(uri)}` contains no audio but several manifests",
            code="source-layout",
            why=f"{names}: it is not clear which of them are meant",
            fix="give the manifests in `source.uri`",
        )
    read = reader_for(manifests[0])
    assert read is not None, "only endings of manifests are kept"
    for row in read(manifests[0]):
        for entry in tar_entries(row, walk.work, walk.cache):
            yield walk.splits.apply(entry, manifests[0])
