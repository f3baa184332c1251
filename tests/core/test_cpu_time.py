"""Seconds of computing and of waiting for a core, by the kernel's own count."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from voxstill.core import cgroup, cpu_time
from voxstill.core.cpu_time import CpuClock, CpuTime

counted = pytest.mark.skipif(not cpu_time.is_counted(), reason="this system does not count it")


def burn(seconds: float) -> CpuTime:
    clock = CpuClock()
    with clock.running():
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass
    return clock.total


@counted
def test_a_loop_computes_or_waits_for_a_core_all_of_its_time() -> None:
    spent = burn(0.3)
    assert spent.computing_s + spent.core_wait_s == pytest.approx(0.3, rel=0.2)


@counted
def test_who_sleeps_does_neither() -> None:
    clock = CpuClock()
    with clock.running():
        time.sleep(0.2)
    assert clock.total.computing_s < 0.1


@counted
def test_a_thread_that_shares_its_core_waits_for_it() -> None:
    cores = os.sched_getaffinity(0)
    core = min(cores)
    hog = [sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{core}])\nprint(flush=True)\nwhile 1: pass"]
    others = [subprocess.Popen(hog, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for other in others:
            assert other.stdout is not None
            other.stdout.readline()
        os.sched_setaffinity(0, [core])
        spent = burn(0.6)
    finally:
        os.sched_setaffinity(0, cores)
        for other in others:
            other.kill()
            other.communicate()
    assert spent.core_wait_s > 0.4 * 0.6


def a_process(folder: Path, groups: str, mounts: str) -> Path:
    (folder / "cgroup").write_text(groups)
    (folder / "mountinfo").write_text(mounts)
    return folder


def test_the_tightest_quota_of_nested_groups_counts(tmp_path: Path) -> None:
    inner = tmp_path / "fs/pod/container"
    inner.mkdir(parents=True)
    (inner / "cpu.max").write_text("max 100000\n")
    (inner / "memory.max").write_text("4000\n")
    (inner / "memory.current").write_text("1000\n")
    (inner.parent / "cpu.max").write_text("150000 100000\n")
    (inner.parent / "memory.max").write_text("max\n")
    mounts = f"24 23 0:20 / {tmp_path}/fs rw,nosuid - cgroup2 cgroup2 rw\n"
    process = a_process(tmp_path, "0::/pod/container\n", mounts)
    assert cgroup.cpu_quota(process) == 1.5
    assert cgroup.memory(process) == (4000, 1000)
    assert cgroup.memory_limit(process) == 4000


def test_version_1_counts_in_its_own_way_and_a_container_sees_its_own_folder_alone(tmp_path: Path) -> None:
    for name, value in {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(value)
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/memory.limit_in_bytes").write_text("9223372036854771712")
    mounts = f"30 29 0:25 /docker/ab {tmp_path}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    mounts += f"31 29 0:26 / {tmp_path}/memory rw - cgroup cgroup rw,memory\n"
    process = a_process(tmp_path, "4:cpu,cpuacct:/docker/ab\n5:memory:/docker/ab\n", mounts)
    assert cgroup.cpu_quota(process) == 0.5
    assert cgroup.memory(process) is None


def test_without_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert cgroup.cpu_quota(tmp_path) is None
    assert cgroup.memory(tmp_path) is None
    assert 0 < cgroup.cores() <= len(os.sched_getaffinity(0))
