"""Errors for people: what happened, why, and the fix; each kind has an exit code."""

from __future__ import annotations

from voxstill.core.terminal import continued


class VoxstillError(Exception):
    """An error a user can act on. `what` is one sentence; `why` and `fix` complete it.

    >>> try:
    ...     voxstill.load_config("my.yaml", "train.stepps=4")
    ... except voxstill.VoxstillError as error:
    ...     print(type(error).__name__, error.exit_code)
    ConfigError 2
    """

    exit_code = 1

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what, self.why, self.fix = what, why, fix

    def __str__(self) -> str:
        parts = (("error: ", self.what), ("  why: ", self.why), ("  fix: ", self.fix))
        return "\n".join(head + continued(text, len(head)) for head, text in parts if text)

    def __reduce__(self) -> tuple[object, ...]:  # keyword arguments do not survive Exception's own pickling
        return _rebuild, (type(self), self.what, self.why, self.fix)


def _rebuild(kind: type[VoxstillError], what: str, why: str, fix: str) -> VoxstillError:
    return kind(what, why=why, fix=fix)


class ClusterError(VoxstillError):
    """The machines that the work ran on are gone; the same command can be run again."""


class ConfigError(VoxstillError):
    """The configuration or the command line cannot be used."""

    exit_code = 2


class DataError(VoxstillError):
    """The audio, the tables or the shards cannot be used."""

    exit_code = 3


class StorageError(VoxstillError):
    """Reading or writing a file or an object failed."""

    exit_code = 4


class TeacherError(VoxstillError):
    """A teacher cannot be started or fails on everything."""

    exit_code = 5


class TrainingError(VoxstillError):
    """Training cannot start or cannot go on."""

    exit_code = 6


class Interrupted(VoxstillError):  # noqa: N818
    """A signal ended the work; what was done is safe, and the same command goes on from there."""

    exit_code = 130


def first_line(error: BaseException) -> str:
    """The first line of what an error of a library says; its kind where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
