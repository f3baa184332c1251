"""Left-over processes: found by the mark of a run that has ended, and ended; nobody else is touched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import shared_memory
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import voxstill
from families import FAMILY, family
from voxstill import cli
from voxstill.core import process, run_mark, scratch
from voxstill.core.process import Process
from voxstill.core.run_mark import RunMark
from voxstill.pipeline import gpu_memory
from voxstill.pipeline.reap import ReapResult, reap
from waiting import until


def found_pids(result: ReapResult) -> set[int]:
    return {row.pid for row in result.found if row.pid is not None}


def ended_pids(result: ReapResult) -> set[int]:
    return {row.pid for row in result.ended if row.pid is not None}


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voxstill.pipeline.reap.GRACE_S", 0.5)


def test_what_a_killed_run_has_started_is_listed_then_ended_and_nothing_else(tmp_path: Path, fast: None) -> None:
    work, other_work = tmp_path / "work", tmp_path / "other"
    with family(work) as dead, family(work) as living, family() as decoy, family(other_work) as other:
        dead.kill_parent()
        other.kill_parent()
        listed = reap(str(work))
        assert found_pids(listed) == dead.pids
        assert (listed.ended, listed.exit_code) == ([], 0)
        assert dead.num_running == len(dead.children)
        row = listed.found[0]
        assert (row.kind, row.command, row.folders) == ("process", "label", (str(work),))
        assert row.owner == dead.parent.pid
        assert row.bytes > 0
        assert row.age_s >= 0
        result = reap(str(work), end=True)
        assert found_pids(result) == ended_pids(result) == dead.pids
        assert result.exit_code == 0
        assert dead.num_running == 0
        assert other.num_running == len(other.children)
        assert living.is_untouched
        assert decoy.is_untouched
        assert reap(str(work), end=True).found == []


def test_a_run_is_found_by_each_of_its_folders_also_through_a_link(tmp_path: Path, fast: None) -> None:
    work, experiment = tmp_path / "work", tmp_path / "exp"
    experiment.mkdir()
    (tmp_path / "link").symlink_to(experiment)
    with family(work, experiment) as dead:
        dead.kill_parent()
        assert found_pids(reap(str(work))) == found_pids(reap(str(tmp_path / "link"))) == dead.pids
        assert found_pids(reap(str(tmp_path))) == set()
        assert dead.pids <= found_pids(reap())
        assert ended_pids(reap(str(tmp_path / "link"), end=True)) == dead.pids


@contextmanager
def sleeper(mark: RunMark, user: int | None = None) -> Iterator[Process]:
    """A program that bears a mark."""
    environment = {**os.environ, run_mark.VARIABLE: mark.to_json()}
    child = subprocess.Popen(["sleep", "600"], env=environment, user=user, cwd="/")
    try:
        until(lambda: run_mark.of_process(child.pid) == mark or user is not None)
        yield Process.of(child.pid)
    finally:
        child.kill()
        child.wait()


def mark_of(folder: Path, owner: Process, machine: str | None = None, launcher: Process | None = None) -> RunMark:
    return RunMark(
        machine=machine or process.machine(),
        owner=owner,
        launcher=launcher,
        command="train",
        folders=(str(folder),),
        since="2020-01-01T00:00:00+00:00",
    )


def test_an_id_that_another_process_has_now_is_no_owner(tmp_path: Path, fast: None) -> None:
    reused = Process(os.getpid(), "1")
    with sleeper(mark_of(tmp_path, reused)) as child:
        assert ended_pids(reap(str(tmp_path), end=True)) == {child.pid}


def test_what_torchrun_has_started_is_left_over_once_torchrun_is_gone(tmp_path: Path, fast: None) -> None:
    alive, gone = Process.of(os.getpid()), Process(os.getpid(), "1")
    with (
        sleeper(mark_of(tmp_path, alive, launcher=alive)) as kept,
        sleeper(mark_of(tmp_path, alive, launcher=gone)) as rank,
    ):
        assert ended_pids(reap(str(tmp_path), end=True)) == {rank.pid}
        assert not kept.has_ended


def test_runs_of_another_machine_boot_or_container_are_counted_and_left_alone(tmp_path: Path) -> None:
    gone = Process(os.getpid(), "1")
    with sleeper(mark_of(tmp_path, gone, machine="elsewhere 1 pid:[4]")) as child:
        result = reap(str(tmp_path), end=True)
        assert (result.found, result.not_judged, result.exit_code) == ([], 1, 0)
        assert not child.has_ended


@pytest.mark.skipif(os.getuid() != 0, reason="only root starts processes of other users")
def test_processes_of_other_users_are_left_alone(tmp_path: Path) -> None:
    with sleeper(mark_of(tmp_path, Process(os.getpid(), "1")), user=65_534) as child:
        assert reap(str(tmp_path), end=True).found == []
        assert not child.has_ended


def test_it_ends_neither_itself_nor_those_that_it_was_started_by(tmp_path: Path) -> None:
    mark = mark_of(tmp_path, Process(os.getpid(), "1"))
    environment = {**os.environ, run_mark.VARIABLE: mark.to_json()}
    line = f"{sys.executable} -m voxstill reap {tmp_path} --yes --json; echo still here"
    shell = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True, check=False, timeout=60)
    first, last = shell.stdout.splitlines()
    assert json.loads(first)["found"] == []
    assert last == "still here"


NESTED = """
import subprocess, sys
from voxstill.core import run_mark
with run_mark.marked("label", sys.argv[1]):
    child = subprocess.Popen([sys.executable, sys.argv[2], sys.argv[3]], start_new_session=True, stdout=sys.stdout)
    child.wait()
