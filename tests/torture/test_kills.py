"""Driver, decoders and teachers die at random moments; the labels are those of a run that nobody disturbed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from seeds import seeded_random
from torture import runs

pytestmark = pytest.mark.slow
NUM = 120
ECHO = {"name": "echo", "substitute": 0.1, "delay_ms": 50}
RAY = {"name": "ray", "chunk": 3, "workers": 2, "teachers": 2, "attempts": 1000}
"""So many attempts, because here nobody dies of what it is given: an innocent utterance must not be set aside."""


def victims(driver: int) -> dict[str, list[int]]:
    """The processes of a run that may be killed, by what they are.

    A worker that decodes is told from a teacher by the process it decodes in; one that has none yet may be either.
    """
    parents: dict[str, list[int]] = {"driver": [driver]}
    for pid in runs.descendants(driver):
        name = runs.command_line(pid)
        if name.startswith("ray::WorkerActor"):
            inner = [child for child in runs.descendants(pid) if "audio import decoder" in runs.command_line(child)]
            parents.setdefault("decode worker" if inner else "teacher or new worker", []).append(pid)
            parents.setdefault("decoder", []).extend(inner)
    return {kind: pids for kind, pids in parents.items() if pids}


def test_killing_any_process_loses_and_repeats_nothing(torture: Any, tmp_path: Path) -> None:
    wanted, chance = torture.count(short=3, full=200), seeded_random()
    source = runs.corpus(tmp_path / "audio", NUM)
    calm = tmp_path / "calm"
    config = runs.configure(calm, source, teacher=ECHO, engine={"name": "inline", "chunk": RAY["chunk"]})
    log = tmp_path / "log"
    runs.finish("index", source, "--work", calm / "work", "--config", config, log=log)
    shutil.copytree(calm, tmp_path / "indexed")
    runs.finish("label", calm / "work", "--config", config, log=log)
    expected = runs.kept(calm / "work")
    killed: Counter[str] = Counter()
    rounds, processes = 0, set[tuple[int, str]]()
    while killed.total() < wanted:
        rounds += 1
        folder = tmp_path / f"round{rounds}"
        shutil.copytree(tmp_path / "indexed", folder)
        config = runs.configure(folder, source, teacher=ECHO, engine=RAY)
        command = ("label", folder / "work", "--config", config)
        while killed.total() < wanted:
            process = runs.start(*command, log=log)
            if not strike(process, folder / "work", killed, processes, wanted, chance):
                break
        runs.finish(*command, log=log)
        assert runs.kept(folder / "work") == expected
        ids = [row.utterance_id for row in runs.labels(str(folder / "work"))]
        assert sorted(ids) == [f"u{i:05}" for i in range(NUM)]
        shutil.rmtree(folder)
    torture.tell("SIGKILL", f"{killed.total()} kills in {rounds} corpora of {NUM}: {dict(killed)}")
    assert runs.left_of(processes) == []


def strike(
    process: subprocess.Popen[bytes],
    work: Path,
    killed: Counter[str],
    births: set[tuple[int, str]],
    wanted: int,
    chance: random.Random,
) -> bool:
    """Kill one process after another of a run; whether it was ended by that, and not by having done its work."""
    since, before = time.monotonic(), len(list(work.glob("labels/*/*.parquet")))
    while process.poll() is None:
        time.sleep(chance.uniform(0.05, 1.5))
        processes = victims(process.pid)
        births.update((pid, runs.born(pid)) for pid in runs.descendants(process.pid))
        if set(processes) == {"driver"} and chance.random() < 0.9:
            continue  # Ray is starting: most of the kills are to come later
        kind = chance.choice(sorted(processes))
        late = time.monotonic() - since > 120
        if kind == "driver" and len(list(work.glob("labels/*/*.parquet"))) == before and not late:
            continue  # it must get on, or this has no end
        if killed.total() >= wanted:
            break
        try:
            os.kill(chance.choice(processes[kind]), signal.SIGKILL)
        except ProcessLookupError:
            continue
        killed[kind] += 1
        if kind == "driver":
            process.wait(60)
    code = process.wait(240)
    assert code in (0, -signal.SIGKILL)
    return code != 0
