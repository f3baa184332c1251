"""The parts of an address: whether it is a local path, which bucket or host and key it names, and which byte range.

Addresses are paths, `file://`, `s3://`, `oss://`, `gs://`, `http(s)://` and `memory://`; `#START+LENGTH` at the end of
one means that range of its bytes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from voxstill.core.errors import StorageError
from voxstill.storage.redaction import BYTE_RANGE, USER, redact_uri


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A range of an object's bytes, in bytes from its beginning."""

    start: int
    length: int

    @property
    def end(self) -> int:
        """The first byte behind it."""
        return self.start + self.length


class Location(NamedTuple):
    """Where an object far away is: `base` is a bucket, or a host with the query that signs; `key` is a path there."""

    base: str
    key: str


def is_local(uri: str) -> bool:
    """Whether `uri` is a path on this machine."""
    return "://" not in uri or uri.startswith("file://")


def local_path(uri: str) -> Path:
    """The path of a local URI."""
    return Path(uri.removeprefix("file://"))


def normalize_root(root: str) -> str:
    """A folder as an absolute path, an address without slashes at its end: equal roots are equal texts."""
    if is_local(root):
        return str(local_path(root).expanduser().absolute())
    scheme, colon, rest = root.partition("://")
    return f"{scheme}{colon}{rest.rstrip('/')}"


def is_same_root(one: str, other: str) -> bool:
    """Whether two folders are one, also where a path leads through links or `..`."""
    if is_local(one) and is_local(other):
        return os.path.realpath(normalize_root(one)) == os.path.realpath(normalize_root(other))
    return normalize_root(one) == normalize_root(other)


def split_range(uri: str) -> tuple[str, ByteRange | None]:
    """The address of the whole object, and the range of it that is meant, None for all of it."""
    match = BYTE_RANGE.search(uri)
    return (uri[: match.start()], ByteRange(int(match[1]), int(match[2]))) if match else (uri, None)


def locate(uri: str) -> Location:
    """Bucket or host, and key there; StorageError if it names none, or holds credentials that nothing would use."""
    scheme, _, rest = uri.partition("://")
    match = USER.match(rest)
    user, rest = (match[0], rest[match.end() :]) if match else ("", rest)
    query = ""
    if scheme in ("http", "https"):
        rest, mark, query = rest.partition("?")
        query, rest = mark + query, unquote(rest)
    elif user:
        why = "it contains credentials, which are never used from an address"
        raise StorageError(
            f"cannot open `{redact_uri(uri)}`",
            code="credentials-in-address",
            why=why,
            fix="put them into the environment",
        )
    host, _, key = rest.partition("/")
    if not host:
        raise StorageError(
            f"cannot open `{redact_uri(uri)}`",
            code="address-unusable",
            why="it has no bucket or host",
            fix="check the address",
        )
    return Location(f"{scheme}://{user}{host}{query}", key)
