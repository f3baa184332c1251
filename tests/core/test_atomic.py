"""Whole or absent: a write that fails in the middle leaves what was there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from voxstill.core import process
from voxstill.core.atomic import atomic_file, atomic_folder, write_atomically


def test_a_file_is_replaced_by_text_or_by_bytes(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    write_atomically(path, "ü\n")
    assert path.read_bytes() == "ü\n".encode()
    write_atomically(path, b"\xff")
    assert path.read_bytes() == b"\xff"
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_and_what_a_process_has_open_are_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe, link, out = tmp_path / "pipe", tmp_path / "stdout", tmp_path / "out"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, "page")
    assert os.read(reader, 9) == b"page"
    os.close(reader)
    with out.open("wb") as file:
        link.symlink_to(f"/proc/self/fd/{file.fileno()}")  # as /dev/stdout
        write_atomically(link, "page")
    assert out.read_bytes() == b"page"
    assert (pipe.is_fifo(), link.is_symlink()) == (True, True)


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


def test_two_that_write_one_path_at_once_leave_what_the_last_one_wrote(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    with atomic_file(path) as first:
        first.write_text("half of the first")
        with atomic_file(path) as second:
            second.write_text("all of the second")
        assert path.read_text() == "all of the second"
        first.write_text("all of the first")
    assert path.read_text() == "all of the first"
    assert list(tmp_path.iterdir()) == [path]


def test_two_that_write_one_folder_at_once_leave_what_the_last_one_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kaldi"
    move = Path.rename

    def second() -> None:
        with atomic_folder(folder) as draft:
            (draft / "second").touch()

    def rename(self: Path, target: Path) -> Path:
        if target == folder:  # the first has moved the old folder away, and is about to put its own there
            monkeypatch.undo()
            second()
        return move(self, target)

    second()
    monkeypatch.setattr(Path, "rename", rename)
    with atomic_folder(folder) as first:
        (first / "first").touch()
    assert [path.name for path in folder.iterdir()] == ["first"]
    assert list(tmp_path.iterdir()) == [folder]


def test_the_draft_of_a_killed_process_goes_with_the_next_and_that_of_a_running_one_stays(tmp_path: Path) -> None:
    code = """
import os, signal, sys
import subprocess
import sys
from pathlib import Path
from voxstill.core.atomic import atomic_file, atomic_folder
path = Path(sys.argv[1])
with atomic_file(path / "file") as file, atomic_folder(path / "folder") as folder:
    file.write_text("half")
    (folder / "half").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=120)
    assert len(list(tmp_path.iterdir())) == 2
    with atomic_file(tmp_path / "file") as mine:
        mine.touch()
        write_atomically(tmp_path / "file", "whole")
        assert mine.exists()
    machine = process.machine_id()
    odd = {f".file.{machine}-{rest}.draft" for rest in ("a-b-c", "1-2-3-4", f"{10**20}-1-1")} | {
        ".file.others-1-1-1.draft"
    }
    for name in odd:  # which this does not write
        (tmp_path / name).touch()
    with atomic_folder(tmp_path / "folder"):
        pass
    write_atomically(tmp_path / "file", "whole")
    for name in odd:
        (tmp_path / name).unlink()
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder"}
