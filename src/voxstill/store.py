"""One way to bytes: whatever is written is whole or absent, and a create-only write has exactly one winner.

A folder, an object store and memory look alike: keys below a root, read whole or by range, listed by prefix.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxstill.errors import DataError, StorageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One object as listed: its key below the root, its size and what changes when its content does."""

    key: str
    num_bytes: int
    etag: str


class Store:
    """Keys below one root. Equal roots share one client; pickles as its root.

    `root` is a folder, `file://`, `memory://name`, or any URL that obstore reads (`s3://`, `gs://`, `http://`).
    """

    def __init__(self, root: str) -> None:
        self.root = _normal(root)
        if not is_local(self.root):
            _client(self.root)  # an address that nobody can read is told here

    @property
    def _client(self) -> Any:
        """Reads and lists; a folder that is absent reads as empty, and reading makes none."""
        if is_local(self.root) and not Path(self.root).is_dir():
            from obstore.store import MemoryStore

            return MemoryStore()
        return _client(self.root)

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.root,)

    def __repr__(self) -> str:
        return f"Store({self.root!r})"

    def uri(self, key: str) -> str:
        """Where `key` lies, as something a person can open."""
        return f"{self.root}/{key}" if self.root.endswith(":/") or not self.root.endswith("/") else f"{self.root}{key}"

    def read(self, key: str) -> bytes:
        """All bytes of `key`; StorageError where it is absent or cannot be read."""
        try:
            return bytes(self._client.get(key).bytes())
        except Exception as error:
            raise _storage_error("read", self.uri(key), error) from None

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes of `key` from `start`."""
        try:
            return bytes(self._client.get_range(key, start=start, length=length))
        except Exception as error:
            raise _storage_error("read", self.uri(key), error) from None

    def create(self, key: str, data: bytes) -> bool:
        """Write `key` whole unless it exists; False says that somebody else was first."""
        from obstore.exceptions import AlreadyExistsError

        try:
            _client(self.root).put(key, data, mode="create")
        except AlreadyExistsError:
            return False
        except Exception as error:
            raise _storage_error("write", self.uri(key), error) from None
        return True

    def replace(self, key: str, data: bytes) -> None:
        """Write `key` whole, over what was there."""
        try:
            _client(self.root).put(key, data)
        except Exception as error:
            raise _storage_error("write", self.uri(key), error) from None

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Every object below the folder `prefix`, streamed, in no promised order."""
        try:
            for page in self._client.list(prefix or None):
                for meta in page:
                    yield Entry(key=meta["path"], num_bytes=meta["size"], etag=meta["e_tag"] or "")
        except FileNotFoundError:
            return
        except Exception as error:
            raise _storage_error("list", self.uri(prefix), error) from None

    def exists(self, key: str) -> bool:
        """Whether `key` is there."""
        try:
            self._client.head(key)
        except FileNotFoundError:
            return False
        except Exception as error:
            raise _storage_error("read", self.uri(key), error) from None
        return True

    def read_json(self, key: str) -> dict[str, Any] | None:
        """The object in `key`, None where there is none; DataError where it is not JSON."""
        if not self.exists(key):
            return None
        try:
            value: dict[str, Any] = json.loads(self.read(key))
        except ValueError as error:
            raise DataError(
                f"`{self.uri(key)}` is not JSON", why=str(error), fix="remove the file and run the step again"
            ) from None
        return value

    def write_json(self, key: str, value: dict[str, Any]) -> None:
        """`value` as indented JSON, keys in the order given."""
        self.replace(key, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def read_uri(uri: str) -> bytes:
    """All bytes behind a path or URL; StorageError where it cannot be read."""
    if "://" not in uri:  # a plain file is read without a client: twice as fast for small ones
        try:
            return Path(uri).read_bytes()
        except OSError as error:
            raise _storage_error("read", uri, error) from None
    if uri.startswith("memory://"):  # which has no folders to start from: its name is its root
        name, _, key = uri.removeprefix("memory://").partition("/")
        return Store(f"memory://{name}").read(key)
    root, _, key = uri.rpartition("/")
    return Store(root).read(key)


def is_local(uri: str) -> bool:
    """Whether `uri` is a path on this machine."""
    return "://" not in uri or uri.startswith("file://")


def local_path(uri: str) -> Path:
    """The path of a local URI."""
    return Path(uri.removeprefix("file://"))


def _normal(root: str) -> str:
    if is_local(root):
        return str(local_path(root).expanduser().absolute())
    return root.rstrip("/")


@functools.lru_cache(maxsize=256)
def _client(root: str) -> Any:
    from obstore.store import LocalStore, MemoryStore, from_url

    if is_local(root):
        try:
            return LocalStore(root, mkdir=True)
        except Exception as error:
            raise _storage_error("open", root, error) from None
    if root.startswith("memory://"):
        return MemoryStore()
    try:
        return from_url(root)
    except Exception as error:
        raise _storage_error("open", root, error) from None


def _storage_error(verb: str, uri: str, error: Exception) -> StorageError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
    if isinstance(error, FileNotFoundError):
        return StorageError(f"cannot {verb} `{uri}`", why="it does not exist", fix="check the path")
    return StorageError(f"cannot {verb} `{uri}`", why=why, fix="check the path, the rights and the free space")
