"""Planning, resuming and filtering ten million utterances: seconds and memory of the driver, on tables made for it.

    python benchmarks/scale.py --utterances 10000000

Makes the tables of an index and of finished labels in a temporary folder, then runs `voxstill label` on them: finished;
finished but without `_SUCCESS.json`, as after a crash in the last moment; with the last part missing; and plans them
from nothing. Then runs `voxstill filter`, inline, so that the measuring itself is in the time; filters anew with
another threshold; plans the shards; and makes the jobs of all of them, which is all that the driver does for a shard.
Prints a table and writes `benchmarks/results/scale.json`.

    python benchmarks/scale.py --line --utterances 1000000

takes clips through the whole line, from a bucket into it, while processes are killed (`scale_line.py`), and writes
`benchmarks/results/scale_line.json`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import scale_line
from voxstill import engine
from voxstill.core import config
from voxstill.core.records import Label, Utterance
from voxstill.indexing.recipe import utterances_recipe
from voxstill.labelling import label
from voxstill.labelling.task import Task
from voxstill.storage import tables
from voxstill.storage.store import Store

HERE = Path(__file__).parent
PART = 256
TEXT = "a text of a few words"
WORDS = [
    {"text": word, "start_ms": 700 * i, "end_ms": 700 * i + 500, "prob": 0.9} for i, word in enumerate(TEXT.split())
]
PLAN = """
import resource, sys, time
from voxstill.core.config import Engine
from voxstill.labelling import label
from voxstill.labelling.task import Task
from voxstill.storage.store import Store
start = time.perf_counter()
count = sum(len(chunk.items) for chunk in label.plan(Store(sys.argv[1]), sys.argv[2], "labels/none", Engine()))
print(count, time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""

SHARDS = """
import resource, sys, time
from voxstill.core.config import Engine, Shard
from voxstill.storage import join
from voxstill.sharding import assign
from voxstill.storage.store import Store
root, utterances, labels, verdicts, made = sys.argv[1:]
work, start = Store(root), time.perf_counter()
parts = join.parts(work, utterances, labels, Engine())
kept = assign.survey(work, parts, assign.kept_ids(work, verdicts))
windows = assign.assign(kept, Shard(), 0)
count = len(kept.part_N)
if made == "jobs":
    start = time.perf_counter()
    count = sum(1 for _ in assign.jobs(work, parts, kept, windows, ())) * 2000
print(count, time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def main() -> None:
    """Make the tables, take the times, print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--utterances", type=int, default=10_000_000)
    parser.add_argument("--folder", help="where to make the tables; default: a temporary folder")
    parser.add_argument("--output", help="default: results/scale.json, with --line results/scale_line.json")
    parser.add_argument("--line", action="store_true", help="the whole line, with audio, instead of tables")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=args.folder))
    try:
        figures = (scale_line.measure if args.line else measure)(folder, args.utterances)
    finally:
        shutil.rmtree(folder)
    output = Path(args.output or HERE / f"results/scale{'_line' if args.line else ''}.json")
    output.write_text(json.dumps(figures, indent=1) + "\n")
    if args.line:
        print("\n".join(scale_line.table(figures)))
        return
    print("| case | seconds | peak memory, MB |\n|---|---|---|")
    for name, row in figures["cases"].items():
        print(f"| {name} | {row['seconds']:.1f} | {row['peak_mb']:,.0f} |")


