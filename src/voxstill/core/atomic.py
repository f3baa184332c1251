"""Local files and folders that are whole or absent: written as a draft beside their place, then renamed.

One process writes a path at a time; a draft that a dead process left is replaced by the next one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write bytes, or text as UTF-8, over what was at `path`; a reader sees the old content or the new one."""
    with atomic_file(path) as draft:
        draft.write_bytes(data.encode() if isinstance(data, str) else data)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """The path of a draft, a file or a link that the block makes; it replaces `path` where nothing is raised."""
    draft = _draft_of(path)
    draft.unlink(missing_ok=True)
    yield draft
    _share(draft)
    draft.replace(path)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """An empty folder for the block to fill; it replaces `path` where nothing is raised.

    A folder cannot be renamed over another that is not empty: for a moment there is none.
    """
    draft = _draft_of(path)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    yield draft
    for file in draft.rglob("*"):
        _share(file)
    shutil.rmtree(path, ignore_errors=True)
    draft.rename(path)


def _share(path: Path) -> None:
    """Give a file that a library has made for its owner alone, as safetensors does, the rights of any new file."""
    if path.is_symlink() or not path.is_file() or path.stat().st_mode & 0o777 != 0o600:
        return
    umask = os.umask(0o077)
    os.umask(umask)
    path.chmod(0o666 & ~umask)


def _draft_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.draft")
