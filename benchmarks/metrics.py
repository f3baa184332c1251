"""What metrics cost: a scrape with the files of 64 ranks, and a training that is scraped.

    python benchmarks/metrics.py

A scrape is one GET of `/metrics` from another thread, with the files of 64 ranks and a step of two stages.

The cost for a training is measured twice. First in parts: what a rank does in each step and each second for its file,
what the launcher does each second to read it, and a scrape. All of it, at a scrape a second, is taken for time that the
training loses. Then a real training, whose batches are all of one length, is scraped once a second in every other
window of `--window` seconds: the medians of the time of a step with and without are compared, pair by pair. Prints a
table and writes `benchmarks/results/metrics.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from voxstill import cli
from voxstill.core import world
from voxstill.core.config import Monitor
from voxstill.core.metrics.endpoint import Endpoint
from voxstill.core.metrics.figures import StageFigures, Summary
from voxstill.core.metrics.process import METRICS
from voxstill.core.metrics.registry import Metrics
from voxstill.core.metrics.steps import StepMeter
from voxstill.storage.rundir import RunDir
from voxstill.training.meter import Meter
from voxstill.training.metrics import TrainingMetrics
from voxstill.training.state import State
from voxstill.training.watchdog import RankState, Watchdog, read_states

RANKS, SCRAPES = 64, 300
WARMUP_S = 20.0


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=240.0, help="of the training")
    parser.add_argument("--window", type=float, default=4.0, help="seconds with and without scrapes, in turn")
    parser.add_argument("--output", default=str(Path(__file__).parent / "results/metrics.json"))
    args = parser.parse_args()
    world.pin_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        result: dict[str, Any] = dict(of_scrapes(RunDir(Path(folder) / "64_ranks")))
        result["parts"] = of_parts(RunDir(Path(folder) / "1_rank"))
        result["training"] = of_training(Path(folder), args.seconds, args.window)
    print(json.dumps(result, indent=1))
    Path(args.output).write_text(json.dumps(result, indent=1) + "\n")


def of_scrapes(run: RunDir) -> dict[str, float]:
    """Milliseconds of a scrape with the files of 64 ranks."""
    run.ranks.mkdir(parents=True)
    for rank in range(RANKS):
        state = RankState(pid=os.getpid(), born="1", host="here", step=1000, at=time.time(), loss=0.5, lr=1e-3)
        (run.ranks / f"{rank}.json").write_text(json.dumps(asdict(state)))
    stages = [StageFigures(name=name, num_workers=8, work_s=1) for name in ("decode", "teach")]
    with StepMeter("label", 1000, "utterances") as meter, TrainingMetrics(run) as metrics:
        meter.follow(lambda: Summary(num_items=500, stages=stages))
        while len(metrics._states) < RANKS:
            time.sleep(0.1)
        endpoint = Endpoint(Monitor(port=0), METRICS)
        page = get(endpoint.port)
        assert page.count(b"voxstill_train_steps_total{") == RANKS
        times_ms = [timed_ms(lambda: get(endpoint.port)) for _ in range(SCRAPES)]
        endpoint.close()
    reads_ms = [timed_ms(lambda: read_states(run)) for _ in range(SCRAPES)]
    return {
        "ranks": RANKS,
        "page_bytes": len(page),
        "scrape_ms_median": statistics.median(times_ms),
        "scrape_ms_p99": sorted(times_ms)[int(0.99 * SCRAPES)],
        "read_files_ms_median": statistics.median(reads_ms),
    }


def of_parts(run: RunDir) -> dict[str, float]:
    """Milliseconds of each part of what one rank and its launcher do."""
    run.path.mkdir(parents=True)
    state = State(step=1000, loss=0.5)
    meter = Meter(run, False, state, 1)
    with Watchdog(run, 0, 600.0) as dog, TrainingMetrics(run) as metrics:

        def note() -> None:
            dog.note(**meter.of_rank(state, 0.5, 1.0, 1e-3, 0.5))

        endpoint = Endpoint(Monitor(port=0), Metrics({"training": metrics}))
        note_ms = statistics.median(timed_ms(note) for _ in range(2000))
        write_ms = statistics.median(timed_ms(dog._write) for _ in range(SCRAPES))
        read_ms = statistics.median(timed_ms(lambda: read_states(run)) for _ in range(SCRAPES))
        scrape_ms = statistics.median(timed_ms(lambda: get(endpoint.port)) for _ in range(SCRAPES))
        endpoint.close()
    return {
        "note_each_step_ms": note_ms,
        "write_each_second_ms": write_ms,
        "read_each_second_ms": read_ms,
        "scrape_ms": scrape_ms,
        "share_lost_at_10_steps_per_s_scraped_each_15_s": (10 * note_ms + write_ms + read_ms + scrape_ms / 15) / 1000,
        "share_lost_at_10_steps_per_s_scraped_each_second": (10 * note_ms + write_ms + read_ms + scrape_ms) / 1000,
    }


def of_training(folder: Path, seconds: float, window_s: float) -> dict[str, Any]:
    """The time of a step in windows with scrapes and in those without."""
    config = corpus(folder, seconds)
    command = [sys.executable, "-m", "voxstill.cli", "train", str(config)]
    log = folder / "train.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            events = list(scraped_in_windows(process, folder, window_s))
        finally:
            process.terminate()
            process.wait()
    assert process.returncode == 0, log.read_text()
    (path,) = (folder / "exp").glob("*/metrics.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    ends = [row["seconds"] for row in rows if row.get("split") is None]
    zero = events[0][0]  # when a step had ended, by both clocks
    offset_s = zero - next(row["seconds"] for row in rows if row["step"] == events[0][2])
    steps = [(end + offset_s, end - begin) for begin, end in itertools.pairwise(ends)]
    windows = [
        (is_scraped, statistics.median(durations))
        for (begin, is_scraped, _), (end, _, _) in itertools.pairwise(events[1:])
        if len(durations := [took for at, took in steps if begin + 0.2 < at < end]) > 10
    ]
    pairs = [
        after[1] / before[1] - 1 if after[0] else before[1] / after[1] - 1
        for before, after in itertools.pairwise(windows)
        if before[0] != after[0]
    ]
    low, high = interval(pairs)
    return {
        "steps": len(steps),
        "step_ms_median": 1000 * statistics.median(took for _, took in steps),
        "pairs": len(pairs),
        "slower_share_median": statistics.median(pairs),
        "slower_share_95_percent": [low, high],
    }


def scraped_in_windows(
    process: subprocess.Popen[bytes], folder: Path, window_s: float
) -> Iterator[tuple[float, bool, int]]:
    """Scrape the training in every other window; yields when each begins, whether it is scraped, and a step."""
    targets = folder / "targets"
    while not list(targets.glob("*.json")) or not list((folder / "exp").glob("*/metrics.jsonl")):
        assert process.poll() is None
        time.sleep(0.1)
    (target,) = json.loads(next(targets.glob("*.json")).read_text())
    port = int(target["targets"][0].rpartition(":")[2])
    (path,) = (folder / "exp").glob("*/metrics.jsonl")
    while path.read_text().count("\n") < 20:
        time.sleep(0.1)
    num_rows = path.read_text().count("\n")
    while (text := path.read_text()).count("\n") == num_rows:
        time.sleep(0.001)
    yield time.time(), False, json.loads(text.splitlines()[-1])["step"]
    time.sleep(WARMUP_S)
    is_scraped = False
    while process.poll() is None:
        yield time.time(), is_scraped, 0
        ends = time.time() + window_s
        while time.time() < ends and process.poll() is None:
            if is_scraped:
                with contextlib.suppress(OSError):
                    get(port)
            time.sleep(min(1.0, max(0.0, ends - time.time())))
        is_scraped = not is_scraped
    yield time.time(), is_scraped, 0


def corpus(folder: Path, seconds: float) -> Path:
    """Shards of noise, all clips of one length; returns the path of a configuration."""
    chance, words = random.Random(0), ["on", "off", "up", "down"]
    generator = np.random.default_rng(0)
    rows = []
    for number in range(240):
        path = folder / f"audio/{number}.wav"
        path.parent.mkdir(exist_ok=True)
        soundfile.write(path, generator.normal(0, 0.1, 3 * 16_000).astype(np.float32), 16_000)
        split = "train" if number < 230 else "dev"
        rows.append({"audio": str(path), "text": " ".join(chance.choices(words, k=3)), "split": split})
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree = {
        "work": str(folder / "work"),
        "source": {"uri": str(folder / "manifest.jsonl")},
        "engine": {"name": "inline"},
        "teacher": {"name": "echo"},
        "monitor": {"port": 0, "discovery": str(folder / "targets"), "log_level": "warning"},
        "plan": {"budget_ms": 12_000},
        "augment": {"tempo": 0.0},
        "train": {
            "max_minutes": (seconds + WARMUP_S) / 60,
            "loader_workers": 0,
            "log_every": 1,
            "checkpoint_every": 1_000_000,
            "validate_every": 1_000_000,
            "root": str(folder / "exp"),
        },
    }
    config = folder / "config.yaml"
    config.write_text(json.dumps(tree))
    work = str(folder / "work")
    for step in (["index", "--work", work], ["label", work], ["filter", work], ["shard", work]):
        with contextlib.redirect_stdout(io.StringIO()):
            code = cli.main([*step, "--config", str(config), "--set", "monitor.port=null"])
        assert code == 0, step
    return config


def interval(values: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """The bootstrap interval of a median."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(draws))
    return medians[math.floor(0.025 * draws)], medians[math.floor(0.975 * draws)]


def get(port: int) -> bytes:
    """One scrape."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        data: bytes = answer.read()
    return data


def timed_ms(action: Callable[[], object]) -> float:
    """Milliseconds of a call."""
    start = time.perf_counter()
    action()
    return 1000 * (time.perf_counter() - start)


if __name__ == "__main__":
    main()
