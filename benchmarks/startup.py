"""How soon a command answers: `--help`, `transcribe` of one short file, and `label` with nothing to do.

    python benchmarks/startup.py --utterances 1000000 --rounds 7

Makes a student of random weights and a recording of two seconds, and the tables of an index and of finished labels, all
in a temporary folder. With `--experiment` its student transcribes, and so does its last checkpoint, for which a model
folder is made first; `--audio` is the recording. Each command is a new Python process
with its files in the disk cache; they run in turns. Seconds count to the first line of the output and to the end of the
process, CPU seconds are those of the process to that line and, with its children, to its end. `--before` names the
`src` of another version, which is measured in the same turns. Prints a table of medians and writes
`benchmarks/results/startup.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import scale
import transcribe
from voxstill.core import config
from voxstill.indexing.recipe import utterances_recipe
from voxstill.labelling import label
from voxstill.storage import workdir
from voxstill.storage.figures import IndexFigures
from voxstill.storage.store import Store

HERE = Path(__file__).parent
RECORDING_MINUTES = 1 / 30
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Run:
    """Seconds of one process."""

    first_line_s: float
    first_line_cpu_s: float
    end_s: float
    end_cpu_s: float


def main() -> None:
    """Make what is needed, measure in turns, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--utterances", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--experiment", help="a finished training")
    parser.add_argument("--audio", help="a recording")
    parser.add_argument("--before", help="the folder `src` of another version")
    parser.add_argument("--output", default=str(HERE / "results/startup.json"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = {"": args.experiment or str(folder / "model")}
        if args.experiment is None:
            transcribe.make_student(folder / "model")
        else:
            models[" from a checkpoint"] = f"{args.experiment}/checkpoints/last"
        audio = args.audio or str(folder / "speech.flac")
        if args.audio is None:
            transcribe.write_recording(folder / "speech.flac", RECORDING_MINUTES)
        commands = {
            "`--help`": ["--help"],
            **{f"`transcribe` of one file{kind}": ["transcribe", model, audio] for kind, model in models.items()},
            **label_commands(folder, args.utterances),
        }
        sources = {"after": str(HERE.parent / "src"), **({} if args.before is None else {"before": args.before})}
        measured = measure(commands, sources, args.rounds)
    figures = {
        "utterances": args.utterances,
        "rounds": args.rounds,
        "load_average": os.getloadavg(),
        "medians": {version: {name: median(runs) for name, runs in rows.items()} for version, rows in measured.items()},
        "runs": {
            version: {name: [asdict(run) for run in runs] for name, runs in rows.items()}
            for version, rows in measured.items()
        },
    }
    Path(args.output).write_text(json.dumps(figures, indent=1) + "\n")
    print("| command | version | s to the first line | CPU s | s to the end | CPU s |\n|---|---|---|---|---|---|")
    for name in commands:
        for version, rows in measured.items():
            seconds = " | ".join(f"{value:.2f}" for value in median(rows[name]).values())
            print(f"| {name} | {version} | {seconds} |")


def label_commands(folder: Path, num: int) -> dict[str, list[str]]:
    """Label a table of utterances; the commands that find nothing to do, with either engine."""
    settings = folder / "config.yaml"
    settings.write_text("teacher: echo\n")
    work = Store(str(folder / "work"))
    cfg = config.load(str(settings), [f"work={work.root}"], {})
    task, utterances = label.task(cfg.teacher, work), f"utterances/{utterances_recipe(cfg)}"
    for start in range(0, num, scale.PART):
        scale.make_part(work, utterances, task, (start, min(start + scale.PART, num)))
    recipe = utterances.rpartition("/")[2]
    workdir.finish(work, IndexFigures(recipe=recipe, utterances=num, hours=num * 5 / 3600))
    command = ["label", work.root, "--config", str(settings), "--json"]
    subprocess.run([sys.executable, "-m", "voxstill", *command], check=True, capture_output=True)  # finishes the table
    return {
        f"`label` with nothing to do, {engine}": [*command, "--set", f"engine.name={engine}"]
        for engine in ("ray", "inline")
    }


def measure(
    commands: Mapping[str, Sequence[str]], sources: Mapping[str, str], rounds: int
) -> dict[str, dict[str, list[Run]]]:
    """The runs of each command in each version, in turns; the first round fills the caches and is not counted."""
    runs: dict[str, dict[str, list[Run]]] = {version: {name: [] for name in commands} for version in sources}
    for round_number in range(rounds + 1):
        for name, arguments in commands.items():
            for version in sorted(sources, reverse=bool(round_number % 2)):
                seconds = run(arguments, sources[version])
                if round_number:
                    runs[version][name].append(seconds)
    return runs


def run(arguments: Sequence[str], source: str) -> Run:
    """Run a command of the version in the folder `source`; SystemExit where it fails."""
    # compiled files are kept, as where voxstill is installed
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "voxstill", *arguments]
    before_s, start_s = children_cpu_s(), time.perf_counter()
    process = subprocess.Popen(
        command, env=environment | {"PYTHONPATH": source}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    process.stdout.readline()
    first_line_s, first_line_cpu_s = time.perf_counter() - start_s, cpu_s(process.pid)
    process.stdout.read()
    if process.wait():
        raise SystemExit(f"`{' '.join(command)}` failed")
    return Run(first_line_s, first_line_cpu_s, time.perf_counter() - start_s, children_cpu_s() - before_s)


def cpu_s(pid: int) -> float:
    """CPU seconds of a process that runs, or has ended and is not waited for yet."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


def children_cpu_s() -> float:
    """CPU seconds of all children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def median(runs: Sequence[Run]) -> dict[str, float]:
    """The median of each of the seconds."""
    rows = [asdict(row) for row in runs]
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


if __name__ == "__main__":
    main()
