"""Memory of a process and of those that it has started, while it runs; Linux."""

from __future__ import annotations

import threading
from pathlib import Path


class TreeMemory(threading.Thread):
    """Looks again and again at how much memory a process and those it started have: what they share counts once."""

    def __init__(self, pid: int, every_s: float) -> None:
        super().__init__(daemon=True)
        self.pid, self.every_s, self.most_mb = pid, every_s, 0.0
        self._over = threading.Event()

    def run(self) -> None:
        """Look, until it is stopped."""
        while not self._over.wait(self.every_s):
            self.most_mb = max(self.most_mb, sum(map(proportional_mb, tree(self.pid))))

    def stop(self) -> float:
        """End it; the most that it saw, in MB."""
        self._over.set()
        self.join()
        return self.most_mb


def tree(pid: int) -> list[int]:
    """A process, and those that it and they have started."""
    try:
        listed = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:  # it has just ended
        return []
    return [pid, *(process for children in listed for child in children for process in tree(int(child)))]


def proportional_mb(pid: int) -> float:
    """The proportional set size of a process: a page that n processes share counts as a part in n."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return int(text.partition("\nPss:")[2].split()[0]) * 1024 / 1e6
