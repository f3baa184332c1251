"""What the benchmarks beside other toolkits count and compute: lines, memory, medians, and who is left out."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

import loose_files


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(loose_files.ROOT / "benchmarks/train"))
    monkeypatch.syspath_prepend(str(loose_files.ROOT / "benchmarks"))
    return loose_files.load("benchmarks/train/peers.py")


@pytest.fixture
def transcribe_peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(loose_files.ROOT / "benchmarks"))
    return loose_files.load("benchmarks/transcribe_peers.py")


@pytest.fixture
def teachers() -> ModuleType:
    return loose_files.load("benchmarks/teachers.py")


def test_a_training_is_measured_until_a_step_was_made_and_the_end_of_an_epoch_is_no_step(peers: ModuleType) -> None:
    window = importlib.import_module("window")  # beside `peers`
    measured = window.Window(argparse.Namespace(seconds=0.01, warmup=0.0, profile=False))
    measured.before_batches()  # the epoch has no further batch, and the next one takes its time to begin
    end_s = time.process_time() + 0.1
    while time.process_time() < end_s:
        pass
    measured.before_batches()
    measured.after_batch(3.0, 4.0, 0.0)
    with pytest.raises(window.OverError):
        measured.before_batches()
    figures = measured.figures()
    assert (figures["steps"], figures["padding"]) == (1, 0.25)
    assert figures["step_s"] >= 0.1


def test_a_file_that_two_processes_have_mapped_counts_once_in_the_memory_of_both(teachers: ModuleType) -> None:
    command = [sys.executable, "-c", "import numpy; print(flush=True); input()"]
    with contextlib.ExitStack() as stack:
        pids = []
        for _ in range(2):
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            stack.callback(process.communicate, b"\n")
            assert process.stdout is not None
            process.stdout.readline()
            pids.append(process.pid)
        alone, together = teachers.memory_mb(pids[:1]), teachers.memory_mb(pids)
        smaps = Path(f"/proc/{pids[0]}/smaps").read_text()
    files_mb = sum(teachers.resident_files(smaps).values()) / 1024
    assert files_mb > 5
    assert together == pytest.approx(2 * alone - files_mb, abs=3)


def test_lines_of_a_recipe_are_those_that_do_something(
    peers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recipes").mkdir()
    monkeypatch.setattr(peers, "HERE", tmp_path)
    (tmp_path / "recipes/a.yaml").write_text("# What it is.\na: 1\n\nb:\n  c: 2  # two\n")
    (tmp_path / "recipes/a.py").write_text(
        '"""Two\n\nlines."""\n\nx = 1\n\n\ndef f():\n    """One."""\n    # why\n    return x\n'
    )
    assert peers.lines("a.yaml") == 3
    assert peers.lines("a.py") == 3


def test_a_toolkit_that_is_not_installed_is_left_out(peers: ModuleType) -> None:
    assert peers.has(sys.executable, "torch")
    assert not peers.has(sys.executable, "no-such-toolkit")
    assert not peers.has("/no/such/python", "torch")


def test_every_recipe_that_is_counted_is_there(peers: ModuleType) -> None:
    assert set(peers.TOOLKITS.values()) == set(peers.FILES)
    assert all(peers.lines(name) > 0 for files in peers.FILES.values() for name in files)


def test_the_voxstill_recipe_is_a_configuration(peers: ModuleType) -> None:
    from voxstill.core import config

    cfg = config.load(str(peers.HERE / "recipes/voxstill_ctc.yaml"), [], {})
    assert (cfg.train.optimizer, cfg.train.lr, cfg.plan.budget_ms) == ("adamw", 0.001, 1000 * peers.BUDGET_S)


def test_ratios_are_medians_of_those_within_a_round(peers: ModuleType) -> None:
    def row(speed: float) -> dict[str, float]:
        others = ("audio_s_per_cpu_s", "step_s", "batch_s", "padding", "data_wait", "memory_mb", "parameters")
        return {"audio_s_per_s": speed, **dict.fromkeys(others, 1)}

    rounds = {"voxstill": [row(100), row(200), row(400)], "ESPnet": [row(50), row(50), row(400)]}
    table = peers.table({"lines": {"voxstill": 20, "espnet": 50}, "rounds": {"tiny": rounds}})
    ours, theirs = table.splitlines()[2:]
    assert ours.startswith("| tiny | voxstill | 1 | 20 | 200 | 1.00 |")
    assert theirs.startswith("| tiny | ESPnet | 1 | 50 | 50 | 0.50 |")


def test_memory_is_that_of_a_process_and_of_those_it_started() -> None:
    tree_memory = loose_files.load("benchmarks/tree_memory.py")
    child = "import time; held = bytearray(80_000_000); held[::4096] = bytes(len(held[::4096])); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent]) as process:
        memory = tree_memory.TreeMemory(process.pid, every_s=0.05)
        memory.start()
        deadline = time.monotonic() + 60
        while memory.most_mb < 80 and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in reversed(tree_memory.tree(process.pid)):
            subprocess.run(["kill", str(pid)], check=False)
        assert 80 < memory.stop() < 200


def test_speed_is_without_the_start_up_of_the_same_round(transcribe_peers: ModuleType) -> None:
    one = [{"end_s": 2.0}, {"end_s": 4.0}, {"end_s": 3.0}]
    many = [{"end_s": 12.0}, {"end_s": 9.0}, {"end_s": 7.0}]
    assert transcribe_peers.median_speed(one, many, "end_s", 100.0) == 20.0  # 10, 20 and 25


def test_a_recogniser_that_is_not_installed_is_left_out(
    transcribe_peers: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    transcribe_peers.PACKAGES["sherpa-onnx"] = "no-such-package"
    assert not transcribe_peers.is_installed("sherpa-onnx")
    assert capsys.readouterr().out == "sherpa-onnx is left out: pip install no-such-package\n"
    assert transcribe_peers.is_installed("voxstill")
