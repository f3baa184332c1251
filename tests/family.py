"""A process and what it starts: as a run of voxstill, or as any other program; all sleep until they are ended.

Its arguments are the folder of the run, or nothing for another program. It prints the ids of its children as JSON: a
program in its group, one in a session of its own, one that ignores SIGTERM, one that is only forked, one of that.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

from voxstill.core import run_mark

SLEEP = "import time; time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); {SLEEP}"


def fork_sleeper() -> int:
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    return pid


def fork_parent() -> list[int]:
    """A forked process and one that it has forked."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, f"{fork_sleeper()}\n".encode())
        time.sleep(600)
        os._exit(0)
    return [pid, int(os.read(reading, 32))]


def main(*folders: str) -> None:
    with run_mark.marked("label", *folders) if folders else contextlib.nullcontext():
        stubborn = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
        assert stubborn.stdout is not None
        stubborn.stdout.readline()  # it ignores SIGTERM from now on
        pids = [
            stubborn.pid,
            subprocess.Popen([sys.executable, "-c", SLEEP]).pid,
            subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True).pid,
            *fork_parent(),
        ]
        sys.stdout.write(json.dumps(pids) + "\n")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
