"""How fast a student trains: the loop of `voxstill train` beside `transformers.Trainer`, on a CPU or on a GPU.

    pip install -e '.[bench]'
    python benchmarks/train/speed.py

Both train the same ParakeetForCTC from the same weights, on the same FLAC bytes and labels, with the same AdamW,
learning rate, precision, threads and number of processes that read. A batch of ours has at most `--budget-s` of audio,
padding included; one of theirs has a fixed number of utterances of like lengths, as many as have so much audio in the
mean. Theirs comes three times: with lengths mixed by chance, which is its default; with features computed in the
processes that read; and with features computed before, in time that is not counted. Ours comes twice: without
augmentation, which is the work that theirs does, and with that of a real training.

Each is a process of its own, in turns. What counts is the time after a warm-up: from asking for a batch to asking for
another, epochs that begin included. Batches of the Trainer go from long to short again and again, so whole rounds of
them count. CPU seconds are those of all its processes. Memory is the most that it took since its libraries were loaded:
resident in its main process, or allocated on the GPU. `--manifest FILE` takes real audio: JSONL with `audio` and
`text`.

Prints a table and writes `benchmarks/results/train_speed.json`; `--table FILE` prints that of a file again. `--profile`
prints the operations that our step spends its time in, and nothing else.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rounds import median, ratio
from speed_corpus import make

if TYPE_CHECKING:
    from window import Window

    from voxstill.core.config import Config

HERE = Path(__file__).parent
LR = 1e-3
OURS, AUGMENTED = "voxstill", "voxstill, augmented"
DEFAULT, THEIRS, READY = "Trainer, lengths mixed", "Trainer", "Trainer, features ready"
NAMES = (OURS, DEFAULT, THEIRS, READY, AUGMENTED)
PLAIN = "augment={noise_prob: 0.0, tempo: 0.0, vtlp: 0.0, time_masks: 0, mel_masks: 0}"
FOREVER = 10**9


def main() -> None:
    """Make the corpus, train each contender on it in turns, print the medians."""
    args = parsed_arguments()
    if args.table:
        print(table(json.loads(Path(args.table).read_text())))
        return
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(args.threads)
    import torch

    on_gpu = torch.cuda.is_available()
    args.budget_s = args.budget_s or (600 if on_gpu else 30)
    args.workers = (8 if on_gpu else 1) if args.workers is None else args.workers
    args.utterances = args.utterances or (20_000 if on_gpu else 400)
    if args.train:
        torch.set_num_threads(args.threads)
        print(json.dumps(train(args.train, Path(args.corpus), args)))
        return
    with tempfile.TemporaryDirectory() as folder:
        hours = make(Path(folder), args)
        if args.profile:
            for size in args.size:
                child(OURS, size, folder, args)
            return
        from voxstill.training import environment

        peer_versions = {name: number for name in ("accelerate",) if (number := has(name))}
        figures: dict[str, Any] = {
            "machine": environment.machine(),
            "versions": environment.versions() | peer_versions,
            "audio": args.manifest or "synthetic",
            "hours": hours,
            "peak_tflops": args.peak_tflops or (peak_tflops() if on_gpu else None),
            **{name: getattr(args, name) for name in ("budget_s", "threads", "workers", "seconds", "warmup")},
            "rounds": {},
        }
        for size in args.size:
            rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in NAMES if name in args.only}
            figures["rounds"][size] = rounds
            for _ in range(args.rounds):
                for name, rows in rounds.items():
                    rows.append(child(name, size, folder, args))
                    Path(args.output).write_text(json.dumps(figures, indent=1) + "\n")
    print(table(figures))


def parsed_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", nargs="+", default=["tiny", "small"], choices=("tiny", "small", "medium", "large"))
    parser.add_argument("--seconds", type=float, default=10, help="counted, of each training")
    parser.add_argument("--warmup", type=float, default=3, help="seconds before them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--budget-s", type=int, help="audio of a batch; default: 30 on a CPU, 600 on a GPU")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, help="processes that read; default: 1 on a CPU, 8 on a GPU")
    parser.add_argument("--utterances", type=int, help="default: 400 on a CPU, 20,000 on a GPU")
    parser.add_argument("--manifest", help="JSONL with `audio` and `text` instead of synthetic audio")
    parser.add_argument("--peak-tflops", type=float, help="of the device; default: measured, on a GPU")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further options of ours")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--table", metavar="FILE", help="print the table of these figures and end")
    parser.add_argument("--output", default=str(HERE.parent / "results/train_speed.json"))
    parser.add_argument("--train", help=argparse.SUPPRESS)  # a contender: what a child does
    parser.add_argument("--corpus", help=argparse.SUPPRESS)
    return parser.parse_args()


def table(figures: dict[str, Any]) -> str:
    """Medians over the rounds; ratios are medians of the ratios within a round."""
    peak = figures["peak_tflops"]
    head = [
        "student",
        "training",
        "audio-s/s",
        "of Trainer",
        "of its default",
        "audio-s/CPU-s",
        "of Trainer",
        "step, ms",
    ]
    head.append("data wait")
    head += ["padding", "memory, MB", "of Trainer"] + (["TFLOP/s", "of the peak"] if peak else [])
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for size, rounds in figures["rounds"].items():
        for name, rows in rounds.items():
            if not rows:
                continue
            theirs = rounds.get(THEIRS, [])
            cells = [size, name, f"{median(rows, 'audio_s_per_s'):.0f}", ratio(rows, theirs, "audio_s_per_s")]
            cells.append(ratio(rows, rounds.get(DEFAULT, []), "audio_s_per_s"))
            cells += [f"{median(rows, 'audio_s_per_cpu_s'):.0f}", ratio(rows, theirs, "audio_s_per_cpu_s")]
            cells.append(f"{1000 * median(rows, 'step_s'):.0f}")
            cells += [f"{median(rows, figure):.1%}" for figure in ("data_wait", "padding")]
            cells += [f"{median(rows, 'memory_bytes') / 1e6:.0f}", ratio(rows, theirs, "memory_bytes")]
            if peak:
                cells += [f"{median(rows, 'tflops'):.1f}", f"{median(rows, 'tflops') / peak:.0%}"]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def child(name: str, size: str, corpus: str, args: argparse.Namespace) -> dict[str, Any]:
    """One training in a process of its own."""
    command = [sys.executable, __file__, "--train", name, "--corpus", corpus, "--size", size]
    for option in ("seconds", "warmup", "threads", "workers"):
        command += [f"--{option}", str(getattr(args, option))]
    command += [word for setting in args.set for word in ("--set", setting)]
    command += ["--budget-s", str(args.budget_s)] + (["--profile"] if args.profile else [])
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if args.profile:
        print(figures.pop("profile"))
    print(size, name, {key: round(value, 4) for key, value in figures.items()}, file=sys.stderr, flush=True)
    return figures


def has(package: str) -> str | None:
    """The version of a package, None where it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def peak_tflops() -> float:
    """What the GPU does with large bf16 matrices: the best of ten products of 8192 x 8192."""
    import torch

    one = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    took = []
    for _ in range(10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        _ = one @ one
        torch.cuda.synchronize()
        took.append(time.perf_counter() - start)
    return float(2 * 8192**3 / min(took) / 1e12)


# ------------------------------------------------------------------------------------------------------- a training


def train(name: str, corpus: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One contender for as long as is asked; what is imported does not count."""
    import torch
    from window import Window

    window = Window(args)
    gc.collect()
    before = resident("VmRSS")
    contender = train_voxstill if name in (OURS, AUGMENTED) else train_peer
    flops_per_s = contender(name, corpus, args, window)
    elapsed = window.starts[-1] - window.starts[0]
    on_gpu = torch.cuda.is_available()
    figures = {
        **window.figures(),
        "tflops": flops_per_s * window.padded_s / elapsed / 1e12,
        "memory_bytes": torch.cuda.max_memory_allocated() if on_gpu else resident("VmHWM") - before,
    }
    if window.profiler:
        window.profiler.stop()
        by = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
        figures["profile"] = window.profiler.key_averages().table(sort_by=by, row_limit=30)
    return figures


def resident(line: str) -> int:
    """Bytes of this process in memory: VmRSS now, VmHWM at most."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{line}:")[1].split()[0]) * 1024


