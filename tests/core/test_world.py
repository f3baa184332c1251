"""The process and its machine."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from voxstill.core import world

FAULTS = """
import resource, sys, torch
from voxstill.core import world
torch.set_num_threads(1)
if sys.argv[1] == "kept":
    world.reuse_freed_memory()
def work(rounds):
    for _ in range(rounds):
        torch.ones(16_000_000)  # more than glibc keeps by itself
work(10)  # after some rounds the largest is there
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work(2)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_freed_memory_is_reused_without_page_faults() -> None:
    def faults(how: str) -> int:
        process = subprocess.run([sys.executable, "-c", FAULTS, how], stdout=subprocess.PIPE, text=True, check=True)
        return int(process.stdout)

    assert faults("kept") < 1000
    assert faults("given back") > 10_000


class Node:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collecting() -> Iterator[None]:
    """A collector at work that has nothing frozen, as in a command: `conftest` freezes what pytest has loaded."""
    assert gc.isenabled()
    gc.unfreeze()
    yield
    gc.enable()
    gc.freeze()


def test_nothing_is_collected_while_collection_is_paused_and_all_of_it_later(collecting: None) -> None:
    with world.collection_paused():
        garbage = weakref.ref(Node())
        with world.collection_paused():  # as where a library loads another
            assert not gc.isenabled()
        assert not gc.isenabled()
        rows = [[number] for number in range(100_000)]
        assert garbage() is not None
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    assert any(old is rows[0] for old in gc.get_objects(generation=2))
    gc.collect()
    assert garbage() is None


def test_a_pause_ends_with_an_error_and_leaves_a_collector_as_it_was(collecting: None) -> None:
    with pytest.raises(ZeroDivisionError), world.collection_paused():
        raise ZeroDivisionError
    assert gc.isenabled()
    gc.disable()
    with world.collection_paused():
        pass
    assert not gc.isenabled()


def test_what_a_program_has_frozen_stays_frozen(collecting: None) -> None:
    gc.freeze()
    num = gc.get_freeze_count()
    with world.collection_paused():
        pass
    assert 0 < gc.get_freeze_count() <= num


EXIT = """
import atexit, sys
from voxstill.core import world
class Node:
    def __del__(self): print("collected", flush=True)
world.skip_collection_at_exit()
world.skip_collection_at_exit()
cycle = Node()
cycle.itself = cycle
del cycle
atexit.register(print, "the end")
"""


def test_at_its_end_a_process_runs_what_was_registered_and_searches_for_no_garbage() -> None:
    process = subprocess.run([sys.executable, "-c", EXIT], stdout=subprocess.PIPE, text=True, check=True)
    assert process.stdout == "the end\n"
