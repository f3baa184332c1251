"""What may be shown of an address, a message or options: no user, password, signature or key, no secret of the
environment.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from voxstill.core import world

BYTE_RANGE = re.compile(r"#(\d+)\+(\d+)$")
"""`#START+LENGTH` at the end of an address: that range of the object's bytes."""
USER = re.compile(r"^(?:[^/@:?]*:(?!\d+/)[^@?]*|[^/@?]*)@")
"""User and password in front of a host."""
_WEB_QUERY, _NAMED_VALUES = re.compile(r"\?|#.*="), re.compile(r"[?#].*=")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'`<>|]+")
_SECRET_OPTION = re.compile(
    r"(^|_)(password|passwd|passphrase|pwd|secret|credentials?|authorization|(api|access|auth|private|secret|account)_?key"
    r"|(api|access|auth|bearer|session|security|hf)_?token)$|^token$",
    re.IGNORECASE,
)
_NAME = re.compile(r"""(?<![\w.-])([\w.-]+)["']?\s*[:=]\s*""")
# quoted as YAML quotes, a list, or up to the end of the value
_VALUE_IN_MAPPING = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|\[[^\]]*\]?|[^,}\]]*""", re.DOTALL)
_SIGNING = re.compile(
    r"(?:signature|token|secret|passw|credential|access_?key|api_?key|auth|(?:^|[-_.])(?:sig|key|pwd)$)", re.IGNORECASE
)


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
        redacted.append("***" if is_value else _redact_settings(redact_text(argument)))
        is_value = argument.startswith("--") and _is_secret_name(argument)
    return redacted


def _redact_settings(argument: str) -> str:
    """`argument` with `***` for the value of each secret option that is set in it, within a mapping or alone."""
    shown, at = "", 0
    for name in _NAME.finditer(argument):
        if name.start() >= at and _is_secret_name(name[1]):
            value = _VALUE_IN_MAPPING.match(argument, name.end()) if "{" in argument[: name.start()] else None
            shown += argument[at : name.end()] + "***"
            at = value.end() if value else len(argument)
    return shown + argument[at:]


def _is_secret_name(name: str) -> bool:
    return is_secret(name.rpartition(".")[2].lstrip("-").replace("-", "_"))


def is_secret(option: str) -> bool:
    """Whether an option holds a secret by its name: `api_key` does, `api_key_env` and `max_tokens` do not."""
    return _SECRET_OPTION.search(option) is not None


def redact_options(options: Mapping[str, object], also: Collection[str] = ()) -> dict[str, object]:
    """Options with `***` for the text of those that `is_secret`, and of those named in `also`, on every level."""

    def redacted(name: str, value: object) -> object:
        if isinstance(value, Mapping):
            return redact_options(value, also)
        if isinstance(value, list):
            return [redacted(name, item) for item in value]
        return "***" if isinstance(value, str) and (is_secret(name) or name in also) else value

    return {name: redacted(name, value) for name, value in options.items()}
