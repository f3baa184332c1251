"""The whole line at scale, out of a bucket and into it, while its processes are killed: `scale.py --line`.

Half of the clips lie in tars of a bucket, half are files of it with a manifest; each half has a work folder in the same
bucket. Both are indexed, labelled (teacher `echo`), filtered and sharded in two parts at once, which take leases; then
one student trains on both, and both are verified. In every step but the last, which only reads, processes are
killed twice at random moments, each with all that it has started, and the same command is started again.

Counted are the requests and the bytes of the bucket by step, the objects of each table, and the memory and the time
of every process, ten times a second. At the end every clip must be in every table once, with its own text.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import scale_corpus
from scale_corpus import HALVES
from voxstill.core.records import Label, Utterance, Verdict
from voxstill.storage import shard_format, tables
from voxstill.storage.store import Store

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from disk_bucket import Bucket, disk_bucket
from servers import s3_environment

STEPS = ("index", "label", "filter", "shard", "train", "verify")
PARTS = 2
CHUNK, SHARD, VERDICTS = 256, 2000, 65_536
_SAMPLE_S = 0.1
_FEWEST_SAMPLES = 100
"""A process that was seen less often says nothing about growth."""


@dataclass
class Process:
    """What one process took: its command, the time of a core, and its resident memory at each sample."""

    name: str
    rss_mb: list[float] = field(default_factory=list)
    cpu_s: float = 0.0

    @property
    def growth_mb(self) -> float:
        """How much more it had at most in the last three quarters than in the first."""
        quarter = len(self.rss_mb) // 4
        if len(self.rss_mb) < _FEWEST_SAMPLES:
            return 0.0
        return max(self.rss_mb[quarter:]) - max(self.rss_mb[:quarter])

    @property
    def tenths_mb(self) -> Sequence[int]:
        """The most that it had in each tenth of its time."""
        bounds = [len(self.rss_mb) * tenth // 10 for tenth in range(11)]
        return [round(max(self.rss_mb[start:stop], default=0)) for start, stop in pairwise(bounds)]


@dataclass(frozen=True)
class Step:
    """One step over both halves."""

    name: str
    seconds: float
    cpu_s: float
    kills: int
    peak_mb: float
    growth_mb: float
    longest_mb: Sequence[int]
    """Memory of the process that ran for the longest time, in each tenth of it."""
    requests: Mapping[str, int]
    megabytes: Mapping[str, float]


@dataclass(frozen=True)
class Line:
    """What is run: on which bucket, below which folder, with how many clips and steps of training."""

    bucket: Bucket
    folder: Path
    num: int
    train_steps: int
    kills: int

    @property
    def log(self) -> Path:
        """Where the commands write what they do."""
        return self.folder / "log"


def measure(folder: Path, num: int, train_steps: int = 200, kills: int = 2, seed: int = 0) -> dict[str, Any]:
    """Make the corpus below a folder, run the line, and compare what it left; AssertionError where a clip is lost."""
    chance = random.Random(seed)
    corpus_bytes = scale_corpus.make(folder / "bucket", num)
    with disk_bucket(folder / "bucket") as bucket, _environment(s3_environment(bucket.port)):
        line, steps = Line(bucket, folder, num, train_steps, kills), []
        for name in STEPS:
            steps.append(_step(line, name, chance))
            sys.stderr.write(f"{json.dumps(asdict(steps[-1]))}\n")
        objects = {half: num_objects(line, half) for half in HALVES}
        lost, doubled = compare(num)
    counts = sum((Counter(step.megabytes) for step in steps), Counter[str]())
    fetched = sum(counts[f"sent {half}/"] for half in HALVES)
    return {
        "utterances": num,
        "corpus_mb": round(corpus_bytes / 1e6, 1),
        "source_fetched": round(fetched * 1e6 / corpus_bytes, 4),
        "steps": [asdict(step) for step in steps],
        "objects": objects,
        "lost": lost,
        "doubled": doubled,
    }


def table(figures: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a table of the steps, for a document."""
    num = figures["utterances"]
    columns = (
        "step",
        "seconds",
        "CPU seconds",
        "kills",
        "largest process, MB",
        "its growth, MB",
        "requests each",
        "MB fetched",
    )
    yield f"| {' | '.join(columns)} |"
    yield "|---|---|---|---|---|---|---|---|"
    for step in figures["steps"]:
        requests = sum(step["requests"].values()) / num
        fetched = sum(value for key, value in step["megabytes"].items() if key.startswith("sent "))
        yield (
            f"| `{step['name']}` | {step['seconds']:,.0f} | {step['cpu_s']:,.0f} | {step['kills']} |"
            f" {step['peak_mb']:,.0f} | {step['growth_mb']:,.0f} | {requests:.3f} | {fetched:,.0f} |"
        )
    yield ""
    yield f"{figures['lost']} lost, {figures['doubled']} doubled; the source fetched {figures['source_fetched']} times."
    for half, objects in figures["objects"].items():
        yield f"{half}: {objects['all']} objects, reckoned {objects['reckoned']}"