"""


def test_a_command_that_another_run_has_started_is_a_run_of_its_own(tmp_path: Path) -> None:
    outer, inner = tmp_path / "outer", tmp_path / "inner"
    parent = subprocess.Popen([sys.executable, "-c", NESTED, outer, FAMILY, inner], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    children = [Process.of(pid) for pid in json.loads(parent.stdout.readline())]
    parent.kill()
    parent.wait()
    try:
        assert found_pids(reap(str(outer))) | found_pids(reap(str(inner))) == set()
    finally:
        command = Path(f"/proc/{children[0].pid}/stat").read_text().rpartition(")")[2].split()[1]
        for pid in (int(command), *(child.pid for child in children)):
            os.kill(pid, signal.SIGKILL)
        parent.stdout.close()


RANK = """
import os, pathlib, sys, time
from voxstill.core import run_mark
launcher = os.getppid()
with run_mark.marked("train", is_whole_process=True), run_mark.marked("train", sys.argv[1]):
    pass
print(flush=True)
while os.getppid() == launcher:
    time.sleep(0.01)
with run_mark.marked("evaluate", sys.argv[1]):
    pathlib.Path(sys.argv[1], "goes on").touch()
    time.sleep(600)
"""
LAUNCHER = """
import os, subprocess, sys  # as torchrun does
rank = {"TORCHELASTIC_RUN_ID": "tests", "RANK": "0", "LOCAL_RANK": "0", "LAUNCHER": str(os.getpid())}
child = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], env={**os.environ, **rank}, start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""


def test_a_rank_bears_its_mark_to_its_end_and_is_left_over_once_torchrun_is_gone(tmp_path: Path, fast: None) -> None:
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, RANK, tmp_path], stdout=subprocess.PIPE)
    assert launcher.stdout is not None
    rank = int(launcher.stdout.readline())
    assert launcher.stdout.readline() == b"\n"  # it is past its blocks
    mark = run_mark.of_process(rank)
    assert mark is not None
    assert (mark.folders, mark.launcher) == ((str(tmp_path),), Process.of(launcher.pid))
    assert reap(str(tmp_path), end=True).found == []
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    until((tmp_path / "goes on").exists)
    assert ended_pids(reap(str(tmp_path), end=True)) == {rank}


BESIDE_A_RANK = """
import os, sys, time
from voxstill.core import run_mark
with run_mark.marked("label", sys.argv[1]):
    print(os.getpid(), flush=True)
    time.sleep(600)
"""


