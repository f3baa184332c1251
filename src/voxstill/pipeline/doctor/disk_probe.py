"""Free space and speed of a folder, in a process of its own: one that waits for a hung disk cannot be ended.

    python disk_probe.py FOLDER

It loads nothing of voxstill, and prints JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time

_BLOCK = 1 << 20
_NUM_BLOCKS = 32
_WRITING_S = 0.5


def main(folder: str) -> None:
    """Print the figures of the folder, or why nothing can be written there."""
    space = os.statvfs(folder)
    figures: dict[str, object] = {
        "free_bytes": space.f_bavail * space.f_frsize,
        "total_bytes": space.f_blocks * space.f_frsize,
        "free_files": space.f_favail if space.f_files else None,
    }
    try:
        figures |= _speeds(folder)
    except OSError as error:
        figures["error"] = error.strerror
    print(json.dumps(figures))  # noqa: T201


def _speeds(folder: str) -> dict[str, object]:
    """Bytes a second of writing to the disk and of reading back from it, and seconds of one small random read."""
    handle, path = tempfile.mkstemp(prefix=".voxstill-doctor-", dir=folder)
    try:
        os.unlink(path)  # nothing is left, however this ends
        block, num_blocks, start = os.urandom(_BLOCK), 0, time.perf_counter()
        while num_blocks < _NUM_BLOCKS and time.perf_counter() - start < _WRITING_S:
            num_blocks += os.write(handle, block) == _BLOCK
        os.fsync(handle)
        write_s = time.perf_counter() - start
        with contextlib.suppress(OSError):  # a file system in memory has no other copy
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        start = time.perf_counter()
        os.pread(handle, 4096, num_blocks // 2 * _BLOCK)
        seek_s, start, num_read = time.perf_counter() - start, time.perf_counter(), 0
        while num_read < num_blocks and time.perf_counter() - start < _WRITING_S:
            num_read += len(os.pread(handle, _BLOCK, num_read * _BLOCK)) == _BLOCK
        read_s = time.perf_counter() - start
        return {
            "write_bytes_per_s": num_blocks * _BLOCK / write_s,
            "read_bytes_per_s": num_read * _BLOCK / read_s,
            "seek_s": seek_s,
        }
    finally:
        os.close(handle)


if __name__ == "__main__":
    main(sys.argv[1])
