"""What may be shown of an address or a message: no user, no password, no signature, no secret of the environment."""

from __future__ import annotations

import re

from voxstill.core import world

BYTE_RANGE = re.compile(r"#(\d+)\+(\d+)$")
"""`#START+LENGTH` at the end of an address: that range of the object's bytes."""
USER = re.compile(r"^(?:[^/@:?]*:(?!\d+/)[^@?]*|[^/@?]*)@")
"""User and password in front of a host."""
_WEB_QUERY, _NAMED_VALUES = re.compile(r"\?|#.*="), re.compile(r"[?#].*=")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'`<>|]+")


def redact_uri(uri: str) -> str:
    """`uri` as it may be shown to anybody: without user, password and the values of a query, which may sign it."""
    scheme, colon, rest = uri.partition("://")
    if not colon or scheme == "file":
        return uri
    rest = USER.sub("", rest)
    if query := (_WEB_QUERY if scheme in ("http", "https") else _NAMED_VALUES).search(rest):
        byte_range = BYTE_RANGE.search(rest)
        rest = f"{rest[: query.start()]}?...{byte_range[0] if byte_range else ''}"
    return f"{scheme}://{rest}"


def redact_text(text: str) -> str:
    """`text` with `...` for the secrets of the environment, and each address in it redacted."""
    for secret in world.secrets():
        text = text.replace(secret, "...")
    return _ADDRESS.sub(lambda address: redact_uri(address[0]), text)