def test_what_a_shell_of_a_rank_left_in_the_background_is_not_left_over(tmp_path: Path, fast: None) -> None:
    rank = {"TORCHELASTIC_RUN_ID": "tests", "RANK": "0", "LOCAL_RANK": "0"}
    shell = subprocess.Popen(
        ["sh", "-c", '"$0" -c "$1" "$2" &', sys.executable, BESIDE_A_RANK, str(tmp_path)],
        env={**os.environ, **rank},
        stdout=subprocess.PIPE,
    )
    assert shell.stdout is not None
    command = Process.of(int(shell.stdout.readline()))
    shell.wait()
    try:
        mark = run_mark.of_process(command.pid)
        assert mark is not None
        assert not mark.has_ended
        assert reap(str(tmp_path), end=True).found == []
        assert not command.has_ended
    finally:
        os.kill(command.pid, signal.SIGKILL)
        shell.stdout.close()


LATE_RANK = """
import os, pathlib, sys, time
while os.getppid() == int(os.environ["LAUNCHER"]):
    time.sleep(0.01)
time.sleep(1)
from voxstill.core import run_mark
with run_mark.marked("train", sys.argv[1]):
    pathlib.Path(sys.argv[1], "began").touch()
    time.sleep(600)
"""


@pytest.mark.skipif(b"torch" in Path("/proc/1/cmdline").read_bytes(), reason="torchrun takes in orphans here")
@pytest.mark.parametrize("has_begun", [True, False])
def test_a_rank_of_which_torchrun_is_gone_before_it_begins_is_left_over(
    has_begun: bool, tmp_path: Path, fast: None
) -> None:
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, LATE_RANK, tmp_path], stdout=subprocess.PIPE)
    assert launcher.stdout is not None
    rank = Process.of(int(launcher.stdout.readline()))
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    if has_begun:
        until((tmp_path / "began").exists)
    try:
        if Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()[1] == "1":
            assert ended_pids(reap(str(tmp_path), end=True)) == {rank.pid}
    finally:
        if not rank.has_ended:
            os.kill(rank.pid, signal.SIGKILL)


def test_the_mark_goes_with_its_block_and_blocks_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(run_mark.VARIABLE, "of an outer process")
    with run_mark.marked("run", "/work"):
        outer = run_mark.current()
        with run_mark.marked("train", "/work", "/exp"):
            inner = run_mark.current()
            assert run_mark.of_process(os.getpid()) == inner
        assert run_mark.of_process(os.getpid()) == outer == run_mark.current()
    assert os.environ[run_mark.VARIABLE] == "of an outer process"
    assert run_mark.of_process(os.getpid()) is None or run_mark.of_process(os.getpid()) != outer
    assert outer is not None
    assert inner is not None
    assert (outer.command, outer.folders) == ("run", ("/work",))
    assert (inner.command, inner.folders) == ("run", ("/work", "/exp"))
    assert inner.owner == Process.of(os.getpid())
    assert not inner.has_ended


@given(
    st.builds(
        RunMark,
        machine=st.text(),
        owner=st.builds(Process, st.integers(), st.text()),
        launcher=st.none() | st.builds(Process, st.integers(), st.text()),
        command=st.text(),
        folders=st.lists(st.text()).map(tuple),
        since=st.text(),
    )
)
def test_a_mark_is_read_as_it_was_written(mark: RunMark) -> None:
    assert RunMark.from_json(mark.to_json()) == mark


@given(st.binary() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_what_is_no_mark_is_none(text: bytes | str) -> None:
    assert RunMark.from_json(text) is None


SCRATCH = """
import os, sys
from voxstill.core import run_mark, scratch
with run_mark.marked("plan", sys.argv[1]):
    path = scratch.make(sys.argv[2])
    (path / "deep").mkdir()
    (path / "deep" / "file").write_bytes(bytes(1000))
    print(path, flush=True)
    sys.stdin.read()
"""


def test_temporary_folders_of_dead_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, temporary = tmp_path / "work", tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(temporary))
    people = temporary / "voxstill-mine"
    people.mkdir()
    with scratch.folder() as own, run_mark.marked("plan", str(work)):
        command = [sys.executable, "-c", SCRATCH, work, temporary]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None
        path = Path(child.stdout.readline().decode().strip())
        assert reap(str(work), end=True).found == []
        child.kill()
        child.communicate()
        [row] = reap(str(work)).found
        assert (row.kind, row.what, row.command) == ("folder", str(path), "plan")
        assert row.bytes > 1000
        result = reap(str(work), end=True)
        assert [row.what for row in result.ended] == [str(path)]
        assert not path.exists()
        assert own.exists()
        assert people.exists()


