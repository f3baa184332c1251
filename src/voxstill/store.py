"""One way to bytes: whatever is written is whole or absent, and a create-only write has exactly one winner.

A folder, an object store and memory look alike: keys below a root, read whole or by range, listed by prefix. Addresses
are paths, `file://`, `s3://`, `oss://`, `gs://`, `http(s)://` and `memory://`; `#START+LENGTH` at the end of one means
that stretch of its bytes. Credentials come from the environment or the provider's chain. What passes by itself (500,
503, a time-out, a broken connection) is tried again for about a minute, then told.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import random
import re
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote

from voxstill import world
from voxstill.cache import Cache, Kept
from voxstill.errors import DataError, StorageError

MAX_RETRIES = 8
MAX_PAUSE_S = 5.0
MAX_RETRYING_S = 60.0
CONNECT_S = 5.0
STALL_S = 30.0
"""A read from which nothing comes for so long has failed."""
WHOLE_S = 600.0
"""A request may take so long altogether: a gigabyte at 2 MB/s."""
AHEAD_BYTES = 64 * 2**20
"""`read_many` holds about so much at a time, or one object."""
_PIECE_BYTES = 1 << 20
_STRETCH = re.compile(r"#(\d+)\+(\d+)$")
_USER = re.compile(r"^(?:[^/@:?]*:(?!\d+/)[^@?]*|[^/@?]*)@")
_QUERY, _NAMED = re.compile(r"\?|#.*="), re.compile(r"[?#].*=")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'`<>|]+")
_MEMORY: dict[str, Any] = {}
"""The stores of `memory://`, each for as long as the process lives."""
Purpose = Literal["read", "replace", "create"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One object as listed: its key below the root, its size and what changes when its content does."""

    key: str
    num_bytes: int
    etag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """What was read of an address; `etag` and `num_bytes` are those of the whole object, also of a stretch of it."""

    uri: str
    data: bytes
    etag: str | None
    num_bytes: int


