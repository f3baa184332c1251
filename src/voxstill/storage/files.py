"""Files of this machine that are read: none but files, as a pipe makes a reader wait and a device may have no end."""

from __future__ import annotations

import errno
import io
import os
import stat

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
    """Whether it is a file or a folder, which nobody can open as a file."""
    return stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
