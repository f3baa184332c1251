"""What a step logs, kept beside its tables: one file for each process, in `WORK/logs`."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from voxstill.core import scratch
from voxstill.core.background import repeating
from voxstill.core.errors import StorageError
from voxstill.core.monitor import log, log_to
from voxstill.storage.store import Store
from voxstill.storage.uri import is_local

UPLOAD_S = 60.0
"""The log of a job whose WORK is a bucket is uploaded this often, and at the end."""


@contextlib.contextmanager
def kept(work: Store, step: str) -> Iterator[None]:
    """Within this block all messages go into a log file of the work folder, too; a job never fails because of it."""
    key = f"logs/{step}/{datetime.now(UTC):%Y-%m-%d_%H-%M-%S}_{socket.gethostname()}-{os.getpid()}.log"
    with contextlib.ExitStack() as stack:
        path = Path(work.root) / key if is_local(work.root) else stack.enter_context(scratch.folder()) / "log"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handler = log_to(path)
        except OSError as error:
            log.warning("%s: no log file is written: %s", step, error.strerror)
        else:
            if not is_local(work.root):
                stack.enter_context(_uploaded(work, key, path))
            stack.callback(handler.close)
            stack.callback(log.removeHandler, handler)
        yield


@contextlib.contextmanager
def _uploaded(work: Store, key: str, path: Path) -> Iterator[None]:
    """Upload a file now and then where it has grown, and at the end."""
    num_bytes = 0

    def upload() -> None:
        nonlocal num_bytes
        if (size := path.stat().st_size) != num_bytes:
            num_bytes = size
            _upload(work, key, path)

    try:
        with repeating("log upload", UPLOAD_S, upload):
            yield
    finally:
        upload()


def _upload(work: Store, key: str, path: Path) -> None:
    try:
        work.replace(key, path.read_bytes())
    except StorageError as error:
        log.debug("the log is not uploaded: %s", error.what)
