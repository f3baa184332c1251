"""Parts of index, label, filter and shard are killed and started again: nothing is lost, nothing is there twice."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

import forked
from seeds import seeded_random
from table_rows import rows_of_work
from torture import runs

pytestmark = pytest.mark.slow
NUM = 24 if runs.SHARE is None else 96
PARTS = 4
KILLS = {"index": 3, "label": 10, "filter": 3, "shard": 3}
"""Of a step of one corpus, at most."""
STEPS = ("index", "label", "filter", "shard")
SETTINGS = {
    "teacher": {"name": "echo", "substitute": 0.1, "delay_ms": 5},
    "engine": {"name": "inline", "chunk": 1},
    "shard": {"utterances": 2},
}


def test_parts_that_are_killed_make_what_one_undisturbed_run_makes(torture: Any, tmp_path: Path) -> None:
    wanted, chance = torture.count(short=3, full=95), seeded_random()
    source = runs.corpus(tmp_path / "audio", NUM)
    log = tmp_path / "log"

    def starter(folder: Path, step: str) -> Callable[[str | None], ForkServerProcess]:
        config = str(runs.configure(folder, source, **SETTINGS))
        work = str(folder / "work")
        command = (step, str(source), "--work", work) if step == "index" else (step, work)

        def start(part: str | None) -> ForkServerProcess:
            parted = () if part is None else ("--part", part)
            return forked.start(forked.command, (*command, "--config", config, *parted), log=log)

        return start

    written: dict[str, int] = {}
    for step in STEPS:
        before = num_files(tmp_path / "calm/work")
        process = starter(tmp_path / "calm", step)(None)
        process.join()
        assert process.exitcode == 0, log.read_text()[-3000:]
        written[step] = num_files(tmp_path / "calm/work") - before
    expected = rows_of_work(tmp_path / "calm/work")
    killed: Counter[str] = Counter()
    corpora = extra = lost = 0
    while killed.total() < wanted:
        corpora += 1
        folder = tmp_path / f"round{corpora}"
        for step in STEPS:
            most = min(KILLS[step], -(-wanted // len(STEPS)), wanted - killed.total())
            due = [chance.randrange(written[step]) for _ in range(most)]
            killed[step] += disturbed(starter(folder, step), folder / "work", due, chance, log)
        rows = rows_of_work(folder / "work")
        extra += sum((rows[name] - expected[name]).total() for name in expected)
        lost += sum((expected[name] - rows[name]).total() for name in expected)
        assert rows == expected
    counts = ", ".join(f"{num} of {step}" for step, num in killed.items())
    torture.tell(
        "SIGKILL of parts",
        f"{killed.total()} kills ({counts}) in {corpora} corpora of {NUM}: {extra} rows doubled, {lost} lost",
    )


def disturbed(
    start: Callable[[str | None], ForkServerProcess], work: Path, due: list[int], chance: random.Random, log: Path
) -> int:
    """All parts at once until each has ended well; returns how many were killed, and started again, meanwhile.

    One is killed, whichever, as soon as the step has written so many files as one of `due` says.
    """
    running = {number: start(f"{number}/{PARTS}") for number in range(1, PARTS + 1)}
    before, waiting, deadline = num_files(work), sorted(due), time.monotonic() + 240
    while running:
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(chance.uniform(0.005, 0.05))
        number = chance.choice(list(running))
        if waiting and num_files(work) - before >= waiting[0] and running[number].is_alive():
            running[number].kill()
            running[number].join()
            if running[number].exitcode == -signal.SIGKILL:
                waiting.pop(0)
        for number, process in list(running.items()):
            if process.exitcode is None:
                continue
            assert process.exitcode in (0, -signal.SIGKILL), log.read_text()[-3000:]
            del running[number]
            if process.exitcode:
                running[number] = start(f"{number}/{PARTS}")
    return len(due) - len(waiting)


def num_files(work: Path) -> int:
    """Parts of tables and shards that are there."""
    return sum(path.suffix in {".parquet", ".tar"} for path in work.rglob("*"))
