"""The process and its machine."""

from __future__ import annotations

import subprocess
import sys

FAULTS = """
import resource, sys, torch
from voxstill.core import world
torch.set_num_threads(1)
if sys.argv[1] == "kept":
    world.reuse_freed_memory()
def work():
    for _ in range(10):
        torch.ones(16_000_000)  # more than glibc keeps by itself
work()  # after some rounds the largest is there
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_freed_memory_is_reused_without_page_faults() -> None:
    def faults(how: str) -> int:
        process = subprocess.run([sys.executable, "-c", FAULTS, how], stdout=subprocess.PIPE, text=True, check=True)
        return int(process.stdout)

    assert faults("kept") < 1000
    assert faults("given back") > 10_000
