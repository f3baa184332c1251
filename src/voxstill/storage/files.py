"""Files of this machine that are read: none but files, as a pipe makes a reader wait and a device may have no end."""

from __future__ import annotations

import errno
import io
import os
import stat

from voxstill.core.errors import StorageError, system_code

NOT_A_FILE = "it is a pipe, a socket or a device, not a file"


def open_file(path: str | os.PathLike[str]) -> io.FileIO:
    """Open a file to read it, without a buffer; OSError also where it is none."""
    check_file(path)
    return open(path, "rb", buffering=0)


def check_file(path: str | os.PathLike[str]) -> None:
    """OSError with the errno ENOTSUP where there is a pipe, a socket or a device; nothing is opened."""
    if not is_file(os.stat(path)):
        raise OSError(errno.ENOTSUP, NOT_A_FILE, os.fspath(path))


def is_file(status: os.stat_result) -> bool:
    """Whether it is a file, and not a folder, which cannot be opened as one."""
    return stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)


class FileBytes:
    """The bytes of an open file, read where they are sliced; StorageError if they cannot be."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self._num_bytes = os.fstat(file.fileno()).st_size

    def __len__(self) -> int:
        return self._num_bytes

    def __getitem__(self, part: slice, /) -> bytes:
        start, end, _ = part.indices(self._num_bytes)
        try:
            return os.pread(self._file.fileno(), max(0, end - start), start)
        except OSError as error:
            why = error.strerror or str(error)
            raise StorageError(
                f"cannot read `{self._file.name}`", code=system_code(error), why=why, fix="check the disk"
            ) from None
