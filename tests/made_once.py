"""What is slow to make and the same for all tests: made by one of the processes that run them, copied by the others."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object], folder: Path) -> Path:
    """`folder`, as `make` fills it: the first process to ask for a name calls `make`, each has a copy of its own."""
    base = factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    made, draft = root / f"made-{name}", root / f"draft-{name}"
    with (root / f"lock-{name}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(draft, ignore_errors=True)  # of a process that died
            draft.mkdir()
            make(draft)
            draft.rename(made)
    shutil.copytree(made, folder)
    return folder
