"""What a teacher adds to the labels: students of equal steps with and without its outputs and hidden layers.

    python examples/fsdd/strings.py --manifest FSDD/manifest.jsonl --output work/fsdd/corpus
    python benchmarks/train/distill.py --corpus work/fsdd/corpus/manifest.jsonl --work work/distill

A tiny student that was trained for longer on the human texts of strings of digits is the teacher of others. All are
judged by the word errors on one speaker that no training has heard. Prints the table of `docs/results/recipes.md`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import voxstill

LAYERS = {2: 2, 4: 4}
VARIANTS: dict[str, dict[str, Any]] = {
    "labels": {},
    "outputs": {"weight": 1.0},
    "layers": {"weight": 0.0, "layers": LAYERS},
    "outputs and layers": {"weight": 1.0, "layers": LAYERS},
}


def main() -> None:
    """Train the teacher, then a student of each variant and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="manifest written by examples/fsdd/strings.py")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--held-out", default="theo", help="the speaker to judge by")
    parser.add_argument("--teacher-steps", type=int, default=600)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    manifest = args.work / "manifest.jsonl"
    rows = [json.loads(line) for line in args.corpus.read_text(encoding="utf-8").splitlines()]
    rows = [row | {"audio": str((args.corpus.parent / row["audio"]).resolve())} for row in rows]
    strings = [row for row in rows if row["dataset"] == "strings"]
    manifest.write_text("".join(json.dumps(row) + "\n" for row in strings))
    fixed = [
        f"work={args.work / 'work'}",
        f"source={{uri: {manifest}, dev_speakers: [{args.held_out}]}}",
        "teacher=reference",
        "engine=inline",
        "plan.budget_ms=12000",
        "train.validate_every=100000",
        f"train.root={args.work / 'exp'}",
    ]
    cfg = voxstill.load_config(None, *fixed)
    for step in (voxstill.index, voxstill.label, voxstill.filter, voxstill.shard):
        step(cfg)

    def trained(name: str, steps: int, seed: int, distill: dict[str, Any]) -> tuple[str, float]:
        options = [f"train.steps={steps}", f"train.name={name}", f"seed={seed}"]
        options += [f"train.distill={json.dumps(distill)}"] if distill else []
        begin = time.process_time()
        summary = voxstill.train(voxstill.load_config(None, *fixed, *options))
        error = 100 * float(summary.dev_error or 0)
        print(f"{name}: {error:.1f} % of words, {time.process_time() - begin:.0f} s of CPU", flush=True)
        return summary.path, error

    teacher, error = trained("teacher", args.teacher_steps, 0, {})
    print(f"| teacher, {args.teacher_steps} steps | {error:.1f} |")
    errors: dict[str, list[float]] = {variant: [] for variant in args.variants}
    for seed in args.seeds:
        for variant, row in errors.items():
            distill = VARIANTS[variant] and {"checkpoint": teacher, **VARIANTS[variant]}
            row.append(trained(f"{variant.replace(' ', '-')}-{seed}", args.steps, seed, distill)[1])
    for variant, row in errors.items():
        print(f"| {variant} | " + " | ".join(f"{value:.1f}" for value in row) + " |")


if __name__ == "__main__":
    main()
