"""Runs of every way to launch are killed at random moments: `reap` leaves nothing of them and touches nobody else.

A third of the processes is stopped before, so that it does not end by itself when it is left alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from checkpoints import write_whisper_checkpoint
from families import family
from forked import free_port
from seeds import seeded_random
from tones import TEXTS, write_shards
from torture import runs
from torture.test_nodes import access, cluster
from torture.test_training import SETTINGS
from voxstill.core import run_mark, scratch
from voxstill.core.process import Process
from voxstill.pipeline.reap import ReapResult, reap
from voxstill.storage import tables
from voxstill.storage.store import Store

pytestmark = pytest.mark.slow
NUM = 120
ECHO = {"name": "echo", "substitute": 0.1, "delay_ms": 60}
VLLM = {
    "name": "vllm",
    "dtype": "float32",
    "enforce_eager": True,
    "gpu_memory_utilization": 0.1,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 4096,
}
RAY = {"name": "ray", "chunk": 3, "workers": 2, "teachers": 2}
WITHIN_S = 240
DYING_S = 20.0
"""The kernel takes a while to free the memory of a killed process, and Ray to end a worker that it was starting."""
MARK = "VOXSTILL_TORTURE"
"""What every process of a run inherits but those in a cluster of others: how the test finds them by itself."""


@dataclass(frozen=True)
class Way:
    """A way to launch a run: how often it is killed, and the arguments that start it in a folder."""

    short: int
    full: int
    command: Callable[[Path], list[object]]
    progress: str
    """The files that tell how far it is: its lines or their number."""


def label(engine: dict[str, object], teacher: dict[str, object] = ECHO) -> Callable[[Path], list[object]]:
    def command(folder: Path) -> list[object]:
        of_folder = teacher | ({"model": str(folder.parent / "whisper")} if teacher["name"] == "vllm" else {})
        config = runs.configure(folder, folder.parent / "audio" / "manifest.jsonl", teacher=of_folder, engine=engine)
        return ["-m", "voxstill.cli", "label", folder / "work", "--config", config]

    return command


def train(*launcher: object, devices: int | None) -> Callable[[Path], list[object]]:
    def command(folder: Path) -> list[object]:
        config = folder / "train.yaml"
        config.write_text(SETTINGS.format(work=folder / "work", root=folder / "exp", steps=5000))
        more = [] if devices is None else ["--set", f"train.devices={devices}"]
        port = ["--master-port", free_port()] if launcher else []
        return [*launcher[:2], *port, *launcher[2:], "-m", "voxstill.cli", "train", config, *more]

    return command


TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", 2)
WAYS = {
    "inline": Way(1, 30, label({"name": "inline", "chunk": 3}), "work/labels/*/*.parquet"),
    "own Ray": Way(1, 30, label(RAY), "work/labels/*/*.parquet"),
    "joined Ray": Way(1, 15, label(RAY), "work/labels/*/*.parquet"),
    "ranks": Way(1, 12, train(devices=2), "exp/*/metrics.jsonl"),
    "torchrun": Way(1, 13, train(*TORCHRUN, devices=None), "exp/*/metrics.jsonl"),
    "vLLM": Way(1, 10, label({"name": "inline", "chunk": 3}, VLLM), "work/labels/*/*.parquet"),
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus that is indexed, and shards to train on."""
    folder: Path = tmp_path_factory.mktemp("prepared")
    source = runs.corpus(folder / "audio", NUM)
    indexed = folder / "indexed"
    config = runs.configure(indexed, source, teacher=ECHO, engine={"name": "inline"})
    runs.finish("index", source, "--work", indexed / "work", "--config", config, log=folder / "log")
    store = Store(str(folder / "sharded" / "work"))
    for kind in ("utterances", "labels", "verdicts"):
        store.write_json(f"{kind}/r/{tables.SUCCESS}", {"recipe": "r", "sha256": ""})
    write_shards(store, "shards/r", {"train": 24, "dev": 4})
    return folder


@pytest.fixture(scope="module")
def nodes() -> Iterator[dict[str, Any]]:
    """A cluster of others: joined by some runs, and touched by none."""
    token = secrets.token_hex(32)
    with contextlib.ExitStack() as stack:
        about: dict[str, Any] = {}
        for _ in range(3):
            with contextlib.suppress(json.JSONDecodeError):  # Ray waits for a busy machine for half a minute only
                about = about or stack.enter_context(cluster(token))
        yield about | {"access": access(token)}


def write_whisper(folder: Path) -> None:
    """A small Whisper that has learnt nothing; the test is skipped where vLLM is not installed."""
    pytest.importorskip("vllm")
    import transformers

    write_whisper_checkpoint(folder, TEXTS)
    shape = transformers.WhisperConfig.from_pretrained(
        folder, d_model=64, encoder_attention_heads=2, decoder_attention_heads=2
    )  # vLLM has no attention narrower than 32
    transformers.WhisperForConditionalGeneration(shape).save_pretrained(folder)
    transformers.WhisperFeatureExtractor().save_pretrained(folder)