def measure(folder: Path, num: int) -> dict[str, Any]:
    """Seconds and peak memory of each case, each in a process of its own."""
    work = Store(str(folder / "work"))
    settings = folder / "config.yaml"
    settings.write_text("teacher: {name: echo}\nengine: {name: inline, chunk: 256}\n")
    cfg = config.load(str(settings), [f"work={work.root}"], {})
    task = label.task(cfg.teacher, Store(cfg.work))
    utterances = f"utterances/{utterances_recipe(cfg)}"
    with multiprocessing.Pool(2) as pool:
        make = partial(make_part, work, utterances, task)
        starts = range(0, num, PART)
        for _ in pool.imap_unordered(make, [(start, min(start + PART, num)) for start in starts], chunksize=64):
            pass
    work.write_json(
        f"{utterances}/{tables.SUCCESS}",
        {"recipe": utterances.rpartition("/")[2], "utterances": num, "hours": num * 5 / 3600},
    )
    command = [sys.executable, "-m", "voxstill.cli", "label", work.root, "--config", str(settings), "--json"]
    success = folder / "work" / task.prefix / tables.SUCCESS
    cases = {"finished, `_SUCCESS.json` lost": run(command, num), "finished": run(command, num)}
    last = max((folder / "work" / task.prefix).glob("*.parquet"))
    last.unlink()
    cases["one part of labels lost"] = run(command, num, failed=True)
    cases["planned from nothing"] = script(PLAN, num, work.root, utterances)
    assert success.exists()
    command[3] = "filter"
    cases["filter"] = run(command, num, "judged")
    (verdicts,) = (path.parent for path in (folder / "work/verdicts").glob(f"*/{tables.SUCCESS}"))
    cases["filter, other thresholds"] = run([*command, "--set", "filter.keep_share=0.6"], num, "judged")
    prefixes = utterances, task.prefix, f"verdicts/{verdicts.name}"
    cases["shards planned"] = script(SHARDS, num, work.root, *prefixes, "plan")
    cases["jobs of all shards"] = script(SHARDS, num, work.root, *prefixes, "jobs")
    return {"utterances": num, "part": PART, "cases": cases}


def script(code: str, num: int, *arguments: str) -> dict[str, float]:
    """Run a script that prints utterances (nearly all: labels may have failed), seconds and peak memory in MB."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    count, seconds, peak_mb = map(float, done.stdout.split())
    assert num - PART <= count <= num * 1.02
    return {"seconds": seconds, "peak_mb": peak_mb}


def run(command: Sequence[str], num: int, counted: str = "labels", *, failed: bool = False) -> dict[str, float]:
    """Run a command to its end; its figures must count all utterances."""
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert child.stdout is not None
    figures = json.loads(child.stdout.read())
    _, _, usage = os.wait4(child.pid, 0)
    assert figures[counted] == num
    assert failed or not figures.get("failed")
    return {"seconds": time.perf_counter() - start, "peak_mb": usage.ru_maxrss / 1024}


def make_part(work: Store, utterances: str, task: Task, number_range: tuple[int, int]) -> None:
    """One part of utterances and the labels of the same."""
    numbers = range(*number_range)
    ids = [f"{number * 2654435761 % 2**64:016x}" for number in numbers]
    rows: dict[str, list[Any]] = {
        "id": ids,
        "recording_id": ids,
        "uri": [f"/audio/{number // 1000:06}/{number}.flac" for number in numbers],
        "start_ms": [0] * len(ids),
        "end_ms": [5000] * len(ids),
        "split": ["train"] * len(ids),
        "speaker": [f"s{number % 5000}" for number in numbers],
        "text": [TEXT] * len(ids),
    }
    write(work, f"{utterances}/{number_range[0]:010}.parquet", rows, Utterance)
    labels: dict[str, list[Any]] = {
        "utterance_id": ids,
        "recipe": [task.recipe] * len(ids),
        "teacher": [task.name] * len(ids),
        "text": [TEXT] * len(ids),
        "mean_logprob": [-(number % 99_991) / 99_991 for number in numbers],
        "num_tokens": [6] * len(ids),
        "finish": ["stop"] * len(ids),
        "words": [WORDS] * len(ids),
    }
    write(work, f"{task.prefix}/{engine.chunk_id(ids)}.parquet", labels, Label)


def write(work: Store, key: str, columns: dict[str, list[Any]], kind: type[Utterance] | type[Label]) -> None:
    """Write `columns` as a part of a table; all others are without a value."""
    schema = tables.schema(kind)
    num = len(next(iter(columns.values())))
    arrays = [pa.array(columns.get(field.name, [None] * num), field.type) for field in schema]
    work.create(key, tables.arrow_to_parquet(pa.Table.from_arrays(arrays, schema=schema)))


if __name__ == "__main__":
    main()
