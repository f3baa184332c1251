"""Errors for people: what happened, why, and the fix; each kind has an exit code, and each cause a code with a page."""

from __future__ import annotations

import errno
import os
import re

from voxstill.core.terminal import continued

_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_SYSTEM_CODES = {
    errno.ENOSPC: "disk-full",
    errno.EDQUOT: "disk-full",
    errno.EACCES: "no-permission",
    errno.EPERM: "no-permission",
    errno.EROFS: "no-permission",
    errno.ENOENT: "file-missing",
}


class VoxstillError(Exception):
    """An error a user can act on. `what` is one sentence; `why` and `fix` complete it.

    `code` names the cause, and `voxstill explain CODE` prints what `errors.md` beside this file says of it. Every error
    of voxstill passes one; an error of another package without one has the general code of its kind.

    >>> try:
    ...     voxstill.load_config("my.yaml", "train.stepps=4")
    ... except voxstill.VoxstillError as error:
    ...     print(type(error).__name__, error.code, error.exit_code)
    ConfigError unknown-option 2
    """

    exit_code = 1
    code = "other-error"

    def __init__(self, what: str, *, code: str = "", why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what, self.why, self.fix = what, why, fix
        self.code = code or type(self).code

    def __str__(self) -> str:
        more = f"voxstill explain {self.code}" if self.code else ""
        parts = (("error: ", self.what), ("  why: ", self.why), ("  fix: ", self.fix), ("  more: ", more))
        return "\n".join(head + continued(text, len(head)) for head, text in parts if text)

    def to_dict(self) -> dict[str, str]:
        """Its texts and its code, as the keywords that make an equal one."""
        return {"what": self.what, "code": self.code, "why": self.why, "fix": self.fix}

    def __reduce__(self) -> tuple[object, ...]:  # keyword arguments do not survive Exception's own pickling
        return _rebuild, (type(self), self.to_dict())


def _rebuild(kind: type[VoxstillError], texts: dict[str, str]) -> VoxstillError:
    return kind(**texts)


class ClusterError(VoxstillError):
    """The machines that the work ran on are gone; the same command can be run again."""

    code = "cluster-error"


class ConfigError(VoxstillError):
    """The configuration or the command line cannot be used."""

    exit_code = 2
    code = "config-error"


class DataError(VoxstillError):
    """The audio, the tables or the shards cannot be used."""

    exit_code = 3
    code = "data-error"


class StorageError(VoxstillError):
    """Reading or writing a file or an object failed."""

    exit_code = 4
    code = "storage-error"


class TeacherError(VoxstillError):
    """A teacher cannot be started or fails on everything."""

    exit_code = 5
    code = "teacher-error"


class TrainingError(VoxstillError):
    """Training cannot start or cannot continue."""

    exit_code = 6
    code = "training-error"


class Interrupted(VoxstillError):  # noqa: N818
    """A signal ended the work; what was done is safe, and the same command resumes from there."""

    exit_code = 130
    code = ""  # there is nothing to repair, and `why` says what is safe


def first_line(error: BaseException) -> str:
    """The first line of what an error of a library says; its kind where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def system_code(error: Exception) -> str:
    """The code of an error that passes on what the operating system says; libraries in Rust write `(os error 28)`, and
    those in C++ its words."""
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (match := _OS_ERROR.search(str(error))):
        number = int(match[1])
    if number is None:
        number = next((known for known in _SYSTEM_CODES if os.strerror(known) in str(error)), None)
    return _SYSTEM_CODES.get(number or 0, "storage-failed")
