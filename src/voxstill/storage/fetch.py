"""Reading whole objects and byte ranges by their addresses: one, a stream of one, or many ahead of the caller."""

from __future__ import annotations

import errno
import functools
import os
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from voxstill.core.errors import DataError, StorageError, VoxstillError
from voxstill.core.monitor import log
from voxstill.storage.cache import Cache, CacheEntry
from voxstill.storage.clients import client
from voxstill.storage.files import NOT_A_FILE, FileBytes, is_file, open_file
from voxstill.storage.redaction import redact_uri
from voxstill.storage.retry import has_no_length, is_transient, storage_error
from voxstill.storage.uri import ByteRange, is_local, local_path, locate, split_range

if TYPE_CHECKING:
    from obstore import Attributes, GetOptions, ObjectMeta

AHEAD_BYTES = 64 * 2**20
"""`read_many` holds about so much at a time, or one object."""
MAX_BYTES = 4 << 30
"""Nothing larger is read whole. Six hours of audio in this project's format are 0.7 GB."""
BLOCK_BYTES = 256 << 10
"""Short ranges of a remote object are cached in aligned blocks of so many bytes."""
SETTLED_S = 60
"""What was changed longer ago will not change within the same second any more, also where the clocks differ."""
_BY_DATE = "changed "
"""Begins a version that is no etag: those of HTTP are in quotes."""
_SHORT_BYTES = 1 << 20
_PIECE_BYTES = 1 << 20
_HTML_TYPES = ("text/html", "application/xhtml+xml")
_OPEN_PIPES = ("/dev/fd/", "/proc/self/fd/")


