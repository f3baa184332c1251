"""What a step logs, kept beside its tables: one file for each process, in `WORK/logs`."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from voxstill.core.errors import StorageError
from voxstill.core.monitor import log, log_to
from voxstill.storage.store import Store
from voxstill.storage.uri import is_local

UPLOAD_S = 60.0
"""The log of a job whose WORK is a bucket is uploaded this often, and at the end."""


@contextlib.contextmanager
def kept(work: Store, step: str) -> Iterator[None]:
    """Within this block all messages go into a log file of the work folder, too; a job never fails for want of it."""
    key = f"logs/{step}/{datetime.now(UTC):%Y-%m-%d_%H-%M-%S}_{socket.gethostname()}-{os.getpid()}.log"
    with contextlib.ExitStack() as stack:
        if is_local(work.root):
            path = Path(work.root) / key
        else:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "log"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handler = log_to(path)
        except OSError as error:
            log.warning("%s: no log file is kept: %s", step, error.strerror)
        else:
            if not is_local(work.root):
                stack.enter_context(_uploaded(work, key, path))
            stack.callback(handler.close)
            stack.callback(log.removeHandler, handler)
        yield


@contextlib.contextmanager
def _uploaded(work: Store, key: str, path: Path) -> Iterator[None]:
    """Upload a file now and then, and at the end."""
    ends = threading.Event()
    thread = threading.Thread(target=_upload_until, args=(work, key, path, ends), name="log upload", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
        _upload(work, key, path)


def _upload_until(work: Store, key: str, path: Path, ends: threading.Event) -> None:
    num_bytes = 0
    while not ends.wait(UPLOAD_S):
        if (size := path.stat().st_size) != num_bytes:
            num_bytes = size
            _upload(work, key, path)


def _upload(work: Store, key: str, path: Path) -> None:
    try:
        work.replace(key, path.read_bytes())
    except StorageError as error:
        log.debug("the log is not uploaded: %s", error.what)
