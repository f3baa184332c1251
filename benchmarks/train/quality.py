"""What is learnt in equal CPU time: the student of `voxstill train` beside that of `transformers.Trainer`.

    pip install -e '.[bench]'
    voxstill demo --work work/demo
    python benchmarks/train/quality.py --config exp/DATE_demo/config.yaml

Both begin with the same weights and learn from the labels in the shards of a finished work folder, each by its own
recipe: voxstill by the configuration, the Trainer by that of the library's example for speech and CTC, which is CTC
alone, a learning rate that rises and falls in straight lines, and the arguments' defaults otherwise. Its peak is the
best of 0.00025, 0.0005, 0.001 and 0.002 on seed 0. The Trainer reads features that were extracted before, and its mean
batch has as much audio as that of voxstill. The clock of both is the CPU time of all their processes from the first
step on. Neither validates or saves on the way.

Each seed is a pair. Prints the word error rates on the split of the configuration and writes
`benchmarks/results/train_quality.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

import cpu  # noqa: E402
import hugging_face  # noqa: E402
import torch  # noqa: E402
from steps import OverError, StepListener  # noqa: E402

from voxstill.audio import codec  # noqa: E402
from voxstill.core import config, pcm  # noqa: E402
from voxstill.core.config import Config  # noqa: E402
from voxstill.pipeline.evaluate import evaluate  # noqa: E402
from voxstill.pipeline.recipes import finished_shards  # noqa: E402
from voxstill.pipeline.train import train  # noqa: E402
from voxstill.storage import shard_format, workdir  # noqa: E402
from voxstill.storage.fetch import read_uri  # noqa: E402
from voxstill.storage.rundir import RunDir  # noqa: E402
from voxstill.storage.store import Store  # noqa: E402
from voxstill.tasks import recognition  # noqa: E402
from voxstill.text.normalize import normalizer  # noqa: E402
from voxstill.training import budget, checkpoint, environment, launch  # noqa: E402

HERE = Path(__file__).parent
WARMUP = 0.1


def main() -> None:
    """Train pairs and print their error rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="that of an experiment on a finished work folder")
    parser.add_argument("--cpu-seconds", type=float, default=120, help="of each training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--peer-lr", type=float, default=1e-3, help="peak learning rate of the Trainer")
    parser.add_argument("--output", default=str(HERE.parent / "results/train_quality.json"))
    args = parser.parse_args()
    hugging_face.check()
    torch.set_num_threads(1)
    cfg = config.load(args.config, [], {})
    results: dict[str, list[dict[str, Any]]] = {"voxstill": [], "Trainer": []}
    figures = {
        "machine": environment.machine(),
        "versions": environment.versions(),
        "cpu_seconds": args.cpu_seconds,
        "peer_lr": args.peer_lr,
        "found": results,
    }
    with tempfile.TemporaryDirectory() as folder:
        labelled = Labelled(cfg, Path(folder))
        for seed in args.seeds:
            results["voxstill"].append(train_voxstill(cfg, seed, args.cpu_seconds, Path(folder)))
            results["Trainer"].append(train_peer(cfg, labelled, seed, args, Path(folder)))
            Path(args.output).write_text(json.dumps(figures, indent=1) + "\n")
            print({name: rows[-1] for name, rows in results.items()}, file=sys.stderr, flush=True)
    print(table(results))


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """Error rates in percent, a column for each seed, and the ratio of each pair."""
    rows = list(zip(results["voxstill"], results["Trainer"], strict=True))
    lines = ["| training | " + " | ".join(f"seed {one['seed']}" for one, _ in rows) + " | mean |"]
    lines.append("|---" * (len(rows) + 2) + "|")
    for name, seed_rows in results.items():
        rates = [100 * row["wer"] for row in seed_rows]
        lines.append(f"| {name} | " + " | ".join(f"{rate:.1f}" for rate in [*rates, statistics.mean(rates)]) + " |")
    ratios = [one["wer"] / other["wer"] for one, other in rows]
    lines.append("| ratio | " + " | ".join(f"{ratio:.2f}" for ratio in [*ratios, statistics.mean(ratios)]) + " |")
    return "\n".join(lines)