def processes_with(text: str) -> list[Process]:
    """The processes of which the environment has this text."""
    own, pids = os.getpid(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if text.encode() in path.read_bytes() and int(path.parent.name) != own:
                pids.append(Process.of(int(path.parent.name)))
    return [process for process in pids if not process.has_ended]


def progress(folder: Path, pattern: str) -> int:
    files = list(folder.glob(pattern))
    return files[0].read_bytes().count(b"\n") if files and files[0].suffix == ".jsonl" else len(files)


def kill(process: subprocess.Popen[bytes], tree: list[Process], chance: random.Random) -> str:
    """Stop a third of the processes, and kill one: that which was started, half of the time, or any other."""
    for member in tree:
        if chance.random() < 0.3 and not member.has_ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member.pid, signal.SIGSTOP)
    victim = chance.choice(tree) if tree and chance.random() < 0.5 else Process.of(process.pid)
    name = "the owner" if victim.pid == process.pid else "a descendant"
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim.pid, signal.SIGKILL)
    return name


@pytest.mark.parametrize("name", WAYS)
def test_nothing_is_left_of_a_killed_run_and_nobody_else_is_touched(
    name: str, torture: Any, prepared: Path, nodes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("voxstill.pipeline.reap.GRACE_S", 3.0)
    way, chance = WAYS[name], seeded_random()
    others = [Process.of(pid) for pid in nodes["pids"].values()]
    counts: Counter[str] = Counter()
    (tmp_path / "audio").symlink_to(prepared / "audio")
    if name == "vLLM":
        write_whisper(tmp_path / "whisper")
    while counts["kills"] < torture.count(short=way.short, full=way.full):
        folder = tmp_path / f"run{counts['runs']}"
        counts["runs"] += 1
        shutil.copytree(prepared / ("sharded" if "exp" in way.progress else "indexed"), folder)
        with family() as program, family(tmp_path / "another") as living:
            counts += killed(name, folder, nodes, chance)
            assert program.is_untouched
            assert living.is_untouched
            assert not any(other.has_ended for other in others)
        shutil.rmtree(folder)
    outcome = ", ".join(f"{num} {what}" for what, num in counts.items() if what not in ("kills", "runs"))
    torture.tell(f"left over, {name}", f"{counts['kills']} kills, 0 of ours left, 0 of others touched: {outcome}")


def killed(name: str, folder: Path, nodes: dict[str, Any], chance: random.Random) -> Counter[str]:
    """Start a run, kill one of its processes and then its owner, and reap; what there was to end."""
    way, mark, log = WAYS[name], f"{MARK}={folder}.", folder / "log"
    environment = {key: text for key, text in os.environ.items() if not key.startswith("RAY_") or key == "RAY_TMPDIR"}
    command = way.command(folder)
    if name == "joined Ray":
        environment |= nodes["access"]
        command += ["--set", f"engine.address={nodes['address']}"]
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, *map(str, command)],
            env=environment | {MARK: f"{folder}."},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    target, deadline = chance.randint(0, 5), time.monotonic() + WITHIN_S
    while progress(folder, way.progress) < target:
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.02)
    time.sleep(chance.uniform(0, 1.0 if target else 8.0))  # before its first result it starts its processes
    tree = {member for member in (*processes_with(mark), *ours_in_cluster(folder, nodes)) if member.pid != process.pid}
    if process.poll() is not None:
        assert reap(str(folder / "work"), end=True).exit_code == 0
        return Counter()
    victim = kill(process, sorted(tree, key=lambda member: member.pid), chance)
    counts = Counter({"kills": 1, f"of {victim}": 1, "processes": len(tree) + 1})
    if victim != "the owner":
        reap(str(folder / "work"), end=True)
        process.kill()
    process.wait()
    tree.update(processes_with(mark))
    counts["left over"] = sum(not member.has_ended for member in tree)
    result = reap(str(folder / "work"), end=True)
    counts["ended by reap"] = sum(row.kind == "process" for row in result.ended)
    counts["folders removed"] = sum(row.kind == "folder" for row in result.ended)
    check_nothing_left(folder, result, tree, nodes)
    return counts


def ours_in_cluster(folder: Path, nodes: dict[str, Any]) -> list[Process]:
    """The workers of a run in the cluster of others, and what they have started."""
    raylets = [pid for kind, pid in nodes["pids"].items() if kind.startswith("raylet")]
    pids = [pid for raylet in raylets for pid in runs.descendants(raylet)]
    with_mark = {member.pid for member in processes_with(f'"{folder}/work"')}
    return [Process.of(pid) for pid in pids if pid in with_mark or "WorkerActor" in runs.command_line(pid)]


def check_nothing_left(folder: Path, result: ReapResult, tree: set[Process], nodes: dict[str, Any]) -> None:
    deadline = time.monotonic() + DYING_S
    while (left := [member for member in tree if not member.has_ended]) and time.monotonic() < deadline:
        time.sleep(0.02)
    about = [f"{member} {runs.command_line(member.pid)} {run_mark.of_process(member.pid)}" for member in left]
    assert about == [], result.to_text()
    assert processes_with(f"{MARK}={folder}.") == []
    while ours_in_cluster(folder, nodes) and time.monotonic() < deadline:  # a worker that Ray had begun to start
        time.sleep(0.02)
    assert ours_in_cluster(folder, nodes) == []
    while (again := reap(str(folder / "work"))).found and time.monotonic() < deadline:
        time.sleep(0.1)
    assert again.found == [], again.to_text()
    assert not [row for row in scratch.scratch_folders() if str(folder / "work") in row.mark.folders]