SEGMENTS = """
import multiprocessing.resource_tracker as tracker, os, sys, time
from multiprocessing import shared_memory
from voxstill.core import run_mark
tracker.register = lambda *_: None
with run_mark.marked("label", sys.argv[1]):
    own, shared = shared_memory.SharedMemory(create=True, size=4096), shared_memory.SharedMemory(sys.argv[2])
    data = open(sys.argv[3], "rb")
    child = os.fork()
    if child == 0:
        time.sleep(600)
    print(child, own.name, flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm")
def test_segments_that_left_over_processes_alone_have_are_removed(tmp_path: Path) -> None:
    data = Path(f"/dev/shm/voxstill-test-{os.getpid()}.tar")  # a corpus that somebody keeps in memory
    data.write_bytes(b"speech")
    shared = shared_memory.SharedMemory(create=True, size=4096)
    try:
        command = [sys.executable, "-c", SEGMENTS, tmp_path, shared.name, data]
        parent = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert parent.stdout is not None
        child, name = parent.stdout.readline().decode().split()
        segment = Path("/dev/shm") / name
        parent.kill()
        parent.wait()
        parent.stdout.close()  # the child has it, too: there is no end to read to
        assert segment.exists()
        result = reap(str(tmp_path), end=True)
        assert ended_pids(result) == {int(child)}
        assert [row.what for row in result.ended if row.kind == "segment"] == [str(segment)]
        assert not segment.exists()
        assert data.exists()
        assert (Path("/dev/shm") / shared.name).exists()
    finally:
        shared.close()
        shared.unlink()
        data.unlink()


SEMAPHORES = """
import multiprocessing, multiprocessing.resource_tracker as tracker, sys
from voxstill.core import run_mark
with run_mark.marked("train", "/work"):
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    print(tracker._resource_tracker._pid, semaphore._semlock.name, flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm")
def test_semaphores_of_a_command_that_was_killed_with_all_it_has_started_are_found(tmp_path: Path) -> None:
    script = tmp_path / "semaphores.py"
    script.write_text(SEMAPHORES)

    def listed() -> set[str]:
        return {row.what for row in reap().found if row.kind == "segment"}

    command = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert command.stdout is not None
    tracker, name = command.stdout.readline().decode().split()
    path = Path("/dev/shm") / f"sem.{name.removeprefix('/')}"
    try:
        assert path.exists()
        assert str(path) not in listed()
        os.kill(int(tracker), signal.SIGKILL)
        command.kill()
        command.communicate()
        assert path.exists()
        assert str(path) in listed()
        assert str(path) not in {row.what for row in reap().unowned}
    finally:
        path.unlink(missing_ok=True)


def test_the_command_lists_and_ends_by_its_options(
    tmp_path: Path, fast: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with family(tmp_path) as dead:
        dead.kill_parent()
        assert cli.main(["reap", str(tmp_path)]) == 0
        text = capsys.readouterr().out
        assert text.count("process ") >= 2 * len(dead.children)
        assert text.splitlines()[-1] == f"{len(dead.children)} left over; --yes ends and removes them"
        assert cli.main(["reap", str(tmp_path), "--yes", "--json"]) == 0
        figures = json.loads(capsys.readouterr().out)
        assert {row["pid"] for row in figures["ended"]} == dead.pids
        assert len(figures["found"]) == len(figures["ended"])
    assert voxstill.reap(tmp_path).found == []


def test_memory_of_a_gpu_is_unowned_where_no_running_process_has_it() -> None:
    alive, gone, gigabyte = os.getpid(), 1 << 30, 1 << 30
    assert gpu_memory.unowned_bytes(8 * gigabyte, {alive: 2 * gigabyte, gone: 6 * gigabyte}) == 6 * gigabyte
    assert gpu_memory.unowned_bytes(2 * gigabyte + 1, {alive: 2 * gigabyte}) == 0
    assert gpu_memory.unowned_bytes(8 * gigabyte, {alive: None}) == 0
    assert gpu_memory.unowned_bytes(8 * gigabyte, {}) == 8 * gigabyte


def test_finding_takes_less_than_a_second() -> None:
    start = time.process_time()  # of the processor, as other tests run beside this one
    reap()
    assert time.process_time() - start < 1
