"""Files of this machine: none but files are read, as a pipe makes a reader wait and a device may have no end; what a
user names is written whole, and nothing is deleted through a link.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from voxstill.core.atomic import write_atomically
from voxstill.core.errors import StorageError, system_code
from voxstill.storage.retry import storage_error

NOT_A_FILE = "it is a pipe, a socket or a device, not a file"


def open_file(path: str | os.PathLike[str]) -> io.FileIO:
    """Open a file to read it, without a buffer; OSError also where it is none."""
    check_file(path)
    return open(path, "rb", buffering=0)


def check_file(path: str | os.PathLike[str]) -> None:
    """OSError with the errno ENOTSUP where there is a pipe, a socket or a device; nothing is opened."""
    if not is_file(os.stat(path)):
        raise OSError(errno.ENOTSUP, NOT_A_FILE, os.fspath(path))


def write_file(path: Path, data: bytes) -> None:
    """Write a file that a user has named, whole or not at all, and the folders that lead to it; StorageError if not."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
    except OSError as error:
        raise storage_error("write", str(path), error) from None


def write_page(page: str, path: str | Path) -> str:
    """`write_file` of a page; returns its path."""
    write_file(Path(path), page.encode())
    return str(path)


def is_file(status: os.stat_result) -> bool:
    """Whether it is a file, and not a folder, which cannot be opened as one."""
    return stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)


@contextlib.contextmanager
def folder_below(root: str, names: Sequence[str]) -> Iterator[int]:
    """A descriptor of the folder that these names lead to from `root`, to delete in it; StorageError for a link.

    A link that takes the place of a folder meanwhile is not followed either. The root may be a link.
    """
    if os.pardir in names:
        raise OSError(errno.EINVAL, "a name is `..`", root)
    path, folder = root, os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in names:
            path = f"{path}/{name}"
            try:
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            except OSError:
                if not os.path.islink(path):
                    raise
                raise StorageError(
                    f"nothing is deleted in `{path}`",
                    code="linked-folder",
                    why="it is a link, and what it leads to may be of somebody else",
                    fix="put the folder itself in the place of the link, or delete by hand what is meant",
                ) from None
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


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
