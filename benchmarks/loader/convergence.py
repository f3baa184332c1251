"""Whether batches of like lengths cost accuracy: the same student from planned and from random batches.

    voxstill demo --work work/demo
    python benchmarks/loader/convergence.py --config exp/DATE_demo/config.yaml

Both learn from the shards of the demo for as many steps, with the same limit on a padded batch, three seeds each.
Random batches take utterances as they come in a shuffle, until the next one would not fit: they have more padding, so
fewer utterances a step. Prints the word error rates on the test split and writes
`benchmarks/results/loader_convergence.json`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import statistics
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402

from voxstill.core import config  # noqa: E402
from voxstill.core.config import Config  # noqa: E402
from voxstill.data.plan import EpochPlan  # noqa: E402
from voxstill.pipeline.evaluate import evaluate  # noqa: E402
from voxstill.pipeline.train import train  # noqa: E402
from voxstill.tasks import data, recognition  # noqa: E402

HERE = Path(__file__).parent


class Shuffled(data.Corpus):
    """The same utterances, batched as they come."""

    def plan(self, epoch: int, *, ascending: bool) -> EpochPlan:
        """Random batches within the budget; never ascending."""
        planned = super().plan(epoch, ascending=ascending)
        budget_ms, train = self._cfg.plan.budget_ms, self._train
        order = np.random.default_rng([self._cfg.seed, epoch]).permutation(planned.order)
        durations_ms = dataclasses.replace(planned, order=order).augmented_ms()
        bounds, longest = [0], 0
        for at, length in enumerate(durations_ms.tolist()):
            longest = max(longest, length)
            if (at + 1 - bounds[-1]) * longest > budget_ms:
                bounds.append(at)
                longest = length
        starts = np.array(bounds)
        frames = planned.step_frames.sum() / durations_ms.sum()
        return dataclasses.replace(
            planned,
            order=order,
            bounds=np.append(starts, len(order)),
            step_tokens=np.add.reduceat(train.num_tokens[order], starts),
            step_frames=np.add.reduceat((durations_ms * frames).astype(np.int64), starts),
        )


def main() -> None:
    """Train all of them and print what they err."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="that of the demo's experiment")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", default=str(HERE.parent / "results/loader_convergence.json"))
    args = parser.parse_args()
    ways: dict[str, Any] = {"planned": data.Corpus, "random": Shuffled}
    rows_by_way: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    base = config.load(args.config, [], {}).model_dump()
    with tempfile.TemporaryDirectory() as folder:
        for seed in args.seeds:
            for way, corpus in ways.items():
                tree = base | {"seed": seed}
                tree["train"] = base["train"] | {
                    "max_minutes": None,
                    "steps": args.steps,
                    "name": f"{way}-{seed}",
                    "root": folder,
                }
                vars(recognition)["Corpus"] = corpus
                cfg = config.validated(Config, tree)
                trained = train(cfg)
                judged = evaluate(cfg, trained.path).figures
                row = {name: judged[name] for name in ("wer", "interval", "words")} | {"seed": seed}
                rows_by_way[way].append(row)
                print(f"| {way} | {seed} | {100 * row['wer']:.1f} |", flush=True)
    means = {way: statistics.mean(row["wer"] for row in rows) for way, rows in rows_by_way.items()}
    figures = {"steps": args.steps, "python": platform.python_version(), "torch": version("torch")}
    Path(args.output).write_text(json.dumps({**figures, "found": rows_by_way, "mean": means}, indent=1) + "\n")
    print("mean: " + ", ".join(f"{way} {100 * mean:.1f} %" for way, mean in means.items()))


if __name__ == "__main__":
    main()
