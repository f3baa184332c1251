"""What there is to hear: files in folders, single files and the rows of JSONL manifests, in the same order every time.

Nothing is decoded here. What a manifest says wrongly is an error that names the line; what a file holds is found out
later, and a file that is not there becomes a recording with a reason.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast, get_args

from voxstill.config import Source
from voxstill.errors import ConfigError, DataError, StorageError
from voxstill.records import Split, fingerprint
from voxstill.store import Store, is_local, local_path, read_uri

SIDECARS = frozenset(
    [".jsonl", ".json", ".txt", ".md", ".csv", ".tsv", ".textgrid", ".srt", ".vtt", ".parquet", ".yaml", ".yml"]
)
"""Endings of what lies beside audio in a folder; any other file is tried."""
_TEXTS = ("id", "text", "speaker", "language", "dialect", "dataset", "split")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One file, or one stretch of it, and what its manifest knows. Without an etag its size stands for its content."""

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
    start_ms: int | None = None
    end_ms: int | None = None

    @property
    def recording_id(self) -> str:
        """The same for the same file with the same content."""
        return fingerprint(self.uri, self.etag or self.num_bytes)


@dataclass(frozen=True, slots=True)
class File:
    """One file with everything that was found of it; `id` is that of its recording."""

    id: str
    found: tuple[Found, ...]


def scan(source: Source) -> Iterator[Found]:
    """Everything in the source, in its order; what a folder holds comes sorted by path.

    ConfigError where there is no source, DataError where a manifest cannot be read or says an `id` twice.
    """
    uris = [source.uri] if isinstance(source.uri, str) else source.uri
    if not any(uris):
        raise ConfigError("there is no source", why="`source.uri` is not set", fix="name a folder, file or manifest")
    said_at: dict[str, str] = {}
    for uri in uris:
        if uri.lower().endswith(".jsonl"):
            yield from _manifest(uri, said_at)
        elif is_local(uri):
            yield from _local(local_path(uri).expanduser().absolute())
        else:
            yield from _remote(uri.rstrip("/"))


def by_file(found: Iterable[Found]) -> list[File]:
    """One entry for each file, where it was first found; the same stretch found twice counts once."""
    files: dict[str, dict[Found, None]] = {}
    for each in found:
        files.setdefault(each.recording_id, {})[each] = None
    return [File(recording_id, tuple(rows)) for recording_id, rows in files.items()]


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


def _local(path: Path) -> Iterator[Found]:
    if path.is_file():
        yield _here(path)
    elif path.is_dir():
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                if _may_be_audio(name):
                    yield _here(Path(folder, name))
    else:
        raise DataError(f"there is no source `{path}`", why="it does not exist", fix="check `source.uri`")


def _here(path: Path) -> Found:
    try:
        stat = path.stat()
    except OSError:
        return Found(uri=str(path))
    return Found(uri=str(path), etag=f"{stat.st_mtime_ns:x}-{stat.st_size:x}", num_bytes=stat.st_size)


def _remote(uri: str) -> Iterator[Found]:
    folder = Store(uri)
    entries = sorted(folder.list(), key=lambda entry: entry.key)
    for entry in entries:
        path = PurePosixPath(entry.key)
        if _may_be_audio(path.name) and not any(part.startswith(".") for part in path.parts):
            yield Found(uri=folder.uri(entry.key), etag=entry.etag or None, num_bytes=entry.num_bytes)
    if not entries:
        root, _, name = uri.rpartition("/")
        if not Store(root).exists(name):
            raise DataError(f"there is no source `{uri}`", why="nothing is there", fix="check `source.uri`")
        yield Found(uri=uri)


def _may_be_audio(name: str) -> bool:
    return not name.startswith(".") and PurePosixPath(name).suffix.lower() not in SIDECARS


def _manifest(uri: str, said_at: dict[str, str]) -> Iterator[Found]:
    """A row for each line. `said_at` holds where each id was said, over all manifests of a source."""
    try:
        text = read_uri(str(local_path(uri).expanduser()) if is_local(uri) else uri).decode("utf-8-sig")
    except StorageError as error:
        raise DataError(f"cannot read the manifest `{uri}`", why=error.why, fix="check `source.uri`") from None
    except UnicodeDecodeError as error:
        raise DataError(f"`{uri}` is not a manifest", why=f"it is not UTF-8: {error}", fix="save it as UTF-8") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{uri}:{number}"
        found = _row(line, uri, where)
        if found.id is not None:
            if found.id in said_at:
                why = f"first at {said_at[found.id]}, again at {where}"
                raise DataError(f"the id `{found.id}` is said twice", why=why, fix="give each line its own id")
            said_at[found.id] = where
        yield found


def _row(line: str, uri: str, where: str) -> Found:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _bad_line(where, f"it is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise _bad_line(where, f"it is {type(row).__name__}, not an object")
    audio = row.get("audio") or row.get("path")
    if not isinstance(audio, str):
        raise _bad_line(where, "it has no `audio`")
    texts = {name: _text(row, name, where) for name in _TEXTS}
    start_ms, end_ms = _time(row, "start_ms", where), _time(row, "end_ms", where)
    if (start_ms or 0) < 0 or (end_ms is not None and end_ms <= (start_ms or 0)):
        raise _bad_line(where, f"it starts at {start_ms or 0} ms and ends at {end_ms} ms")
    if texts["split"] not in get_args(Split):
        texts["split"] = None  # `unlabelled`, `-` and the like: not for us to judge by
    file = _beside(audio, uri)
    return Found(
        uri=file.uri,
        etag=file.etag,
        num_bytes=file.num_bytes,
        start_ms=start_ms,
        end_ms=end_ms,
        **cast(Any, texts),
    )


def _beside(audio: str, manifest: str) -> Found:
    """The file that a manifest means: its paths start where it lies."""
    if "://" in audio and not is_local(audio):
        return Found(uri=audio)
    if is_local(manifest):
        folder = local_path(manifest).expanduser().absolute().parent
        return _here(Path(os.path.normpath(folder / local_path(audio).expanduser())))
    return Found(uri=f"{manifest.rpartition('/')[0]}/{audio}")


def _text(row: Mapping[str, Any], name: str, where: str) -> str | None:
    value = row.get(name)
    if name in {"id", "speaker"} and isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if value is not None and not isinstance(value, str):
        raise _bad_line(where, f"`{name}` is {value!r}, not text")
    return value if name == "text" else value or None


def _time(row: Mapping[str, Any], name: str, where: str) -> int | None:
    value = row.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise _bad_line(where, f"`{name}` is {value!r}, not milliseconds")
    return round(value)


def _bad_line(where: str, why: str) -> DataError:
    return DataError(f"{where} is not a line of a manifest", why=why, fix="correct the line or take it out")
