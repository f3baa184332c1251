"""Keys below a root: whatever is written is whole or absent, and a create-only write has exactly one winner.

A folder, an object store and memory look alike: keys are read whole, listed by prefix, created or replaced. Reading by
address, also a range of an object, is `fetch`; what a root may be is said in `uri`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from voxstill.core.errors import DataError, StorageError, VoxstillError
from voxstill.storage.clients import Purpose, client
from voxstill.storage.files import check_file, folder_below
from voxstill.storage.redaction import redact_uri
from voxstill.storage.retry import Retries, is_broken_connection, is_transient, storage_error
from voxstill.storage.uri import is_local, locate, normalize_root

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStore


MAX_JSON_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One object as listed: its key below the root, its size, what changes when its content does, and when it was
    written, in seconds since 1970.
    """

    key: str
    num_bytes: int
    etag: str
    modified_s: float


class Store:
    """Keys below one root. Roots in one bucket share one client; pickles as its root, which holds no credentials.

    `root` is a folder or any address but a single object's; StorageError if such an address cannot be read.
    """

    def __init__(self, root: str) -> None:
        self.root = normalize_root(root)
        self._base, self._prefix = (self.root, "") if is_local(self.root) else locate(self.root)
        if not is_local(self.root):
            if redact_uri(self.root) != self.root:
                why = "a user or a query in it may be credentials, and the address is written to logs and tables"
                raise StorageError(
                    f"cannot open `{redact_uri(root)}`",
                    code="credentials-in-address",
                    why=why,
                    fix="put them into the environment",
                )
            client(self._base)  # raises where the address is of no use

    def __reduce__(self) -> tuple[type[Store], tuple[str]]:
        return Store, (self.root,)

    def __repr__(self) -> str:
        return f"Store({self.root!r})"

    def uri(self, key: str) -> str:
        """The address of `key`, as `read_uri` and a person can open it."""
        name = quote(key) if self.root.startswith(("http://", "https://")) else key
        return f"{self.root}{name}" if self.root.endswith("/") else f"{self.root}/{name}"

    def read(self, key: str) -> bytes:
        """All bytes of `key`; StorageError if it is absent or cannot be read."""
        try:
            return self._bytes(key)
        except Exception as error:
            raise storage_error("read", self.uri(key), error) from None

    def read_or_none(self, key: str, max_bytes: int | None = None) -> bytes | None:
        """`read`, or None if it is absent; DataError if it has more than `max_bytes`."""
        try:
            return self._bytes(key, max_bytes=max_bytes)
        except FileNotFoundError:
            return None
        except VoxstillError:
            raise
        except Exception as error:
            raise storage_error("read", self.uri(key), error) from None

    def create(self, key: str, data: bytes) -> bool:
        """Write `key` whole unless it exists; False says that another writer was first.

        Exactly one of all writers gets True, and its bytes stay. Where the answer to a write was lost, what is there
        then is compared with `data`: so of writers of equal bytes, and only of those, two may get True.
        """
        from obstore.exceptions import AlreadyExistsError

        is_answer_lost = False  # whether a write of ours may have been done without our knowing
        retries = Retries()
        while True:
            try:
                self._put(key, data, "create")
                return True
            except AlreadyExistsError:
                if not is_answer_lost and self.exists(key):
                    return False
                if is_answer_lost and (current := self.read_or_none(key)) is not None:
                    return current == data
                if retries.are_spent:
                    why = "the server reports both that it exists and that it does not"
                    raise StorageError(
                        f"cannot write `{redact_uri(self.uri(key))}`",
                        code="storage-failed",
                        why=why,
                        fix="make sure that no other program writes there",
                    ) from None
                # 409 may also mean that it was being removed: then it is not there, and we try again
            except Exception as error:
                if not is_transient(error) or retries.are_spent:
                    raise storage_error("write", self.uri(key), error) from None
                is_answer_lost = True
            retries.pause()

    def read_range(self, key: str, start: int, end: int) -> bytes:
        """The bytes of `key` from `start` to before `end`; StorageError as for `read`."""
        try:
            return self._bytes(key, {"range": (start, end)})
        except Exception as error:
            raise storage_error("read", self.uri(key), error) from None

    def replace(self, key: str, data: bytes) -> None:
        """Write `key` whole, over what was there."""
        try:
            self._put(key, data, "replace")
        except Exception as error:
            raise storage_error("write", self.uri(key), error) from None

    def delete(self, key: str) -> None:
        """Remove `key`; nothing happens where it is absent. StorageError where a link of a work folder leads to it."""
        if is_local(self.root):
            self._unlink(key)
            return
        retries = Retries()
        while True:
            try:
                client(self._base).delete(self._path(key))
                return
            except FileNotFoundError:
                return
            except Exception as error:  # the client removes by a POST, which it does not repeat by itself
                if not is_transient(error) or retries.are_spent:
                    raise storage_error("remove", self.uri(key), error) from None
            retries.pause()

    def _unlink(self, key: str) -> None:
        *folders, name = key.split("/")
        try:
            with folder_below(self.root, folders) as folder:
                os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error("remove", self.uri(key), error) from None

    def check_unlinked(self, key: str) -> None:
        """StorageError where `delete` would refuse to remove `key`, as a link of a work folder leads to it."""
        if is_local(self.root):
            with suppress(OSError), folder_below(self.root, key.split("/")[:-1]):
                pass  # what is not there, or cannot be opened, is an error of what is done with it

    def is_linked(self, folder: str) -> bool:
        """Whether a folder, or one between it and the root, is a link: nothing in it is deleted."""
        names = folder.split("/")
        paths = ("/".join([self.root, *names[: num + 1]]) for num in range(len(names)))
        return is_local(self.root) and any(map(os.path.islink, paths))

    def copy(self, key: str, to: str) -> None:
        """Copy `key` whole to `to`, over what was there; in a folder by a link, which takes no space."""
        if is_local(self.root):
            with suppress(Exception):  # not every disk has links
                client(self._base).copy(self._path(key), self._path(to))
                return
        self.replace(to, self.read(key))  # not every server that speaks S3 can copy, or says that it cannot

    def upload(self, key: str, path: Path) -> None:
        """Write `key` whole from a file of any size, over what was there."""
        try:
            client(self._base).put(self._path(key), path)
        except Exception as error:
            raise storage_error("write", self.uri(key), error) from None

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Every object below the folder `prefix`, streamed, in no promised order."""
        start = len(self._prefix) + 1 if self._prefix else 0
        last, retries = None, Retries()
        while True:
            try:
                for page in self._reader().list(self._path(prefix) or None, offset=last):
                    for meta in page:
                        last = meta["path"]
                        yield Entry(
                            key=last[start:],
                            num_bytes=meta["size"],
                            etag=meta["e_tag"] or "",
                            modified_s=meta["last_modified"].timestamp(),
                        )
                    retries = Retries()
                return
            except FileNotFoundError:
                return
            except Exception as error:  # the client does not retry a page that was interrupted
                if not is_transient(error) or retries.are_spent:
                    raise storage_error("list", self.uri(prefix), error) from None
            retries.pause()

    def folders(self) -> tuple[str, ...]:
        """Names of the folders directly below the root."""
        try:
            listed = self._reader().list_with_delimiter(self._prefix or None)
        except FileNotFoundError:
            return ()
        except Exception as error:
            raise storage_error("list", self.uri(""), error) from None
        return tuple(path.rstrip("/").rpartition("/")[2] for path in listed["common_prefixes"])

    def exists(self, key: str) -> bool:
        """Whether `key` is there."""
        try:
            self._reader().head(self._path(key))
        except FileNotFoundError:
            return False
        except Exception as error:
            raise storage_error("read", self.uri(key), error) from None
        return True

    def read_json(self, key: str, max_bytes: int = MAX_JSON_BYTES) -> dict[str, object] | None:
        """The object in `key`, None if there is none; DataError if it is no JSON object, or too long a one."""
        data = self.read_or_none(key, max_bytes)
        if data is None:
            return None
        try:
            value: object = json.loads(data)
            if not isinstance(value, dict):
                raise ValueError(f"it contains a {type(value).__name__}")
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"`{self.uri(key)}` is not a JSON object",
                code="table-broken",
                why=str(error),
                fix="remove the file and run the step again",
            ) from None
        return value

    def write_json(self, key: str, value: Mapping[str, object]) -> None:
        """`value` as indented JSON, its keys in their order."""
        self.replace(key, json_bytes(value))

    def _reader(self) -> ObjectStore:
        """The client to read and list with; a folder that is absent reads as empty, and reading makes none."""
        if is_local(self.root) and not Path(self.root).is_dir():
            from obstore.store import MemoryStore

            return MemoryStore()
        return client(self._base)

    def _path(self, key: str) -> str:
        return f"{self._prefix}/{key}".rstrip("/") if self._prefix else key

    def _put(self, key: str, data: bytes, purpose: Purpose) -> None:
        """In one request, so that a key is never seen half written and only one writer can create it."""
        uses_header = self._base.startswith("oss://")  # OSS is asked to create by a header, not by If-None-Match
        mode: Literal["create", "overwrite"] = "create" if purpose == "create" and not uses_header else "overwrite"
        client(self._base, purpose).put(self._path(key), data, mode=mode, use_multipart=False)

    def _bytes(self, key: str, options: GetOptions | None = None, max_bytes: int | None = None) -> bytes:
        """The client retries by itself, but not if the answer that an object does not exist is interrupted."""
        if is_local(self.root):  # the client would wait at a pipe
            check_file(f"{self.root}/{key}")
        retries = Retries()
        while True:
            try:
                response = self._reader().get(self._path(key), options=options or {})
                if max_bytes is not None and (num_bytes := response.meta["size"]) > max_bytes:
                    raise DataError(
                        f"`{self.uri(key)}` is not read",
                        code="table-broken",
                        why=f"it has {num_bytes / 1e6:,.0f} MB, and at most {max_bytes / 1e6:,.0f} MB are read",
                        fix="remove the file and run the step again",
                    )
                return bytes(response.bytes())
            except Exception as error:
                if not is_broken_connection(error) or retries.are_spent:
                    raise
            retries.pause()


def json_bytes(value: Mapping[str, object]) -> bytes:
    """A value as `Store.write_json` stores it."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()
