"""JSON objects with a checksum: the last field is a CRC-32 of all bytes, its own digits as zeros.

Objects of earlier versions have none and are read as they are.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping

from voxstill.core.errors import DataError
from voxstill.storage.redaction import redact_uri
from voxstill.storage.store import json_bytes

_KEY, _NO_SUM = "checksum", b"00000000"
_SUM = re.compile(rb' "checksum": "voxstill-crc32:([0-9a-f]{8})"\n}\n')
_MARKS = b'"checksum"', b"voxstill-crc32"
"""Two, so that a flipped bit in one does not make the object look like an old one."""


def encode(value: Mapping[str, object]) -> bytes:
    """An object with its checksum."""
    data = json_bytes({**value, _KEY: f"voxstill-crc32:{_NO_SUM.decode()}"})
    place = data.rindex(_NO_SUM)
    return b"".join((data[:place], b"%08x" % zlib.crc32(data), data[place + len(_NO_SUM) :]))


def decode(data: bytes, where: str) -> dict[str, object]:
    """The object without its checksum; DataError if it is none, or not the one that was written."""
    try:
        if has_checksum(data) and not _is_whole(data):
            raise ValueError("its bytes do not match its checksum")
        value: object = json.loads(data)
        if not isinstance(value, dict):
            raise ValueError(f"it contains a {type(value).__name__}")
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"`{redact_uri(where)}` is not what was written",
            code="table-broken",
            why=str(error),
            fix="run `voxstill verify WORK --repair`, or remove the file and run the step again",
        ) from None
    value.pop(_KEY, None)
    return value


def has_checksum(data: bytes) -> bool:
    """Whether an object has a checksum, right or wrong."""
    return any(mark in data[-64:] for mark in _MARKS)


def _is_whole(data: bytes) -> bool:
    match = _SUM.search(data, max(0, len(data) - 64))
    if match is None or match.end() != len(data):
        return False
    return int(match[1], 16) == zlib.crc32(b"".join((data[: match.start(1)], _NO_SUM, data[match.end(1) :])))