def num_objects(line: Line, half: str) -> Mapping[str, int]:
    """The parts and tars of one half, and how many docs/scale.md reckons with."""
    own = scale_corpus.num_in(half, line.num)
    parts = -(-own // CHUNK)
    mixture = -(-line.num // SHARD) if half == HALVES[0] else 0  # the training writes one into its first work folder
    prefix = f"line/work-{half}/"
    names = ("recordings", "utterances", "labels", "scores", "verdicts", "shards")
    of = {name: line.bucket.num_objects(f"{prefix}{name}/") for name in names}
    return {
        **of,
        "all": line.bucket.num_objects(prefix),
        "reckoned": 3 * parts + -(-parts // 16) + -(-own // VERDICTS) + 2 * -(-own // SHARD) + mixture,
    }


def compare(num: int) -> tuple[int, int]:
    """How many clips, labels, verdicts and samples are missing, and how many are there more than once."""
    texts: Counter[str] = Counter()
    lost = doubled = num_kept = 0

    def count(expected: Counter[str], rows: Counter[str]) -> None:
        nonlocal lost, doubled
        lost += (expected - rows).total()
        doubled += (rows - expected).total()

    for half in HALVES:
        work = Store(f"s3://line/work-{half}")
        text_of_id = {row.id: row.text or "" for row in _rows(work, "utterances", Utterance)}
        texts.update(row.text or "" for row in _rows(work, "utterances", Utterance))
        ids = Counter(text_of_id.keys())
        labels = _rows(work, "labels", Label)
        count(ids, Counter(row.utterance_id for row in labels if row.text == text_of_id.get(row.utterance_id)))
        verdicts = list(_rows(work, "verdicts", Verdict))
        count(ids, Counter(row.utterance_id for row in verdicts))
        kept = Counter(row.utterance_id for row in verdicts if row.kept)
        count(kept, Counter(row.id for row in _rows(work, "shards", shard_format.Sample)))
        num_kept += kept.total()
    count(Counter(scale_corpus.text_of(number) for number in range(num)), texts)
    assert num_kept > 0.9 * num, f"the filter keeps {num_kept} of {num}"
    return lost, doubled


def _rows(work: Store, table: str, kind: type[Any]) -> Iterator[Any]:
    for prefix in sorted({entry.key.rpartition("/")[0] for entry in work.list(table) if entry.key.endswith("parquet")}):
        yield from tables.read(work, prefix, kind)


def _step(line: Line, name: str, chance: random.Random) -> Step:
    before, start_s = line.bucket.counts(), time.monotonic()
    processes: list[Process] = []
    kills = 0
    for half in HALVES if name != "train" else HALVES[:1]:
        commands = [_command(line, name, half, part) for part in _parts(name)]
        progress = partial(_progress, line, name, half)
        due = sorted(chance.uniform(0.05, 0.9) for _ in range(line.kills))
        kills += _run(commands, due, progress, chance, processes, line.log)
    counts = line.bucket.counts() - before
    is_bytes = ("sent ", "taken ")
    return Step(
        name=name,
        seconds=round(time.monotonic() - start_s, 1),
        cpu_s=round(sum(process.cpu_s for process in processes), 1),
        kills=kills,
        peak_mb=round(max(max(process.rss_mb) for process in processes)),
        growth_mb=round(max(process.growth_mb for process in processes)),
        longest_mb=max(processes, key=lambda process: len(process.rss_mb)).tenths_mb,
        requests={key: value for key, value in sorted(counts.items()) if not key.startswith(is_bytes)},
        megabytes={key: round(value / 1e6, 3) for key, value in sorted(counts.items()) if key.startswith(is_bytes)},
    )


def _run(
    commands: Sequence[Sequence[str]],
    due: Sequence[float],
    progress: Callable[[], float],
    chance: random.Random,
    processes: list[Process],
    log: Path,
) -> int:
    """All commands at once until each has ended well; one is killed at each share of the work in `due`."""
    running = {number: _start(command, log) for number, command in enumerate(commands)}
    waiting, by_pid, kills = list(due), dict[int, Process](), 0
    while running:
        time.sleep(_SAMPLE_S)
        for process in running.values():
            _sample(process.pid, by_pid)
        if waiting and progress() >= waiting[0]:
            waiting.pop(0)
            number = chance.choice(list(running))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running[number].pid, signal.SIGKILL)
        for number, process in list(running.items()):
            if process.poll() is None:
                continue
            code = process.returncode
            if code not in (0, -signal.SIGKILL):
                raise RuntimeError(f"{' '.join(commands[number])} ended with {code}:\n{log.read_text()[-3000:]}")
            kills += code != 0
            del running[number]
            if code:
                running[number] = _start(commands[number], log)
    processes += by_pid.values()
    return kills


def _start(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "voxstill", *command], stdout=file, stderr=file, start_new_session=True
        )


def _sample(session: int, by_pid: dict[int, Process]) -> None:
    """Take the memory and the time of every process of a session."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
            values = rest.split()
            if int(values[3]) == session:
                process = by_pid.setdefault(int(stat.parent.name), Process(name))
                process.rss_mb.append(int(values[21]) * os.sysconf("SC_PAGE_SIZE") / 1e6)
                process.cpu_s = (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")


def _parts(name: str) -> Sequence[int | None]:
    return range(1, PARTS + 1) if name in STEPS[:4] else (None,)


def _command(line: Line, name: str, half: str, part: int | None) -> Sequence[str]:
    work, source = f"s3://line/work-{half}", "tars/" if half == "tars" else "files/manifest.jsonl"
    settings = {
        "work": work,
        "teacher": {"name": "echo"},
        "engine": {"name": "inline", "chunk": CHUNK},
        "cache": {"folder": str(line.folder / "cache"), "max_gb": 50},
        "shard": {"utterances": SHARD},
        "plan": {"budget_ms": 20_000},
        "train": {
            "corpora": [{"work": f"s3://line/work-{one}", "dataset": one} for one in HALVES],
            "steps": line.train_steps,
            "root": str(line.folder / "exp"),
            "log_every": max(1, line.train_steps // 20),
            "checkpoint_every": max(1, line.train_steps // 10),
        },
    }
    config = line.folder / f"{half}.yaml"
    config.write_text(json.dumps(settings))
    command = {
        "index": ["index", f"s3://line/{source}", "--work", work, "--config", str(config)],
        "train": ["train", str(config)],
        "verify": ["verify", work],
    }.get(name, [name, work, "--config", str(config)])
    return [*command, *([] if part is None else ["--part", f"{part}/{PARTS}"])]


def _progress(line: Line, name: str, half: str) -> float:
    """The share of a step that is done."""
    if name == "train":
        steps = [_last_step(path) for path in (line.folder / "exp").glob("*/metrics.jsonl")]
        return max(steps, default=0) / line.train_steps
    if name == "verify":
        return 0.0
    table = {"index": "utterances", "label": "labels", "filter": "scores", "shard": "shards"}[name]
    own = scale_corpus.num_in(half, line.num)
    wanted = {"filter": -(-own // (16 * CHUNK)), "shard": 2 * -(-own // SHARD)}.get(name, -(-own // CHUNK))
    return float(line.bucket.num_objects(f"line/work-{half}/{table}/") / wanted)


def _last_step(metrics: Path) -> int:
    return max((int(json.loads(line).get("step", 0)) for line in metrics.read_text().splitlines()), default=0)


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
