"""What a plan is worth and what it costs: efficiency, planning, resuming, the first batch, memory; beside lhotse.

    pip install -e '.[bench]'
    python benchmarks/loader/plans.py

Efficiency is the share of the devices' time that hears speech when each step lasts as long as its slowest rank:
(1 - padding) / imbalance. lhotse's dynamic bucketing deals one stream to all ranks; "independent" are ranks that bucket
an eighth of the corpus each, where the fast ones wait for the slowest at the end. Lengths are like those of read books,
and log-normal ones of more spread.

For resuming, the first batch and memory the same tar is linked many times, so that a million utterances are real
files. Each figure of ours is taken by a process of its own, after its imports. The index lies there from another start,
and so does the plan of the epoch, but for "the epoch not planned yet". Prints tables and writes
`benchmarks/results/loader_plans.json`.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import os
import pickle
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from throughput import BUDGET_S, HERE, has  # noqa: E402

PER_SHARD = 1000
EPOCH_SHARES = (0.1, 0.5, 0.9)
PLAN = "epoch.plan"
BUCKETS = (30, 100, 200)


def main() -> None:
    """Every figure, then a table of each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--peers", type=int, default=131_072, help="utterances for the efficiency of all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", default=str(HERE.parent / "results/loader_plans.json"))
    parser.add_argument("--do", help=argparse.SUPPRESS)
    parser.add_argument("--with", dest="arguments", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.do:
        print(json.dumps(CHILDREN[args.do](**json.loads(args.arguments))))
        return
    figures: dict[str, Any] = {
        "budget_s": BUDGET_S,
        "python": platform.python_version(),
        "versions": {name: number for name in ("numpy", "torch", "lhotse") if (number := has(name))},
        "efficiency": efficiency(args.peers),
        "sizes": {},
    }
    for num in args.sizes:
        figures["sizes"][num] = of_size(num, args.rounds)
    figures["growth"] = child("growth")
    Path(args.output).write_text(json.dumps(figures, indent=1) + "\n")
    show(figures)


def show(figures: dict[str, Any]) -> None:
    """Print the tables."""
    print("| batches | lengths | window | ranks | padding | imbalance | efficiency |\n|---|---|---|---|---|---|---|")
    for row in figures["efficiency"]:
        window = f"{row['window']:,}" if "window" in row else ""
        print(f"| {row['name']} | {row.get('lengths', 'books')} | {window} | {row['ranks']} | ", end="")
        print(f"{row['padding']:.2%} | {row['imbalance']:.3f} | ", end="")
        print(f"{row['efficiency']:.3f} |")
    print("\n| utterances | " + " | ".join(f"{num:,}" for num in figures["sizes"]) + " |")
    print("|---" * (1 + len(figures["sizes"])) + "|")
    for name in next(iter(figures["sizes"].values())):
        values = [sizes[name] for sizes in figures["sizes"].values()]
        print(f"| {name} | " + " | ".join(f"{value:.3g}" for value in values) + " |")
    print(f"\nanonymous memory over 3 epochs: {figures['growth']['growth']:+.2%}")


def like_books(num: int) -> NDArray[np.int64]:
    """Milliseconds of each utterance: log-normal, 1 to 35 seconds."""
    random = np.random.default_rng(0)
    return np.clip(random.lognormal(2.4, 0.5, num) * 1000, 1000, 35_000).astype(np.int64)


def spread(num: int) -> NDArray[np.int64]:
    """Milliseconds of each utterance: log-normal with a sigma of 0.8, 0.3 to 60 seconds."""
    random = np.random.default_rng(0)
    return np.clip(random.lognormal(2.4, 0.8, num) * 1000, 300, 60_000).astype(np.int64)


def child(name: str, **arguments: float | str) -> Any:
    """Run a function of `CHILDREN` in a process of its own; return its JSON."""
    command = [sys.executable, __file__, "--do", name, "--with", json.dumps(arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


# ---------------------------------------------------------------------------------------------------- efficiency


def efficiency(num: int) -> list[dict[str, Any]]:
    """Padding and imbalance of voxstill and lhotse on the same lengths."""
    rows = [child("ours", num=num, ranks=ranks, layout=layout) for ranks, layout in ((8, "local"), (8, "remote"))]
    for lengths in LENGTHS:
        rows += [child("ours", num=num, ranks=64, window=window, lengths=lengths) for window in (65_536, 131_072)]
    if not has("lhotse"):
        print("without lhotse: pip install -e '.[bench]'", file=sys.stderr)
        return rows
    rows += [child("lhotse", num=num, ranks=8, buckets=buckets) for buckets in BUCKETS]
    return [*rows, child("independent", num=num, ranks=8, buckets=30)]


def voxstill(
    num: int, ranks: int, layout: str = "local", window: int = 65_536, lengths: str = "books"
) -> dict[str, Any]:
    """The figures of a plan of voxstill."""
    from voxstill.core.config import Plan
    from voxstill.data.plan import plan

    cfg = Plan(budget_ms=BUDGET_S * 1000, batches_per_step=ranks, layout=layout, window=window)  # type: ignore[arg-type]
    epoch_plan = plan(LENGTHS[lengths](num), None, cfg, seed=0, epoch=0, shard_of=np.arange(num) // PER_SHARD)
    figures: Any = epoch_plan.statistics()
    return {
        "name": "voxstill" + (", shard by shard" if layout == "remote" else ""),
        "window": window,
        "lengths": lengths,
        "ranks": ranks,
        "steps": [figures["steps"]],
        "padding": figures["padding"],
        "imbalance": figures["imbalance_mean"],
        "efficiency": figures["efficiency"],
    }


def lhotse(num: int, ranks: int, buckets: int) -> dict[str, Any]:
    """Of lhotse's ranks on one stream, which give equal numbers of batches."""
    own = (batches(like_books(num), buckets, rank, ranks) for rank in range(ranks))
    return figures_of(f"lhotse, {buckets} buckets", list(zip_longest(*own)), ranks)


def independent(num: int, ranks: int, buckets: int) -> dict[str, Any]:
    """Of ranks that have an eighth of the corpus each and bucket that alone, as with a WebDataset split by shard."""
    lengths_ms = like_books(num)
    own = (batches(lengths_ms[rank::ranks], buckets, 0, 1) for rank in range(ranks))
    return figures_of(f"independent ranks, {buckets} buckets", list(zip_longest(*own)), ranks)


def batches(lengths_ms: NDArray[np.int64], buckets: int, rank: int, ranks: int) -> Iterator[tuple[float, float]]:
    """Seconds of speech and of the padded batch, batch by batch, of one rank of lhotse's dynamic bucketing."""
    from lhotse import CutSet, MonoCut, Recording
    from lhotse.audio import AudioSource
    from lhotse.dataset import DynamicBucketingSampler

    def cuts() -> Iterator[Any]:
        source = [AudioSource("file", [0], "none.wav")]
        for i, length in enumerate(lengths_ms.tolist()):
            recording = Recording(f"r{i}", source, 16_000, length * 16, length / 1000)
            yield MonoCut(f"c{i}", 0.0, length / 1000, 0, recording=recording)

    sampler = DynamicBucketingSampler(
        CutSet.from_items(cuts()) if hasattr(CutSet, "from_items") else CutSet.from_cuts(cuts()),
        max_duration=BUDGET_S,
        num_buckets=buckets,
        shuffle=True,
        drop_last=False,
        world_size=ranks,
        rank=rank,
    )
    for batch in sampler:
        durations = [cut.duration for cut in batch]
        yield sum(durations), len(durations) * max(durations)


def figures_of(name: str, steps: list[tuple[tuple[float, float] | None, ...]], ranks: int) -> dict[str, Any]:
    """The figures of steps, each with seconds of speech and of the padded batch of every rank, or None."""
    speech_s = sum(rank[0] for step in steps for rank in step if rank)
    padded_s = sum(rank[1] for step in steps for rank in step if rank)
    slowest_s = sum(max(rank[1] for rank in step if rank) for step in steps)
    return {
        "name": name,
        "ranks": ranks,
        "steps": sorted(sum(step[rank] is not None for step in steps) for rank in range(ranks)),
        "padding": 1 - speech_s / padded_s,
        "imbalance": slowest_s * ranks / padded_s,
        "efficiency": speech_s / slowest_s / ranks,
    }


# ------------------------------------------------------------------------------- planning, resuming, first batch


def of_size(num: int, rounds: int) -> dict[str, float]:
    """CPU seconds of planning, seconds of resuming and to the first batch, bytes in memory."""
    with tempfile.TemporaryDirectory() as folder:
        write_shards(Path(folder), num)
        cold = child("start", folder=folder, share=0.0)
        planning = [child("planning", num=num)["cpu_s"] for _ in range(rounds)]
        unplanned: list[dict[str, float]] = []
        starts: dict[float, list[dict[str, float]]] = {share: [] for share in (0.0, *EPOCH_SHARES)}
        for _ in range(rounds):
            (Path(folder) / PLAN).unlink()
            unplanned.append(child("start", folder=folder, share=0.0))
            for share, rows in starts.items():
                rows.append(child("start", folder=folder, share=share))

    def median(rows: list[dict[str, float]], figure: str) -> float:
        return statistics.median(row[figure] for row in rows)

    return {
        "planning, CPU s": statistics.median(planning),
        "reading the index once, s": cold["opened_s"],
        "opening the index, s": median(starts[0.5], "opened_s"),
        "first batch of the epoch not planned yet, s": median(unplanned, "batch_s"),
        "the same, CPU s": median(unplanned, "cpu_s"),
        "first batch, s": median(starts[0.0], "batch_s"),
        **{f"resume at {share:.0%}, s": median(starts[share], "batch_s") for share in EPOCH_SHARES},
        "resume at 50%, CPU s": median(starts[0.5], "cpu_s"),
        "state, bytes": cold["state_bytes"],
        "kept plan, bytes an utterance": cold["plan_bytes"] / num,
        "memory of a plan and its index, bytes an utterance": median(starts[0.5], "held_bytes") / num,
        "at most, while planning, with mapped files, bytes an utterance": median(unplanned, "peak_bytes") / num,
        "at most, while resuming, with mapped files, bytes an utterance": median(starts[0.5], "peak_bytes") / num,
    }


def planning(num: int) -> dict[str, float]:
    """CPU seconds of one plan for 8 ranks."""
    from voxstill.core.config import Plan
    from voxstill.data.plan import plan

    lengths_ms = like_books(num)
    num_tokens = lengths_ms // 200
    start = time.process_time()
    plan(lengths_ms, num_tokens, Plan(budget_ms=BUDGET_S * 1000, batches_per_step=8), seed=0, epoch=0)
    return {"cpu_s": time.process_time() - start}


def write_shards(folder: Path, num: int) -> None:
    """One tar of real FLAC, linked as often as there are shards, and a sidecar of its own for each link."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from voxstill.audio import codec
    from voxstill.core import pcm
    from voxstill.storage import shard_format
    from voxstill.storage.figures import ShardFigures
    from voxstill.storage.shard_format import Sample
    from voxstill.storage.store import Store

    random = np.random.default_rng(0)
    samples = []
    for i, length in enumerate((like_books(PER_SHARD) * 16).tolist()):
        audio = codec.encode(random.normal(0, 300, length).astype(np.int16), "flac")
        samples.append(
            (Sample(id=f"u{i}", duration_ms=pcm.samples_to_ms(length), num_samples=length, text="a word or two"), audio)
        )
    with (folder / shard_format.tar_name(0)).open("wb") as file:
        rows = shard_format.write(file, samples)
    from voxstill.storage import tables

    table = pq.read_table(io.BytesIO(tables.to_parquet(rows, Sample)))
    place = table.column_names.index("id")
    for index in range(num // PER_SHARD):
        if index:
            os.link(folder / shard_format.tar_name(0), folder / shard_format.tar_name(index))
        ids = pa.array([f"u{index:05}-{i}" for i in range(PER_SHARD)])
        pq.write_table(table.set_column(place, "id", ids), folder / shard_format.sidecar_name(index))
    shard_format.finish(Store(str(folder)), "", ShardFigures(shards=num // PER_SHARD, utterances=num))


def start(folder: str, share: float) -> dict[str, float]:
    """What training does before its first step, at some place of the epoch, with rank 0 of 8."""
    import torch

    from voxstill.core.config import Plan
    from voxstill.data.kept_plan import kept_plan
    from voxstill.data.loader import Batches, Loader
    from voxstill.data.plan import plan
    from voxstill.data.shard_index import open_index
    from voxstill.storage.store import Store
    from voxstill.training.state import State

    torch.set_num_threads(1)
    before, resident = memory("RssAnon"), memory("VmRSS")
    begun, cpu_begun = time.perf_counter(), time.process_time()
    corpus = open_index(
        Store(folder),
        "",
        Path(folder) / "index",
        splits=("train",),
        encode=lambda _, __: ([1, 2], [(0, 1)] * 2),
        encoder="",
    )
    opened_s = time.perf_counter() - begun
    cfg = Plan(budget_ms=BUDGET_S * 1000, batches_per_step=8)
    make = functools.partial(plan, corpus.durations_ms, corpus.num_tokens, cfg, seed=0, epoch=0)
    epoch_plan = kept_plan(Path(folder) / PLAN, make)
    step = int(share * epoch_plan.steps)
    steps = iter(Loader(Batches(corpus, epoch_plan, rank=0, ranks=8), first=step, workers=1))
    next(steps)
    batch_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu_begun
    state = State(step=step, step_in_epoch=step)
    return {
        "opened_s": opened_s,
        "batch_s": batch_s,
        "cpu_s": cpu_s,
        "plan_bytes": (Path(folder) / PLAN).stat().st_size,
        "state_bytes": len(pickle.dumps(state)),
        "held_bytes": memory("RssAnon") - before,
        "peak_bytes": memory("VmHWM") - resident,
    }


def growth() -> dict[str, float]:
    """How much more anonymous memory trainer and workers have after the third epoch than after the first."""
    from voxstill.core.config import Plan
    from voxstill.data.loader import Batches, Loader
    from voxstill.data.plan import plan
    from voxstill.data.shard_index import open_index
    from voxstill.storage.store import Store

    held = []
    with tempfile.TemporaryDirectory() as folder:
        write_shards(Path(folder), 4 * PER_SHARD)
        store = Store(folder)
        corpus = open_index(store, "", Path(folder) / "index", splits=("train",), encode=None, encoder="")
        for epoch in range(3):
            epoch_plan = plan(corpus.durations_ms, None, Plan(budget_ms=BUDGET_S * 1000), seed=0, epoch=epoch)
            most = 0
            for _ in Loader(Batches(corpus, epoch_plan), workers=2):
                own = os.getpid()
                workers = Path(f"/proc/{own}/task/{own}/children").read_text().split()
                most = max(most, memory("RssAnon") + sum(memory("RssAnon", pid) for pid in workers))
            held.append(most)
    return {"held_bytes": held[-1], "growth": held[-1] / held[0] - 1}


def memory(name: str, pid: int | str = "self") -> int:
    """Bytes, from /proc; 0 of a process that has just ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


LENGTHS: dict[str, Callable[[int], NDArray[np.int64]]] = {"books": like_books, "spread": spread}
CHILDREN: dict[str, Callable[..., Any]] = {
    "ours": voxstill,
    "lhotse": lhotse,
    "independent": independent,
    "planning": planning,
    "start": start,
    "growth": growth,
}


if __name__ == "__main__":
    main()
