"""Files for Prometheus' `file_sd_configs`: one for each process that serves metrics, there while it serves them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path

from voxstill.core.atomic import write_atomically
from voxstill.core.errors import StorageError, system_code
from voxstill.core.process import machine_id, started

_ANY = ("", "0.0.0.0", "::")
_written: Path | None = None


def write(folder: str, host: str, port: int, run: str, *, is_tls: bool) -> Path:
    """Write the file of this process into the folder, and remove those of processes of this machine that are gone.

    StorageError if it cannot be written.
    """
    global _written  # noqa: PLW0603
    machine, pid = socket.gethostname(), os.getpid()
    address = machine if host in _ANY else host
    labels = {"run": run, "host": machine, "__scheme__": "https" if is_tls else "http"}
    target = [{"targets": [f"[{address}]:{port}" if ":" in address else f"{address}:{port}"], "labels": labels}]
    path = Path(folder) / f"{machine}-{machine_id()}-{pid}-{started(pid)}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(target, indent=1))
        _remove_dead(path.parent)
    except OSError as error:
        raise StorageError(
            f"`{path}` cannot be written",
            code=system_code(error),
            why=error.strerror or str(error),
            fix="set `monitor.discovery` to a writable folder",
        ) from None
    _written = path
    return path


def remove() -> None:
    """Remove the file of this process."""
    if _written is not None:
        with contextlib.suppress(OSError):  # Prometheus finds no endpoint there, and a later run removes it
            _written.unlink(missing_ok=True)


def _remove_dead(folder: Path) -> None:
    for path in folder.glob(f"*-{machine_id()}-*-*.json"):
        pid, start = path.stem.split("-")[-2:]
        if pid.isdecimal() and started(int(pid)) != start:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