class RefusedError(DataError):
    """An object that is never read, whatever the retries: it is too large, or is not a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """What was read of an address; `etag` and `num_bytes` are those of the whole object, also of a range of it."""

    uri: str
    data: bytes
    etag: str | None
    num_bytes: int


class WebPageError(StorageError):
    """A web server returns a web page, such as a login, instead of the object."""


def read_uri(uri: str, cache: Cache | None = None) -> bytes:
    """All bytes behind a path or address, or the range it names; errors as those of `fetch`.

    A pipe that a shell opens in place of a file, `<(...)`, is read to its end.
    """
    if uri.startswith(_OPEN_PIPES):
        try:
            with open(uri, "rb") as pipe:
                return pipe.read()
        except OSError as error:
            raise storage_error("read", uri, error) from None
    return fetch(uri, cache).data


@contextmanager
def open_uri(uri: str) -> Iterator[FileBytes | bytes]:
    """The bytes behind a path or address: read where they are sliced where it is a file of this machine, else whole.

    Errors as those of `fetch`.
    """
    address, byte_range = split_range(uri)
    if not is_local(address) or byte_range is not None or uri.startswith(_OPEN_PIPES):
        yield read_uri(uri)
        return
    try:
        file = open_file(local_path(address))
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            raise _refused(uri, NOT_A_FILE) from None
        raise storage_error("read", uri, error) from None
    with file:
        yield FileBytes(file)


def fetch(uri: str, cache: Cache | None = None) -> Blob:
    """What `uri` names and which version of it; StorageError if it cannot be read, RefusedError if it is not.

    What is far away comes out of the cache where the server says that it has not changed, and goes into it.
    """
    address, byte_range = split_range(uri)
    try:
        if is_local(address):
            return _fetch_local(uri, address.removeprefix("file://"), byte_range)
        cache = cache if not address.startswith("memory://") else None
        return _fetch_remote(uri, address, byte_range, cache)
    except VoxstillError:
        raise
    except Exception as error:
        failure = storage_error("read", uri, error)
        raise RefusedError(**failure.to_dict()) if has_no_length(error) else failure from None


def read_head(uri: str, num_bytes: int) -> bytes:
    """The first bytes behind a path or address, fewer where there are no more; StorageError if it cannot be read."""
    data = b""
    try:
        if is_local(uri):
            with open_file(local_path(uri)) as file:
                return file.read(num_bytes)
        for piece in stream(f"{uri}#0+{num_bytes}"):
            data += piece
    except OSError as error:
        raise storage_error("read", uri, error) from None
    return data


def stream(uri: str) -> Iterator[memoryview]:
    """The bytes behind an address far away, or of the range it names, a piece at a time as they come.

    A transfer that is interrupted continues from there. For what is large: whole in memory, fresh pages would cost
    several times what its transfer does. StorageError if it cannot be read.
    """
    address, byte_range = split_range(uri)
    location = locate(address)
    options: GetOptions = {} if byte_range is None else {"range": (byte_range.start, byte_range.end)}
    try:
        for piece in client(location.base).get(location.key, options=options).stream(min_chunk_size=_PIECE_BYTES):
            yield memoryview(piece)
    except Exception as error:
        raise storage_error("read", uri, error) from None


def read_many(
    uris: Iterable[str], concurrency: int = 16, cache: Cache | None = None
) -> Generator[Blob | StorageError | RefusedError]:
    """For each address, in order, what `fetch` gives or the error it raises; at most `concurrency` at a time.

    Reading runs ahead of the caller, at first by two objects, then by more, as long as they fit into `AHEAD_BYTES`.
    """
    waiting: deque[Future[Blob | StorageError | RefusedError]] = deque()
    rest, largest_bytes, max_ahead = iter(uris), 1, 2
    pool = ThreadPoolExecutor(concurrency, thread_name_prefix="read_many")
    try:
        while True:
            num_ahead = max(1, min(concurrency, max_ahead, AHEAD_BYTES // largest_bytes))
            waiting.extend(pool.submit(_fetch_or_error, uri, cache) for uri in islice(rest, num_ahead - len(waiting)))
            if not waiting:
                return
            blob = waiting.popleft().result()
            largest_bytes = max(largest_bytes, len(blob.data) if isinstance(blob, Blob) else 0)
            max_ahead += 1
            yield blob
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def local_etag(stat: os.stat_result) -> str:
    """What changes when a file on this machine does."""
    return f"{stat.st_mtime_ns:x}-{stat.st_size:x}"


def _fetch_local(uri: str, path: str, byte_range: ByteRange | None) -> Blob:
    if not is_file(os.stat(path)):
        raise _refused(uri, NOT_A_FILE)
    handle = os.open(path, os.O_RDONLY)  # no client, no file object, no `Path`: half the time of a small file
    try:
        version = os.fstat(handle)
        start, num_bytes = 0, version.st_size  # what the kernel makes up has no size, and maybe no end
        if byte_range is not None:
            start, num_bytes = byte_range.start, min(byte_range.length, version.st_size - byte_range.start)
            if start >= version.st_size:
                raise _starts_after_the_end(uri, version.st_size)
        _check_size(uri, num_bytes)
        data = _read_at(handle, start, num_bytes)
    finally:
        os.close(handle)
    return Blob(uri=uri, data=data, etag=local_etag(version), num_bytes=version.st_size)


def _starts_after_the_end(uri: str, num_bytes: int) -> StorageError:
    why = f"it starts after the end: the file has {num_bytes} bytes"
    return StorageError(
        f"cannot read `{redact_uri(uri)}`", code="source-changed", why=why, fix="run `voxstill index` again"
    )


def _read_at(handle: int, start: int, num_bytes: int) -> bytes:
    """So many bytes of an open file, fewer where it ends before them; the kernel gives at most 2 GiB at once."""
    data = os.pread(handle, num_bytes, start)
    while len(data) < num_bytes and (more := os.pread(handle, num_bytes - len(data), start + len(data))):
        data += more
    return data


def _check_size(uri: str, num_bytes: int) -> None:
    if num_bytes > MAX_BYTES:
        raise _refused(uri, f"it has {num_bytes / 1e6:,.0f} MB, and at most {MAX_BYTES / 1e6:,.0f} MB are read")


def _refused(uri: str, why: str) -> RefusedError:
    return RefusedError(
        f"`{redact_uri(uri)}` is not read", code="unreadable-file", why=why, fix="give another file, or remove it"
    )


def _fetch_remote(uri: str, address: str, byte_range: ByteRange | None, cache: Cache | None) -> Blob:
    if cache is not None and byte_range is not None and 0 < byte_range.length <= _SHORT_BYTES:
        return _fetch_blocks(uri, address, byte_range, cache)
    cached = cache.read(uri) if cache is not None else None
    entry = _get(uri, address, byte_range, cached.etag if cached is not None else None)
    if entry is not None and cache is not None:
        _keep(cache, uri, entry)
    entry = entry or cached
    assert entry is not None, "without a known version there is an answer"
    return _blob(uri, entry)


def _blob(uri: str, entry: CacheEntry) -> Blob:
    etag = None if entry.etag.startswith(_BY_DATE) else entry.etag or None
    return Blob(uri=uri, data=entry.data, etag=etag, num_bytes=entry.num_bytes)


def _fetch_blocks(uri: str, address: str, byte_range: ByteRange, cache: Cache) -> Blob:
    """A short range out of the aligned blocks of its object, which are cached whole: its neighbours are there then."""
    blocks = range(byte_range.start // BLOCK_BYTES, -(-byte_range.end // BLOCK_BYTES))
    cached = _cached_blocks(address, blocks, cache)
    if missing := _missing(blocks, cached):
        with cache.alone(_block_uri(address, missing[0])):  # two that read one tar would fetch it twice
            cached = _cached_blocks(address, blocks, cache)
            if missing := _missing(blocks, cached):
                fetched = _get_blocks(uri, address, range(missing[0], missing[-1] + 1), cache)
                if len({entry.etag for entry in (cached | fetched).values()}) > 1:
                    fetched = _get_blocks(uri, address, blocks, cache)
                return _range_of(uri, byte_range, cached | fetched)
    etag = cached[blocks[0]].etag
    if _get(uri, address, ByteRange(byte_range.start, 1), etag) is not None:
        cached = _get_blocks(uri, address, blocks, cache)
    return _range_of(uri, byte_range, cached)


def _cached_blocks(address: str, blocks: range, cache: Cache) -> dict[int, CacheEntry]:
    """The blocks of one version that are cached: where they are of several, none is."""
    entries = {block: cache.read(_block_uri(address, block)) for block in blocks}
    cached = {block: entry for block, entry in entries.items() if entry is not None}
    return cached if len({entry.etag for entry in cached.values()}) == 1 else {}


def _missing(blocks: range, cached: Mapping[int, CacheEntry]) -> list[int]:
    """The blocks that are not cached, but for those behind the end of the object where that is known."""
    num_bytes = min((entry.num_bytes for entry in cached.values()), default=None)
    return [block for block in blocks if block not in cached and (num_bytes is None or block * BLOCK_BYTES < num_bytes)]


def _get_blocks(uri: str, address: str, blocks: range, cache: Cache) -> dict[int, CacheEntry]:
    """Fetch blocks that follow one another by one request, and cache them; what lies behind the end is empty."""
    start = blocks[0] * BLOCK_BYTES
    entry = _get(uri, address, ByteRange(start, len(blocks) * BLOCK_BYTES))
    assert entry is not None, "without a known version there is an answer"
    entries = {}
    for block in blocks:
        own = block * BLOCK_BYTES - start
        entries[block] = replace(entry, data=entry.data[own : own + BLOCK_BYTES])
        _keep(cache, _block_uri(address, block), entries[block])
    return entries


def _block_uri(address: str, block: int) -> str:
    return f"{address}#{block * BLOCK_BYTES}+{BLOCK_BYTES}"


def _range_of(uri: str, byte_range: ByteRange, entries: Mapping[int, CacheEntry]) -> Blob:
    first, *_ = blocks = sorted(entries)
    start = byte_range.start - first * BLOCK_BYTES
    data = b"".join(entries[block].data for block in blocks)[start : start + byte_range.length]
    entry = entries[first]
    if not data:
        raise _starts_after_the_end(uri, entry.num_bytes)
    return _blob(uri, replace(entry, data=data))


def _keep(cache: Cache, uri: str, entry: CacheEntry) -> None:
    """Cache what has a version and is not empty; a server that gives no version is named once."""
    if not entry.etag:
        _warn_of_no_version(locate(split_range(uri)[0]).base)
    elif entry.data or not entry.num_bytes:
        cache.put(uri, entry)


@functools.cache
def _warn_of_no_version(base: str) -> None:
    message = "cache: files of `%s` are fetched again each time: they have neither an ETag nor a `Last-Modified` that "
    log.warning(message + "is at least %d s old", redact_uri(base), SETTLED_S)


def _version(meta: ObjectMeta) -> str:
    """What changes when an object does: its etag, or the time of its last change with its size; empty if unknown.

    That time is in seconds: what has just changed may change again and keep both (RFC 9110, section 8.8.2.2). A server
    that gives no time has that of 1970 here.
    """
    if meta["e_tag"]:
        return meta["e_tag"]
    changed_s = meta["last_modified"].timestamp()
    return f"{_BY_DATE}{changed_s:.0f} {meta['size']}" if 0 < changed_s < time.time() - SETTLED_S else ""


def _is_unchanged(address: str, known_version: str) -> bool:
    """Whether an object without an etag is of this version. A server that does not answer that is asked for all of it.

    No condition of HTTP asks so: an earlier time, as of a file that was put back, is no change by `If-Modified-Since`.
    """
    location = locate(address)
    try:
        return _version(client(location.base).head(location.key)) == known_version
    except Exception as error:
        if is_transient(error):
            raise
        return False


def _get(uri: str, address: str, byte_range: ByteRange | None, known_version: str | None = None) -> CacheEntry | None:
    """What a server sends of an object; None where it still is that version."""
    from obstore.exceptions import NotModifiedError

    is_by_date = known_version is not None and known_version.startswith(_BY_DATE)
    if known_version is not None and is_by_date and _is_unchanged(address, known_version):
        return None
    location = locate(address)
    options: GetOptions = {} if known_version is None or is_by_date else {"if_none_match": known_version}
    if byte_range is not None:
        options["range"] = (byte_range.start, byte_range.end)
    try:
        response = client(location.base).get(location.key, options=options)
        start, end = response.range
        _check_size(uri, end - start)
        data, meta = bytes(response.bytes()), response.meta
        start = 0 if byte_range is None else byte_range.start
        _refuse_other_content(uri, data, start, _num_asked(meta["size"], byte_range), response.attributes)
    except NotModifiedError:
        if known_version is None:
            raise
        return None
    return CacheEntry(_version(meta), meta["size"], data)


def _num_asked(num_bytes: int, byte_range: ByteRange | None) -> int:
    """How many bytes of an object of `num_bytes` a request is answered with."""
    return num_bytes if byte_range is None else min(byte_range.end, num_bytes) - byte_range.start


def _refuse_other_content(uri: str, data: bytes, start: int, num_asked: int, attributes: Attributes) -> None:
    """StorageError if the answer is shorter than the server says; WebPageError if it is a page.

    Some servers call everything a page, so the bytes must look like one too.
    """
    if len(data) != num_asked:
        why = f"the server announced {num_asked} bytes, but sent {len(data)}"
        raise StorageError(
            f"cannot read `{redact_uri(uri)}`",
            code="storage-unreachable",
            why=why,
            fix="run the step again, or check the server",
        )
    is_html = attributes.get("Content-Type", "").partition(";")[0].strip().lower() in _HTML_TYPES
    if is_html and (data.lstrip().startswith(b"<") if start == 0 else b"\0" not in data):
        raise WebPageError(
            f"cannot read `{redact_uri(uri)}`",
            code="web-page",
            why="the server returned a web page, such as a login or an error",
            fix="check the address, and the user and password in ~/.netrc, then run the step again",
        )


def _fetch_or_error(uri: str, cache: Cache | None) -> Blob | StorageError | RefusedError:
    try:
        return fetch(uri, cache)
    except (StorageError, RefusedError) as error:
        return error
