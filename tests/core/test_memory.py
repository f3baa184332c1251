"""The memory that a process may take: of the machine, or of its control group."""

from __future__ import annotations

from voxstill.core import cgroup, memory


def test_what_is_available_is_no_more_than_all() -> None:
    assert 0 < memory.available_bytes() <= memory.total_bytes()


def test_the_names_of_linux_are_there_in_bytes() -> None:
    facts = memory.of_machine()
    assert facts["MemTotal"] > facts["MemAvailable"] > 1 << 20
    limit = cgroup.memory_limit()
    assert memory.total_bytes() == min(facts["MemTotal"], limit or facts["MemTotal"]) + facts["SwapTotal"]
