"""Trees of processes beside a run that is reaped: runs of voxstill, alive or dead, and other programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from voxstill.core import run_mark
from voxstill.core.process import Process

FAMILY = Path(__file__).parent / "family.py"


@dataclass(frozen=True)
class Family:
    """A process and those that it has started."""

    parent: subprocess.Popen[bytes]
    children: Sequence[Process]

    @property
    def pids(self) -> set[int]:
        return {child.pid for child in self.children}

    @property
    def num_running(self) -> int:
        return sum(not child.has_ended for child in self.children)

    @property
    def is_untouched(self) -> bool:
        return self.parent.poll() is None and self.num_running == len(self.children)

    def kill_parent(self) -> None:
        self.parent.kill()
        self.parent.wait()


@contextmanager
def family(*folders: Path) -> Iterator[Family]:
    """A run of voxstill on folders, or without any, another program."""
    environment = {name: text for name, text in os.environ.items() if name != run_mark.VARIABLE}
    command = [sys.executable, str(FAMILY), *map(str, folders)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, start_new_session=True)
    assert parent.stdout is not None
    children = [Process.of(pid) for pid in json.loads(parent.stdout.readline())]
    try:
        yield Family(parent, children)
    finally:
        parent.kill()
        for child in children:
            if not child.has_ended:
                os.kill(child.pid, signal.SIGKILL)
        parent.communicate()
