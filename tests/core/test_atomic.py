"""Whole or absent: a write that fails in the middle leaves what was there."""

from __future__ import annotations

from pathlib import Path

import pytest

from voxstill.core.atomic import atomic_file, atomic_folder, write_atomically


def test_a_file_is_replaced_by_text_or_by_bytes(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    write_atomically(path, "ü\n")
    assert path.read_bytes() == "ü\n".encode()
    write_atomically(path, b"\xff")
    assert path.read_bytes() == b"\xff"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_stays_as_it_was_where_writing_fails_and_can_be_written_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    write_atomically(path, b"old")

    def fail() -> None:
        with atomic_file(path) as draft:
            draft.write_bytes(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_bytes() == b"old"
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_link_is_pointed_elsewhere_at_once(tmp_path: Path) -> None:
    link = tmp_path / "last"
    for name in ("one", "two"):
        with atomic_file(link) as draft:
            draft.symlink_to(name)
        assert link.readlink() == Path(name)


def test_a_folder_is_replaced_as_a_whole_and_a_stale_draft_is_no_part_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "model"

    def fail() -> None:
        with atomic_folder(folder) as draft:
            (draft / "half").touch()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not folder.exists()
    for name in ("old", "new"):
        with atomic_folder(folder) as draft:
            (draft / name).touch()
        assert [path.name for path in folder.iterdir()] == [name]