class Store:
    """Keys below one root. Roots in one bucket share one client; pickles as its root, which holds no credentials.

    `root` is a folder or any address but a single object's; StorageError where nobody can read such an address.
    """

    def __init__(self, root: str) -> None:
        self.root = _normal(root)
        self._base, self._prefix = (self.root, "") if is_local(self.root) else _split(self.root)
        if not is_local(self.root):
            if shown(self.root) != self.root:
                why = "a user or a query in it may be credentials, and it is written down in many places"
                raise StorageError(f"cannot open `{shown(root)}`", why=why, fix="put them into the environment")
            _client(self._base)  # an address that nobody can read is told here

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.root,)

    def __repr__(self) -> str:
        return f"Store({self.root!r})"

    def uri(self, key: str) -> str:
        """Where `key` lies, as `read_uri` and a person can open it."""
        name = quote(key) if self.root.startswith(("http://", "https://")) else key
        return f"{self.root}{name}" if self.root.endswith("/") else f"{self.root}/{name}"

    def read(self, key: str) -> bytes:
        """All bytes of `key`; StorageError where it is absent or cannot be read."""
        try:
            return self._bytes(key)
        except Exception as error:
            raise _storage_error("read", self.uri(key), error) from None

    def create(self, key: str, data: bytes) -> bool:
        """Write `key` whole unless it exists; False says that somebody else was first.

        Exactly one of all writers is told True, and its bytes stay. Where the answer to a write was lost, what is there
        then is compared with `data`: so of writers of equal bytes, and only of those, two may be told True.
        """
        from obstore.exceptions import AlreadyExistsError

        lost = False  # whether a write of ours may have been done without our knowing
        give_up_at = time.monotonic() + MAX_RETRYING_S
        for attempt in range(MAX_RETRIES + 1):
            try:
                _put(self._base, self._path(key), data, "create")
                return True
            except AlreadyExistsError:
                if not lost and self.exists(key):
                    return False
                if lost and (found := self._if_there(key)) is not None:
                    return found == data
                # 409 may also mean that it was being removed: then it is not there, and we try again
            except Exception as error:
                if not _passes(error) or attempt == MAX_RETRIES or time.monotonic() > give_up_at:
                    raise _storage_error("write", self.uri(key), error) from None
                lost = True
            _pause(attempt)
        why = "the server says that it exists, and that it does not"
        raise StorageError(f"cannot write `{shown(self.uri(key))}`", why=why, fix="let nobody else write there")

    def replace(self, key: str, data: bytes) -> None:
        """Write `key` whole, over what was there."""
        try:
            _put(self._base, self._path(key), data, "replace")
        except Exception as error:
            raise _storage_error("write", self.uri(key), error) from None

    def upload(self, key: str, path: Path) -> None:
        """Write `key` whole from a file of any size, over what was there."""
        try:
            _client(self._base).put(self._path(key), path)
        except Exception as error:
            raise _storage_error("write", self.uri(key), error) from None

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Every object below the folder `prefix`, streamed, in no promised order."""
        start = len(self._prefix) + 1 if self._prefix else 0
        last, attempt, give_up_at = None, 0, time.monotonic() + MAX_RETRYING_S
        while True:
            try:
                for page in self._reader().list(self._path(prefix) or None, offset=last):
                    for meta in page:
                        last = meta["path"]
                        yield Entry(key=last[start:], num_bytes=meta["size"], etag=meta["e_tag"] or "")
                    attempt, give_up_at = 0, time.monotonic() + MAX_RETRYING_S
                return
            except FileNotFoundError:
                return
            except Exception as error:  # the client does not ask again for a page that broke off in the middle
                if not _passes(error) or attempt == MAX_RETRIES or time.monotonic() > give_up_at:
                    raise _storage_error("list", self.uri(prefix), error) from None
            _pause(attempt)
            attempt += 1

    def exists(self, key: str) -> bool:
        """Whether `key` is there."""
        try:
            self._reader().head(self._path(key))
        except FileNotFoundError:
            return False
        except Exception as error:
            raise _storage_error("read", self.uri(key), error) from None
        return True

    def read_json(self, key: str) -> dict[str, Any] | None:
        """The object in `key`, None where there is none; DataError where it is not JSON."""
        data = self._if_there(key)
        if data is None:
            return None
        try:
            value: dict[str, Any] = json.loads(data)
        except ValueError as error:
            raise DataError(
                f"`{self.uri(key)}` is not JSON", why=str(error), fix="remove the file and run the step again"
            ) from None
        return value

    def write_json(self, key: str, value: dict[str, Any]) -> None:
        """`value` as indented JSON, keys in the order given."""
        self.replace(key, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())

    def _reader(self) -> Any:
        """Reads and lists; a folder that is absent reads as empty, and reading makes none."""
        if is_local(self.root) and not Path(self.root).is_dir():
            from obstore.store import MemoryStore

            return MemoryStore()
        return _client(self._base)

    def _path(self, key: str) -> str:
        return f"{self._prefix}/{key}".rstrip("/") if self._prefix else key

    def _if_there(self, key: str) -> bytes | None:
        try:
            return self._bytes(key)
        except FileNotFoundError:
            return None
        except Exception as error:
            raise _storage_error("read", self.uri(key), error) from None

    def _bytes(self, key: str) -> bytes:
        """The client asks again by itself, but not where an answer that there is no such object breaks off."""
        attempt, give_up_at = 0, time.monotonic() + MAX_RETRYING_S
        while True:
            try:
                return bytes(self._reader().get(self._path(key)).bytes())
            except Exception as error:
                broke = re.search(_BREAKS, str(error)) and _passes(error)
                if not broke or attempt == MAX_RETRIES or time.monotonic() > give_up_at:
                    raise
            _pause(attempt)
            attempt += 1


def read_uri(uri: str, cache: Cache | None = None) -> bytes:
    """All bytes behind a path or address, or the stretch it names; StorageError where they cannot be read."""
    return fetch(uri, cache).data


def fetch(uri: str, cache: Cache | None = None) -> Blob:
    """What `uri` names and which version of it; StorageError where it cannot be read.

    What is far away comes out of the cache where the server says that it has not changed, and goes into it.
    """
    whole, span = _parts(uri)
    try:
        if is_local(whole):
            return _fetch_here(uri, whole.removeprefix("file://"), span)
        return _fetch_far(uri, whole, span, cache if cache is not None and not whole.startswith("memory://") else None)
    except StorageError:
        raise
    except Exception as error:
        raise _storage_error("read", uri, error) from None


def beginning(uri: str, num_bytes: int) -> bytes:
    """The first bytes behind a path or address, fewer where there are no more; StorageError where it cannot be read."""
    data = b""
    try:
        if is_local(uri):
            with local_path(uri).open("rb") as file:
                return file.read(num_bytes)
        for piece in stream(f"{uri}#0+{num_bytes}"):
            data += piece
    except OSError as error:
        raise _storage_error("read", uri, error) from None
    return data


def stream(uri: str) -> Iterator[memoryview]:
    """The bytes behind an address far away, or of the stretch it names, a piece at a time as they come.

    A transfer that breaks off goes on from there. For what is large: whole in memory, fresh pages would cost several
    times what its transfer does. StorageError where it cannot be read.
    """
    whole, span = _parts(uri)
    base, key = _split(whole)
    options: dict[str, Any] = {} if span is None else {"range": (span[0], span[0] + span[1])}
    try:
        for piece in _client(base).get(key, options=options).stream(min_chunk_size=_PIECE_BYTES):
            yield memoryview(piece)
    except Exception as error:
        raise _storage_error("read", uri, error) from None


def read_many(uris: Iterable[str], concurrency: int = 16, cache: Cache | None = None) -> Generator[Blob | StorageError]:
    """For each address, in order, what `fetch` gives or the error it raises; at most `concurrency` at a time.

    Reading runs ahead of the caller, at first by two objects, then by more, as long as they fit into `AHEAD_BYTES`.
    """
    waiting: deque[Future[Blob | StorageError]] = deque()
    rest, largest, room = iter(uris), 1, 2
    pool = ThreadPoolExecutor(concurrency, thread_name_prefix="read_many")
    try:
        while True:
            ahead = max(1, min(concurrency, room, AHEAD_BYTES // largest))
            waiting.extend(pool.submit(_fetch_or_error, uri, cache) for uri in islice(rest, ahead - len(waiting)))
            if not waiting:
                return
            found = waiting.popleft().result()
            largest, room = max(largest, len(found.data) if isinstance(found, Blob) else 0), room + 1
            yield found
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def is_local(uri: str) -> bool:
    """Whether `uri` is a path on this machine."""
    return "://" not in uri or uri.startswith("file://")


def local_path(uri: str) -> Path:
    """The path of a local URI."""
    return Path(uri.removeprefix("file://"))


def local_etag(stat: os.stat_result) -> str:
    """What changes when a file on this machine does."""
    return f"{stat.st_mtime_ns:x}-{stat.st_size:x}"


def shown(uri: str) -> str:
    """`uri` as it may be shown to anybody: without user, password and the values of a query, which may sign it."""
    scheme, colon, rest = uri.partition("://")
    if not colon or scheme == "file":
        return uri
    rest = _USER.sub("", rest)
    if query := (_QUERY if scheme in ("http", "https") else _NAMED).search(rest):
        stretch = _STRETCH.search(rest)
        rest = f"{rest[: query.start()]}?...{stretch[0] if stretch else ''}"
    return f"{scheme}://{rest}"


def _parts(uri: str) -> tuple[str, tuple[int, int] | None]:
    """The address of the object, and start and length of the stretch that is meant of it."""
    found = _STRETCH.search(uri)
    return (uri[: found.start()], (int(found[1]), int(found[2]))) if found else (uri, None)


def _fetch_here(uri: str, path: str, span: tuple[int, int] | None) -> Blob:
    with open(path, "rb", buffering=0) as file:  # no client, no `Path`: half the time of a small file
        stat = os.fstat(file.fileno())
        if span is None:
            data = file.readall()
        elif span[0] >= stat.st_size:
            why = f"it starts after the end: there are {stat.st_size} bytes"
            raise StorageError(f"cannot read `{uri}`", why=why, fix="run `voxstill index` again")
        else:
            file.seek(span[0])
            data = file.read(span[1])
    return Blob(uri=uri, data=data, etag=local_etag(stat), num_bytes=stat.st_size)


def _fetch_far(uri: str, whole: str, span: tuple[int, int] | None, cache: Cache | None) -> Blob:
    from obstore.exceptions import NotModifiedError

    base, key = _split(whole)
    kept = cache.read(uri) if cache is not None else None
    options: dict[str, Any] = {"if_none_match": kept.etag} if kept is not None else {}
    if span is not None:
        options["range"] = (span[0], span[0] + span[1])
    try:
        answer = _client(base).get(key, options=options)
        data, meta = bytes(answer.bytes()), answer.meta
    except NotModifiedError:
        if kept is None:
            raise
        return Blob(uri=uri, data=kept.data, etag=kept.etag, num_bytes=kept.num_bytes)
    if cache is not None and meta["e_tag"]:
        cache.keep(uri, Kept(meta["e_tag"], meta["size"], data))
    return Blob(uri=uri, data=data, etag=meta["e_tag"] or None, num_bytes=meta["size"])


def _fetch_or_error(uri: str, cache: Cache | None) -> Blob | StorageError:
    try:
        return fetch(uri, cache)
    except StorageError as error:
        return error


def _normal(root: str) -> str:
    if is_local(root):
        return str(local_path(root).expanduser().absolute())
    scheme, colon, rest = root.partition("://")
    return f"{scheme}{colon}{rest.rstrip('/')}"


def _split(uri: str) -> tuple[str, str]:
    """The address of a client (a bucket, or a host with the query that signs) and the key there."""
    scheme, _, rest = uri.partition("://")
    found = _USER.match(rest)
    user, rest = (found[0], rest[found.end() :]) if found else ("", rest)
    query = ""
    if scheme in ("http", "https"):
        rest, mark, query = rest.partition("?")
        query, rest = mark + query, unquote(rest)
    elif user:
        why = "it holds credentials, which nothing here would use"
        raise StorageError(f"cannot open `{shown(uri)}`", why=why, fix="put them into the environment")
    host, _, key = rest.partition("/")
    if not host:
        raise StorageError(f"cannot open `{shown(uri)}`", why="it names no bucket or host", fix="check the address")
    return f"{scheme}://{user}{host}{query}", key


def _put(base: str, path: str, data: bytes, purpose: Purpose) -> None:
    """In one request, so that a key is never seen half written and only one writer can create it."""
    forbidden = base.startswith("oss://") and purpose == "create"  # OSS is asked by a header, not by If-None-Match
    mode = "create" if purpose == "create" and not forbidden else "overwrite"
    _client(base, purpose).put(path, data, mode=mode, use_multipart=False)


@functools.lru_cache(maxsize=256)
def _client(base: str, purpose: Purpose = "read") -> Any:
    """What speaks to `base`. Only creating is not tried again in there: `Store.create` must know how often it asked."""
    from obstore.store import HTTPStore, LocalStore, MemoryStore, S3Store, from_url

    if base.startswith("memory://"):
        return _MEMORY.setdefault(base, MemoryStore())
    environment = world.environment()
    headers: dict[str, str] = {}
    options: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=CONNECT_S),
        "timeout": timedelta(seconds=WHOLE_S),
        "default_headers": headers,
    }
    if purpose == "read":
        options["read_timeout"] = timedelta(seconds=STALL_S)
    retry_config: Any = {
        "max_retries": 0 if purpose == "create" else MAX_RETRIES,
        "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=MAX_PAUSE_S), "base": 2},
        "retry_timeout": timedelta(seconds=MAX_RETRYING_S),
    }
    more: Any = {"client_options": options, "retry_config": retry_config}
    try:
        if is_local(base):
            return LocalStore(base, mkdir=True)
        if base.startswith(("http://", "https://")):
            options["allow_http"] = base.startswith("http://")
            scheme, _, rest = base.partition("://")
            if user := _USER.match(rest):
                said = base64.b64encode(unquote(user[0].removesuffix("@")).encode())
                headers["authorization"] = f"Basic {said.decode()}"
            return HTTPStore.from_url(f"{scheme}://{_USER.sub('', rest)}", **more)
        if base.startswith("oss://"):
            if purpose == "create":
                headers["x-oss-forbid-overwrite"] = "true"
            endpoint = _oss_endpoint(base.removeprefix("oss://"))
            options["allow_http"] = endpoint.startswith("http://")
            return S3Store(**_oss_bucket(base.removeprefix("oss://"), endpoint), **more)
        for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
            if base.startswith("s3://") and name in environment:
                _check_endpoint(base, name, environment[name])
        options["allow_http"] = environment.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on")
        return from_url(base, **more)
    except StorageError:
        raise
    except Exception as error:
        raise _storage_error("open", base, error) from None


def _oss_endpoint(bucket: str) -> str:
    """Where a bucket of Alibaba Cloud OSS answers: only under a host name of its own."""
    environment = world.environment()
    endpoint, region = environment.get("OSS_ENDPOINT", ""), environment.get("OSS_REGION", "")
    if not endpoint and not region:
        why = "neither `OSS_ENDPOINT` nor `OSS_REGION` says where it is"
        raise StorageError(f"cannot open `oss://{bucket}`", why=why, fix="set OSS_REGION, such as cn-hangzhou")
    endpoint = endpoint or f"oss-{region.removeprefix('oss-')}.aliyuncs.com"
    scheme, colon, host = endpoint.rpartition("://")
    endpoint = f"{scheme if colon else 'https'}://{bucket}.{host.rstrip('/')}"
    _check_endpoint(f"oss://{bucket}", "OSS_ENDPOINT", endpoint)
    return endpoint


def _oss_bucket(bucket: str, endpoint: str) -> dict[str, Any]:
    """How obstore's S3 client speaks to OSS. What the environment says of AWS must not reach it."""
    environment = world.environment()

    def credentials() -> Any:  # asked again by each client: a session's token may have been renewed
        found = {
            "access_key_id": environment.get("OSS_ACCESS_KEY_ID", ""),
            "secret_access_key": environment.get("OSS_ACCESS_KEY_SECRET", ""),
            "expires_at": None,
        }
        token = environment.get("OSS_SESSION_TOKEN")
        return {**found, "token": token} if token else found

    return {
        "bucket": bucket,
        "endpoint": endpoint,
        "aws_endpoint_url_s3": endpoint,  # which would win over the other one, were it set for AWS
        "region": environment.get("OSS_REGION", "").removeprefix("oss-") or "oss",
        "virtual_hosted_style_request": True,
        "credential_provider": credentials,
        "skip_signature": not environment.get("OSS_ACCESS_KEY_ID"),
    }


