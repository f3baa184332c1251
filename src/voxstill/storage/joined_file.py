"""Where the joined file of `voxstill explore` lies; reading it is the explorer's."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from voxstill.core.config import Config
from voxstill.core.records import fingerprint
from voxstill.storage.files import folder_below
from voxstill.storage.store import Store
from voxstill.storage.uri import is_local, local_path

FOLDER = "explorer"
"""The folder in a work folder."""
FILE = "corpus.duckdb"


def folder_of(cfg: Config) -> Path | None:
    """The work folder's own, or one in the cache where that is far away; None if neither is."""
    root = Store(cfg.work).root
    if is_local(root):
        return local_path(root) / FOLDER
    if cfg.cache.folder is not None:
        return Path(cfg.cache.folder).expanduser() / FOLDER / fingerprint(root)
    return None


def forget(cfg: Config) -> None:
    """Remove the joined file and its drafts, where something in it must be erased: the next explorer builds it."""
    folder = folder_of(cfg)
    if folder is not None:
        erase(folder, f"*{FILE}*")


def erase(folder: Path, pattern: str) -> None:
    """Remove the files and folders in a folder whose names are like `pattern`; StorageError where it is a link."""
    names = [path.name for path in folder.glob(pattern)]
    if not names:
        return
    with folder_below(str(folder.parent), [folder.name]) as opened:
        for name in names:
            try:
                os.unlink(name, dir_fd=opened)
            except FileNotFoundError:
                continue
            except OSError:  # a folder
                shutil.rmtree(name, ignore_errors=True, dir_fd=opened)
