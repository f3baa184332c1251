"""The memory that a process may take: of the machine, or of its control group."""

from __future__ import annotations

from pathlib import Path

import pytest

from voxstill.core import memory


def test_what_is_available_is_no_more_than_all() -> None:
    assert 0 < memory.available_bytes() <= memory.total_bytes()


@pytest.mark.parametrize(
    "names",
    [("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")],
)
def test_the_limit_of_a_control_group_counts_where_it_is_less(
    names: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, num_bytes in zip(names, (1 << 30, 1 << 28), strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{num_bytes}\n")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path)
    assert memory.total_bytes() == 1 << 30
    assert memory.available_bytes() == (1 << 30) - (1 << 28)


def test_a_group_without_a_limit_counts_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = memory.total_bytes()
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1\n")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path)
    assert memory.total_bytes() >= before
