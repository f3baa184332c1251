"""Temporary folders that say whose they are: where the process is killed, `voxstill reap` removes them."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from voxstill.core import run_mark
from voxstill.core.run_mark import RunMark

_PREFIX = "voxstill-"
_ABOUT = ".voxstill-run.json"


@dataclass(frozen=True, slots=True)
class ScratchFolder:
    """A temporary folder and the mark of the process that made it."""

    path: Path
    mark: RunMark


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder, empty but for a hidden file, that is removed at the end of the block."""
    path = make()
    try:
        yield path
    finally:
        remove(path)


def make(parent: str | Path | None = None) -> Path:
    """Make a temporary folder, in `parent` or where temporary folders are made, that stays until `remove`."""
    path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    (path / _ABOUT).write_text(run_mark.of_owner_here().to_json(), encoding="utf-8")
    return path


def remove(path: Path) -> None:
    """Remove a temporary folder as far as that is possible; what is left of it still says whose it is."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(path)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != _ABOUT:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
        if [entry.name for entry in os.scandir(path)] == [_ABOUT]:
            shutil.rmtree(path, ignore_errors=True)


def scratch_folders(parents: Iterable[str | Path] = ()) -> Iterator[ScratchFolder]:
    """The temporary folders of this user where they are made by default, and in `parents`."""
    for parent in {os.path.realpath(parent) for parent in (tempfile.gettempdir(), *parents)}:
        with contextlib.suppress(OSError):  # there is no such folder
            for entry in os.scandir(parent):
                if entry.name.startswith(_PREFIX) and (scratch := _scratch_folder(entry)) is not None:
                    yield scratch


def _scratch_folder(entry: os.DirEntry[str]) -> ScratchFolder | None:
    try:
        if not entry.is_dir(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_uid != os.getuid():
            return None
        mark = RunMark.from_json((Path(entry.path) / _ABOUT).read_bytes())
    except OSError:
        return None
    return None if mark is None else ScratchFolder(Path(entry.path), mark)
