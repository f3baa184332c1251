"""What may be shown of an address, a message or options: no user, password, signature or key, no secret of the
environment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from voxstill.core import config, world
from voxstill.core.errors import ConfigError

BYTE_RANGE = re.compile(r"#(\d+)\+(\d+)$")
"""`#START+LENGTH` at the end of an address: that range of the object's bytes."""
USER = re.compile(r"^(?:[^/@:?]*:(?!\d+/)[^@?]*|[^/@?]*)@")
"""User and password in front of a host."""
_WEB_QUERY, _NAMED_VALUES = re.compile(r"\?|#.*="), re.compile(r"[?#].*=")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'`<>|]+")
_SECRET_OPTION = re.compile(
    r"(^|_)(password|passwd|passphrase|pwd|secret|credentials?|authorization|(api|access|auth|private|secret|account)_?key"
    r"|(api|access|auth|bearer|session|security|hf)_?token)$|^(token|key|pass)$",
    re.IGNORECASE,
)
_NAMES = re.compile(r"(?:--[\w-]+=)?(?:[\w.-]+=)?")
"""What an argument sets: `--api-key=`, `teacher.api_key=` or `--set=teacher.api_key=`."""
_NAME = re.compile(r"""(?<![\w.-])([\w.-]+)["']?\s*[:=]\s*""")
_SIGNING = re.compile(
    r"(?:signature|token|secret|passw|credential|access_?key|api_?key|auth|(?:^|[-_.])(?:sig|key|pwd)$)", re.IGNORECASE
)


def redact_uri(uri: str) -> str:
    """`uri` as it may be shown to everyone: without user, password and the values of a query, which may sign it."""
    scheme, colon, rest = uri.partition("://")
    if not colon or scheme == "file":
        return uri
    rest = USER.sub("", rest)
    if query := (_WEB_QUERY if scheme in ("http", "https") else _NAMED_VALUES).search(rest):
        byte_range = BYTE_RANGE.search(rest)
        rest = f"{rest[: query.start()]}?...{byte_range[0] if byte_range else ''}"
    return f"{scheme}://{rest}"


def holds_credentials(uri: str) -> bool:
    """Whether an address holds a user, or a query with a value that signs it or is a secret, by its name."""
    scheme, colon, rest = uri.partition("://")
    if not colon or scheme == "file" or ("@" not in rest and "=" not in rest):
        return False
    query = _WEB_QUERY if scheme in ("http", "https") else _NAMED_VALUES
    values = re.split(r"[?&#;]", rest[match.start() :]) if (match := query.search(rest)) else []
    return USER.match(rest) is not None or any(
        _SIGNING.search(value.partition("=")[0]) for value in values if "=" in value
    )


def redact_text(text: str) -> str:
    """`text` with `...` for the secrets of the environment, and each address in it redacted."""
    for secret in world.secrets():
        text = text.replace(secret, "...")
    return _ADDRESS.sub(lambda address: redact_uri(address[0]), text)


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """A command line as it may be shown: `redact_text` of each argument, and `***` for options that hold a secret.

    These are `--api-key X`, `--set teacher.api_key=X` and `--set 'teacher={api_key: X}'`.
    """
    redacted: list[str] = []
    is_value = False
    for argument in arguments:
        redacted.append("***" if is_value else redact_text(_redact_settings(argument)))
        is_value = argument.startswith("--") and _is_secret_name(argument)
    return redacted


def _redact_settings(argument: str) -> str:
    """`argument` with `***` for the value of each secret option that is set in it; a mapping that has one is JSON."""
    names = match[0] if (match := _NAMES.match(argument)) else ""
    if any(map(_is_secret_name, names.split("="))):
        return f"{names}***"
    try:
        value = config.tree([f"value={argument.removeprefix(names)}"])
    except ConfigError:  # no YAML: it is cut where a name may be one of a secret
        secret = next((name for name in _NAME.finditer(argument) if _is_secret_name(name[1])), None)
        return argument if secret is None else f"{argument[: secret.end()]}***"
    shown = redact_options(value)
    return argument if shown == value else names + json.dumps(shown["value"], ensure_ascii=False, default=str)


def _is_secret_name(name: str) -> bool:
    return is_secret(name.rpartition(".")[2].lstrip("-").replace("-", "_"))


def is_secret(option: str) -> bool:
    """Whether an option holds a secret by its name: `api_key` does, `api_key_env` and `max_tokens` do not."""
    return _SECRET_OPTION.search(option) is not None


def redact_options(options: Mapping[Any, object], also: Collection[str] = ()) -> dict[str, object]:
    """Options with `***` for texts and numbers of those that `is_secret`, and of those named in `also`, on every level.

    An option that is true, false or not set stays.
    """

    def redacted(value: object, secret: bool) -> object:
        if isinstance(value, Mapping):
            return {
                name: redacted(item, secret or is_secret(str(name)) or name in also) for name, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [redacted(item, secret) for item in value]
        return value if not secret or value is None or isinstance(value, bool) else "***"

    def inner(options: Mapping[Any, object], secret: bool) -> dict[str, object]:
        return {
            name: redacted(value, secret or name in also or is_secret(str(name))) for name, value in options.items()
        }

    return inner(options, False)
