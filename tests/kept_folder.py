"""A folder that is made once and changed by several tests, each of which finds it as it was made."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


class KeptFolder:
    """Files with their times and inodes, as tables say by these which file was written, and at the same path."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._links = folder, folder.with_name(f"{folder.name}-kept")
        self._links.mkdir()
        self._folders, self._files = list[Path](), dict[Path, tuple[Path, bytes, int]]()
        for path in sorted(folder.rglob("*")):
            if path.is_dir():
                self._folders.append(path)
                continue
            link = self._links / str(len(self._files))
            os.link(path, link)
            self._files[path] = (link, path.read_bytes(), path.stat().st_mtime_ns)

    def put_back(self) -> Path:
        """The folder as it was when it was kept."""
        shutil.rmtree(self._folder)
        self._folder.mkdir()
        for folder in self._folders:
            folder.mkdir()
        for path, (link, data, mtime_ns) in self._files.items():
            if link.stat().st_mtime_ns != mtime_ns or link.read_bytes() != data:
                link.write_bytes(data)
                os.utime(link, ns=(mtime_ns, mtime_ns))
            os.link(link, path)
        return self._folder
