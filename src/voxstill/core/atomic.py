"""Local files and folders that are whole or absent: written as a draft beside their place, then renamed.

One process writes a path at a time; a draft that a dead process left is replaced by the next one.
"""

from __future__ import annotations

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
    shutil.rmtree(path, ignore_errors=True)
    draft.rename(path)


def _draft_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.draft")
