"""Errors of requests to the explorer."""

from __future__ import annotations

from pathlib import Path

from starlette.responses import JSONResponse

from voxstill.core.errors import DataError, StorageError, VoxstillError, first_line, system_code

_FIXES = {"disk-full": "free some space on its disk", "no-permission": "check the permissions of its folder"}


class JoinedFileLost(DataError):  # noqa: N818
    """The joined file was removed meanwhile, or is damaged: it can be built again."""

    @classmethod
    def of(cls, path: Path, error: Exception) -> JoinedFileLost:
        """The error of a file by that of reading it."""
        return cls(
            f"the joined file `{path}` cannot be read",
            code="table-broken",
            why=first_line(error),
            fix="start the explorer again, which builds it again; if the error remains, remove the file",
        )


def build_failure(path: Path, error: Exception) -> VoxstillError:
    """The error that a joined file cannot be built, by that of the database, of Arrow or of the system."""
    import duckdb

    why, code = first_line(error), system_code(error)
    if isinstance(error, MemoryError | duckdb.OutOfMemoryException):
        return VoxstillError(
            f"there is too little memory to build `{path}`",
            code="out-of-memory",
            why=why,
            fix="end other programs, or use a machine with more memory",
        )
    if isinstance(error, RuntimeError):
        return VoxstillError(
            f"no thread can be started to build `{path}`",
            code="too-few-resources",
            why=why,
            fix="end other programs, or raise the limit of processes: ulimit -u",
        )
    if isinstance(error, OSError | duckdb.IOException) or code in _FIXES:
        fix = _FIXES.get(code, "check its disk")
        return StorageError(f"`{path}` cannot be written", code=code, why=why, fix=fix)
    return DataError(
        f"the tables cannot be joined into `{path}`",
        code="table-broken",
        why=why,
        fix="run: voxstill verify WORK, which reports broken tables",
    )


class RequestError(Exception):
    """A request that is refused: an HTTP status, a message for people and, of an error of voxstill, its code."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code

    def response(self) -> JSONResponse:
        """The answer."""
        code = {} if self.code is None else {"code": self.code}
        return JSONResponse({"error": self.message, **code}, self.status)