def train_voxstill(name: str, corpus: Path, args: argparse.Namespace, window: Window) -> float:
    """`voxstill train` on the shards; operations for a second of padded audio."""
    from voxstill.core import config

    settings = {
        "student.size": args.size[0],
        "student.units": json.loads((corpus / "corpus.json").read_text())["units"],
        "plan.budget_ms": args.budget_s * 1000,
        "train.threads": args.threads,
        "train.loader_workers": args.workers,
        "train.lr": LR,
        "train.optimizer": "adamw",
        **dict.fromkeys(("train.steps", "train.checkpoint_every", "train.validate_every"), FOREVER),
        **dict.fromkeys(("train.warmup", "train.align_share", "train.ascending_share", "train.average_share"), 0.0),
        "train.hold": 1.0,
        "augment.spec_augment_start": 0.0,
    }
    overrides = [f"work={corpus}", *(f"{key}={value}" for key, value in settings.items())]
    rows = train_observed(config.load(None, overrides + ([PLAIN] if name == OURS else []) + args.set, {}), window)
    if not rows:  # so slow that not even one line was written
        return 0.0
    audio_s_per_s = rows[-1]["audio_seconds_per_second"] / (1 - rows[-1]["padding"])
    return float(rows[-1]["tflops"] * 1e12 / audio_s_per_s)


