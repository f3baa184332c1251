"""`label --part K/4` in four processes beside one `label` with four teachers on Ray, in turns.

    python benchmarks/label_parts.py --utterances 4000 --rounds 3

Both label the same table with a teacher that sleeps `--delay-ms` for each utterance, in chunks of `--chunk`; the parts
run with the engine in their own process. Each round labels a fresh copy of the table. Seconds count from the start of
the commands to the end of the last one, Python's and Ray's start included. Labels are checked: one for each utterance.
Prints a table and writes `benchmarks/results/label_parts.json`. Nothing else may run on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from voxstill import index, load_config
from voxstill.audio import codec

PARTS = 4
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def main() -> None:
    """Measure both in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--utterances", type=int, default=4000)
    parser.add_argument("--delay-ms", type=int, default=20)
    parser.add_argument("--chunk", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    seconds: dict[str, list[float]] = {"four parts": [], "one run, four teachers": []}
    with tempfile.TemporaryDirectory() as folder:
        indexed = make_table(Path(folder), args.utterances)
        teacher = ["--set", f"teacher={{name: echo, delay_ms: {args.delay_ms}}}", "--set", f"engine.chunk={args.chunk}"]
        commands = {
            "four parts": [
                ["--part", f"{number}/{PARTS}", "--set", "engine.name=inline"] for number in range(1, PARTS + 1)
            ],
            "one run, four teachers": [
                ["--set", f"engine={{teachers: {PARTS}, workers: 1, teacher_cpus: 0.25, chunk: {args.chunk}}}"]
            ],
        }
        for round_number in range(args.rounds):
            for name in sorted(commands, reverse=bool(round_number % 2)):
                work = Path(folder) / "work"
                shutil.copytree(indexed, work)
                seconds[name].append(
                    measure(work, [[*teacher, *options] for options in commands[name]], args.utterances)
                )
                shutil.rmtree(work)
    speeds = {name: [args.utterances / taken_s for taken_s in times] for name, times in seconds.items()}
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    ratio = statistics.median(map(float.__truediv__, speeds["four parts"], speeds["one run, four teachers"]))
    for name, median in medians.items():
        print(f"{name:<24}{median:8.1f} utterances a second")
    print(f"{'ratio':<24}{ratio:8.2f}")
    report = {"arguments": vars(args), "speeds": speeds, "medians": medians, "ratio": ratio}
    Path(__file__).parent.joinpath("results/label_parts.json").write_text(json.dumps(report, indent=1) + "\n")


def make_table(folder: Path, num: int) -> Path:
    """The work folder of an indexed corpus of short tones with texts."""
    source = folder / "source"
    source.mkdir()
    rows = []
    for number in range(num):
        samples_T = (9000 * np.sin(2 * np.pi * (200 + number) * np.arange(3200) / 16_000)).astype(np.int16)
        (source / f"{number}.wav").write_bytes(codec.encode(samples_T, "wav"))
        rows.append({"audio": f"{number}.wav", "text": str(number), "speaker": str(number)})
    (source / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    work = folder / "indexed"
    index(load_config(None, f"work={work}", f"source.uri={source / 'manifest.jsonl'}", "engine.name=inline"))
    return work


def measure(work: Path, commands: list[list[str]], num: int) -> float:
    """Seconds until all commands have ended; SystemExit where one failed or an utterance has no label."""
    start_s = time.perf_counter()
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "voxstill", "label", str(work), "--json", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | THREADS,
        )
        for options in commands
    ]
    outputs = [process.communicate() for process in processes]
    taken_s = time.perf_counter() - start_s
    if any(process.returncode for process in processes):
        raise SystemExit("\n".join(err for _, err in outputs))
    if not any(figures["finished"] and figures["labels"] == num for figures in (json.loads(out) for out, _ in outputs)):
        raise SystemExit(f"no command has finished the table of {num} labels")
    return taken_s


if __name__ == "__main__":
    main()