def _check_endpoint(base: str, name: str, endpoint: str) -> None:
    """StorageError where `endpoint` is no address of a server: the client would panic, not raise an error."""
    found = re.fullmatch(r"https?://(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?(/\S*)?", endpoint)
    host = found[1].strip("[]") if found else ""
    try:
        if ":" in host or host.rstrip(".").rpartition(".")[2].isdigit():
            ip_address(host)
        if host:
            return
    except ValueError:
        pass
    why = f"`{name}` does not say where a server is"
    raise StorageError(f"cannot open `{shown(base)}`", why=why, fix=f"set {name}, such as https://host.example:9000")


def _passes(error: Exception) -> bool:
    """Whether the same request may well succeed a moment later."""
    text = str(error)
    if status := re.search(r"status code: (\d{3})", text):
        return status[1] in ("408", "429") or status[1].startswith("5")
    return "HTTP error" in text and "builder error" not in text


def _pause(attempt: int) -> None:
    """Longer after each attempt, and not the same for all who wait."""
    time.sleep(min(0.1 * 2**attempt, MAX_PAUSE_S) * random.uniform(0.5, 1.0))


def _storage_error(verb: str, uri: str, error: Exception) -> StorageError:
    why, fix = _reason(error)
    return StorageError(f"cannot {verb} `{shown(uri)}`", why=why, fix=fix)