def train_observed(cfg: Config, window: Window) -> list[dict[str, Any]]:
    """`voxstill train` on the shards `r` of the work folder until the window ends; the rows of its metrics."""
    from steps import OverError

    from voxstill.core import pcm
    from voxstill.core.records import Batch
    from voxstill.data.plan import EpochPlan
    from voxstill.storage.rundir import RunDir
    from voxstill.tasks import data, recognition
    from voxstill.training import parallel
    from voxstill.training.launch import train_rank

    class ObservedCorpus(data.Corpus):
        """The corpus, which notifies the window before and after it reads a step."""

        def steps(
            self, plan: EpochPlan, first: int, make: Callable[[int, list[Batch]], Any], workers: int | None = None
        ) -> Iterator[Any]:
            steps = super().steps(plan, first, lambda k, batches: (batches, make(k, batches)), workers)
            while True:
                window.before_batches()
                start = time.perf_counter()
                if (step := next(steps, None)) is None:
                    return
                waited_s = time.perf_counter() - start
                batches, model_inputs = step
                audio_s = pcm.samples_to_s(sum(float(batch.audio_len_B.sum()) for batch in batches))
                window.after_batch(
                    audio_s, pcm.samples_to_s(sum(batch.audio_BT.numel() for batch in batches)), waited_s
                )
                yield model_inputs

    vars(recognition)["Corpus"] = ObservedCorpus
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(Path(folder))
        rank = functools.partial(train_rank, cfg=cfg, run=run, prefix="shards/r", build=recognition.build)
        try:
            parallel.fabric(cfg.train).launch(rank)
        except OverError:
            return [json.loads(line) for line in run.metrics.read_text().splitlines()] if run.metrics.exists() else []
    raise AssertionError("the training ended by itself")


def train_peer(name: str, corpus: Path, args: argparse.Namespace, window: Window) -> float:
    """`transformers.Trainer` on the files; operations for a second of padded audio."""
    import hugging_face
    import soundfile

    from voxstill.nn import students
    from voxstill.text import tokenizer
    from voxstill.text.normalize import normalizer
    from voxstill.training.optim import BETAS

    about = json.loads((corpus / "corpus.json").read_text())
    normalize, rows = normalizer("basic"), about["rows"]
    texts = [normalize(row["text"]) for row in rows]
    vocabulary = tokenizer.train(texts, about["units"], 200)
    batch = max(1, round(args.budget_s * 16_000 / statistics.mean(row["num_samples"] for row in rows)))
    window.multiple = max(1, min(len(rows) // (4 * batch), 50))  # so many batches follow one another from long to short
    labels = [vocabulary.encode(text)[0] for text in texts]
    paths = [corpus / row["audio"] for row in rows]
    lengths = [row["num_samples"] for row in rows]
    model = students.build(args.size[0], len(vocabulary.pieces), dropout=0.0, seed=0)
    ours, model = model, type(model)(model.config)  # as the library makes it, without what we change in it
    model.load_state_dict(ours.state_dict())
    data: Any = hugging_face.Files(paths, labels)
    with tempfile.TemporaryDirectory() as folder:
        if name == READY:
            clips = {path: at for at, path in enumerate(dict.fromkeys(paths))}
            ready = corpus / "features"
            if not ready.exists():
                hugging_face.extract(ready, (soundfile.read(path, dtype="float32")[0] for path in clips))
            data = hugging_face.Extracted(ready, [clips[path] for path in paths], labels)
        peer = hugging_face.train(
            model,
            data,
            None if name == DEFAULT else lengths,
            vocabulary.blank_id,
            Path(folder) / "exp",
            window,
            per_device_train_batch_size=batch,
            dataloader_num_workers=args.workers,
            learning_rate=LR,
            lr_scheduler_type="constant",
            weight_decay=0.01,
            adam_beta1=BETAS[0],
            adam_beta2=BETAS[1],
            max_grad_norm=5.0,
        )
    return float(peer.flops_per_s)


if __name__ == "__main__":
    main()