def clock(seconds: float) -> Callable[[], float]:
    """A function that says which share of so many CPU seconds has passed since it was first asked, in [0, 1]."""
    begun: list[float] = []

    def progress() -> float:
        now = cpu.seconds()
        begun.append(now)
        del begun[1:]
        return min((now - begun[0]) / seconds, 1.0)

    return progress


class Labelled:
    """The training split of the shards: labels and features that lie ready."""

    def __init__(self, cfg: Config, folder: Path) -> None:
        store, prefix = Store(cfg.work), workdir.prefix("shards", finished_shards(cfg).recipe)
        rows = [row for part in shard_format.sidecars(store, prefix, ("train",)) for row in part.to_pylist()]
        texts = [normalizer(cfg.student.text)(row["text"]) for row in rows]
        self.frontend = recognition.frontend_of(cfg, None)
        self.vocabulary = recognition.new_vocabulary(texts, cfg.student, self.frontend)
        self.lengths = [row["num_samples"] for row in rows]
        tars = {row["shard"]: store.uri(f"{prefix}/{shard_format.tar_name(row['shard'])}") for row in rows}
        ranges = (f"{tars[row['shard']]}#{row['offset']}+{row['num_bytes']}" for row in rows)
        audio = (codec.decode_stored(read_uri(uri)).samples_T for uri in ranges)
        hugging_face.extract(folder / "features", map(pcm.to_float, audio))
        labels = [self.vocabulary.encode(text)[0] for text in texts]
        self.data = hugging_face.Extracted(folder / "features", range(len(rows)), labels)


def train_voxstill(cfg: Config, seed: int, seconds: float, folder: Path) -> dict[str, Any]:
    """`voxstill train` by the recipe of the configuration, which follows the CPU clock instead of the wall's."""
    progress = clock(seconds)

    class Budget(budget.Budget):
        """So much CPU time."""

        def progress(self, step: int, seconds: float, stale: int = 0) -> float:
            return progress()

    vars(launch)["Budget"] = Budget
    tree = cfg.model_dump() | {"seed": seed}
    tree["train"] |= {
        "max_minutes": seconds / 60,
        "steps": None,
        "epochs": None,
        "validate_every": hugging_face.FOREVER,
        "checkpoint_every": hugging_face.FOREVER,
        "name": f"ours-{seed}",
        "root": str(folder),
    }
    trained = train(config.validated(Config, tree))
    return figures_of(cfg, trained.path, seed, trained.steps)


def train_peer(cfg: Config, labelled: Labelled, seed: int, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """`transformers.Trainer` on the same labels from the same weights."""
    progress = clock(args.cpu_seconds)

    class Listener(StepListener):
        """Counts the steps, and ends when the time is up."""

        steps = -1

        def before_batches(self) -> None:
            self.steps += 1
            if progress() >= 1:
                raise OverError

    def schedule() -> float:
        done = progress()
        return done / WARMUP if done < WARMUP else (1 - done) / (1 - WARMUP)

    listener, vocabulary = Listener(), labelled.vocabulary
    model = recognition.new_student(cfg.model_copy(update={"seed": seed}), vocabulary)
    hugging_face.train(
        model,
        labelled.data,
        labelled.lengths,
        vocabulary.blank_id,
        folder / f"theirs-{seed}",
        listener,
        schedule=schedule,
        per_device_train_batch_size=max(
            1, round(pcm.ms_to_samples(cfg.plan.budget_ms) / statistics.mean(labelled.lengths))
        ),
        dataloader_num_workers=cfg.train.loader_workers,
        learning_rate=args.peer_lr,
        seed=seed,
    )
    saved = RunDir(folder / f"theirs-{seed}")
    recognition.save_student(saved, model, vocabulary, labelled.frontend, checkpoint.whole_weights(model))
    return figures_of(cfg, str(saved.model), seed, listener.steps)


def figures_of(cfg: Config, model: str, seed: int, steps: int) -> dict[str, Any]:
    """Error rates of a student on the split of the configuration."""
    figures = evaluate(cfg, model).figures
    return {"seed": seed, "steps": steps, **{name: figures[name] for name in ("wer", "cer", "interval", "words")}}


if __name__ == "__main__":
    main()