def _reason(error: Exception) -> tuple[str, str]:
    """Why and the fix. What a server answers is not repeated: it may hold keys, tokens and signed addresses."""
    text = str(error)
    status, code = re.search(r"status code: (\d{3}[\w ]*)", text), re.search(r"<Code>(\w+)</Code>", text)
    said = (status[1].strip() if status else "") + (f" ({code[1]})" if code else "")
    if isinstance(error, FileNotFoundError):
        return ("there is no such bucket" if code and code[1] == "NoSuchBucket" else "it does not exist"), (
            "check the path"
        )
    if isinstance(error, OSError) and error.strerror:
        return error.strerror, "check the path, the rights and the free space"
    if re.search(r"/latest/(api/token|meta-data)|computeMetadata", text):  # the last place where they are looked for
        fix = "set them in the environment, such as AWS_ACCESS_KEY_ID; AWS_SKIP_SIGNATURE=true for a public bucket"
        return "there are no credentials", fix
    if status and status[1][:3] in ("401", "403"):
        return f"the server refuses: {said}", "check the credentials in the environment, their rights and the address"
    if status and (status[1].startswith("5") or status[1][:3] in ("408", "429")):
        return f"the server keeps answering {said}", "wait and run the step again; fewer workers ask for less"
    if status:
        return f"the server answers {said}", "check the address"
    if "BadScheme" in text or "builder error" in text:
        return "plain HTTP is not allowed", "use https, or set AWS_ALLOW_HTTP=true for a server of your own"
    for sign, why in _SIGNS.items():
        if re.search(sign, text):
            return why, "check the address and the network, then run the step again"
    return _scrubbed(text.splitlines()[0]), "check the path, the rights and the free space"


_BREAKS = r"ConnectionReset|IncompleteMessage|UnexpectedEof|BrokenPipe|kind: (Interrupted|Request|Decode|Body)"
_SIGNS = {
    r"dns error|failed to lookup|Name or service not known": "nobody knows that host name",
    r"Connection refused|ConnectionRefused": "nobody answers at that address: the connection is refused",
    r"kind: Timeout|TimedOut|timed out": "no answer in time, again and again",
    _BREAKS: "the connection breaks again and again",
}


def _scrubbed(text: str) -> str:
    for secret in world.secrets():
        text = text.replace(secret, "...")
    return _ADDRESS.sub(lambda found: shown(found[0]), text)
