"""Local files and folders that are whole or absent: written as a draft beside their place, then renamed.

Several processes may write one path at once: each has a draft of its own, and the last to end replaces what the others
wrote. A draft that a killed process of this machine left is removed by the next one that writes the path.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import itertools
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from voxstill.core import process

_NUMBERS = itertools.count()
"""Of the drafts of this process."""
_OWNER = re.compile(r"(?P<pid>\d{1,9})-(?P<start>[^-]+)-\d+")


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write bytes, or text as UTF-8, over what was at `path`; a reader sees the old content or the new one.

    A device, a pipe or an open file, such as `/dev/stdout`, is written to: a rename would put a file in its place.
    """
    content = data.encode() if isinstance(data, str) else data
    if is_stream(path):
        with path.open("ab") as stream:
            stream.write(content)
        return
    with atomic_file(path) as draft:
        draft.write_bytes(content)


def is_stream(path: Path) -> bool:
    """Whether there is a device or a pipe at `path`, or a link to what a process has open."""
    target = path.parent / os.readlink(path) if path.is_symlink() else path
    is_open = Path(os.path.realpath(target.parent)).match("/proc/*/fd")
    return is_open or (path.exists() and not path.is_file() and not path.is_dir())


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """The path of a draft, a file or a link that the block makes; it replaces `path` where nothing is raised."""
    with name_beside(path) as draft:
        yield draft
        _share(draft)
        draft.replace(path)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """An empty folder for the block to fill; it replaces `path` where nothing is raised.

    A folder cannot be renamed over another that is not empty: for a moment there is none.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with name_beside(path) as draft, name_beside(path) as old:
        draft.mkdir()
        yield draft
        for file in draft.rglob("*"):
            _share(file)
        while True:
            with contextlib.suppress(FileNotFoundError):
                path.rename(old)
            try:
                draft.rename(path)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                remove(old)  # another process has put its folder there meanwhile
            else:
                return


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all that is in it; nothing happens where there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _share(path: Path) -> None:
    """Give a file that a library has made for its owner alone, as safetensors does, the rights of any new file."""
    if path.is_symlink() or not path.is_file() or path.stat().st_mode & 0o777 != 0o600:
        return
    umask = os.umask(0o077)
    os.umask(umask)
    path.chmod(0o666 & ~umask)


@contextmanager
def name_beside(path: Path) -> Iterator[Path]:
    """A name beside `path` that nobody else uses; what is there at the end of the block is removed.

    So is, at its begin, what killed processes of this machine left by such names.
    """
    machine = process.machine_id()
    for left in path.parent.glob(f".{glob.escape(path.name)}.{machine}-*-*-*.draft"):
        owned = _OWNER.fullmatch(left.name.removesuffix(".draft").rpartition(".")[2].removeprefix(f"{machine}-"))
        if owned is not None and process.started(int(owned["pid"])) != owned["start"]:
            with contextlib.suppress(OSError):  # another process removes it, too
                remove(left)
    owner = f"{machine}-{os.getpid()}-{process.started(os.getpid())}-{next(_NUMBERS)}"
    draft = path.with_name(f".{path.name}.{owner}.draft")
    try:
        yield draft
    finally:
        with contextlib.suppress(OSError):  # the error of the block says more
            remove(draft)
