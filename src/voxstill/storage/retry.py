"""Which failures of storage are transient, how long they are retried, and the StorageError that they end in.

Transient are 500, 503, time-outs and broken connections: they are retried for about a minute.
"""

from __future__ import annotations

import random
import re
import time
from typing import NamedTuple

from voxstill.core.errors import StorageError, system_code
from voxstill.storage.redaction import redact_text, redact_uri

MAX_RETRIES = 8
MAX_PAUSE_S = 5.0
MAX_RETRYING_S = 60.0
_BROKEN_CONNECTION = (
    r"ConnectionReset|IncompleteMessage|UnexpectedEof|BrokenPipe|kind: (Interrupted|Request|Decode|Body)"
)
_CAUSES = {
    r"dns error|failed to lookup|Name or service not known": "the host name is unknown",
    r"Connection refused|ConnectionRefused": "the connection is refused",
    r"kind: Timeout|TimedOut|timed out": "repeated timeouts",
    _BROKEN_CONNECTION: "the connection breaks repeatedly",
}
_NO_FOLDER = {2: "no folder can be created there", 17: "it is a file", 20: "a part of the path is a file"}
"""Why the system makes no folder, by its number of the error."""


class _Cause(NamedTuple):
    """Why a client failed, what repairs it, and the code of both."""

    code: str
    why: str
    fix: str


class Retries:
    """The retries of one operation: at most `MAX_RETRIES`, none after `MAX_RETRYING_S`."""

    def __init__(self) -> None:
        self._num_pauses = 0
        self._give_up_at = time.monotonic() + MAX_RETRYING_S

    @property
    def are_spent(self) -> bool:
        """Whether the operation is to fail now."""
        return self._num_pauses == MAX_RETRIES or time.monotonic() > self._give_up_at

    def pause(self) -> None:
        """Wait before the next try: longer each time, and not the same for all who wait."""
        time.sleep(min(0.1 * 2**self._num_pauses, MAX_PAUSE_S) * random.uniform(0.5, 1.0))
        self._num_pauses += 1


def is_transient(error: Exception) -> bool:
    """Whether the same request may well succeed a moment later."""
    text = str(error)
    if status := re.search(r"status code: (\d{3})", text):
        return status[1] in ("408", "429") or status[1].startswith("5")
    return "HTTP error" in text and "builder error" not in text and not has_no_length(error)


def has_no_length(error: Exception) -> bool:
    """Whether a server does not give the length of its answer, as one that compresses or makes it up does not."""
    return "Content-Length Header missing" in str(error)


def is_broken_connection(error: Exception) -> bool:
    """Whether the connection broke in the middle of an answer."""
    return is_transient(error) and re.search(_BROKEN_CONNECTION, str(error)) is not None


def storage_error(verb: str, uri: str, error: Exception) -> StorageError:
    """The StorageError for what a client raised when it was to `verb` what is at `uri`; it shows no credentials."""
    cause = _Cause(error.code, error.why, error.fix) if isinstance(error, StorageError) else _cause(error)
    return StorageError(f"cannot {verb} `{redact_uri(uri)}`", code=cause.code, why=cause.why, fix=cause.fix)


def _cause(error: Exception) -> _Cause:
    """What an error of a client means. What a server answers is not repeated: it may hold keys and signed addresses."""
    text = str(error)
    status, reason = re.search(r"status code: (\d{3}[\w ]*)", text), re.search(r"<Code>(\w+)</Code>", text)
    answer = (status[1].strip() if status else "") + (f" ({reason[1]})" if reason else "")
    if isinstance(error, FileNotFoundError):
        why = "there is no such bucket" if reason and reason[1] == "NoSuchBucket" else "it does not exist"
        return _Cause("file-missing", why, "check the path")
    if isinstance(error, OSError) and error.strerror:
        return _Cause(system_code(error), error.strerror, "check the path, the permissions and the free space")
    if match := re.fullmatch(r"(.+) \(os error (\d+)\)", text):
        number = int(match[2])
        code = "output-path" if number in _NO_FOLDER else system_code(error)
        return _Cause(code, _NO_FOLDER.get(number, match[1]), "give a folder that you may write to")
    if re.search(r"/latest/(api/token|meta-data)|computeMetadata", text):  # the last place where they are looked for
        fix = "set them in the environment, such as AWS_ACCESS_KEY_ID; AWS_SKIP_SIGNATURE=true for a public bucket"
        return _Cause("access-refused", "there are no credentials", fix)
    if status and status[1][:3] in ("401", "403"):
        fix = "check the credentials in the environment, their permissions and the address"
        return _Cause("access-refused", f"the server refuses: {answer}", fix)
    if status and (status[1].startswith("5") or status[1][:3] in ("408", "429")):
        fix = "wait and run the step again; fewer workers make fewer requests"
        return _Cause("storage-unreachable", f"the server keeps answering {answer}", fix)
    if status:
        return _Cause("address-unusable", f"the server answers {answer}", "check the address")
    if has_no_length(error):
        why = "the server does not give the length of its answer (`Content-Length`)"
        fix = "let the server send files as they are, uncompressed, or copy them to a folder or bucket and name that"
        return _Cause("address-unusable", why, fix)
    if "BadScheme" in text or "builder error" in text:
        fix = "use https, or set AWS_ALLOW_HTTP=true for a server of your own"
        return _Cause("address-unusable", "plain HTTP is not allowed", fix)
    if "Unable to recognise URL" in text:
        fix = "write a path, or an address such as s3://bucket/folder or https://"
        return _Cause("address-unusable", "the scheme is not supported", fix)
    if "Account must be specified" in text:
        return _Cause("address-unusable", "the storage account is missing", "set AZURE_STORAGE_ACCOUNT_NAME")
    for pattern, why in _CAUSES.items():
        if re.search(pattern, text):
            return _Cause("storage-unreachable", why, "check the address and the network, then run the step again")
    why = text.strip().partition("\n")[0] or type(error).__name__  # not every error has words
    return _Cause("storage-failed", redact_text(why), "check the path, the permissions and the free space")
