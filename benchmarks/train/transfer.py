"""Is pre-training of use? The same student from a pre-trained encoder and from scratch, on a tenth of the labels.

    python benchmarks/train/transfer.py --digits FSDD/manifest.jsonl --audio FSDD/manifest.jsonl MORE/manifest.jsonl ...

A tiny encoder hears all the audio of `--audio`, but that of the digits' test speaker; texts are not used. It does so
once for each of `--start`: codes of mels, and codes of cepstra. Then students learn from a tenth of the digits' labels,
five of each digit and speaker: the words by CTC, the words as classes, and the speakers. Each begins with a pre-trained
encoder and, for the same number of steps, with a fresh one; the learning rate of each is the best of `--lr` on the dev
split, seed 0. Words are judged on a speaker that no student has heard. Speakers are judged on their other recordings
(`accuracy`), and by telling apart those two that no student has heard (`eer`); these two are the dev split then.

Prints the table of `docs/results/pretraining.md` and writes `benchmarks/results/transfer.json` after each figure; a
figure that is there is not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DEV, TEST = "theo", "yweweler"
# a digit lasts 0.4 s: spans are short, so that something of it is left to hear
BEST_RQ = ["pretrain.method=best_rq", "pretrain.mask_ms=160", "pretrain.min_masks=1", "train.lr=1e-3"]
STARTS: dict[str, list[str] | None] = {
    "scratch": None,
    "mels": BEST_RQ,
    "cepstra": [*BEST_RQ, "pretrain.targets=cepstra"],
}
"""Encoders by what they were pre-trained on, and how; the first is fresh."""
TASKS: dict[str, tuple[str, list[str]]] = {
    "words": ("digits", ["student.units=word"]),
    "classes": ("digits", ["student.task=classes"]),
    "speakers": ("speakers", ["student.task=speakers"]),
}
"""The work folder of each, and what it sets."""
COMMON = [
    "plan.budget_ms=12000",
    "augment.noise_prob=0.3",
    "train.validate_every=100000",
]
Row = dict[str, Any]


def main() -> None:
    """Pre-train, let students learn from both beginnings, print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", required=True, help="manifest of the Free Spoken Digit Dataset")
    parser.add_argument("--audio", required=True, nargs="+", help="manifests; texts in them are not used")
    parser.add_argument("--start", nargs="+", default=list(STARTS), choices=STARTS)
    parser.add_argument("--task", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--pretrain-steps", type=int, default=4000)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--lr", nargs="+", type=float, default=[6e-4, 2e-3])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--work", default="work/transfer")
    parser.add_argument("--output", default=str(HERE.parent / "results/transfer.json"))
    args = parser.parse_args()
    work = Path(args.work)
    rows: list[Row] = json.loads(Path(args.output).read_text()) if Path(args.output).exists() else []
    for name, manifest in manifests(args, work).items():
        prepare(work / name, manifest, labelled=name != "audio")
    for start in args.start:
        checkpoint = pretrain(args, work, start)
        for task in args.task:
            train_students(args, rows, {"task": task, "start": start}, checkpoint)
    print(table(rows))


def manifests(args: argparse.Namespace, work: Path) -> dict[str, list[Row]]:
    """Three corpora: all the audio; a tenth of the digits to learn words from; the same to learn speakers from."""

    def rows(manifest: str) -> list[Row]:
        entries = [json.loads(line) for line in Path(manifest).read_text(encoding="utf-8").splitlines()]
        return [{**row, "audio": str((Path(manifest).parent / row["audio"]).resolve())} for row in entries]

    digits = rows(args.digits)
    of_digits = {row["audio"] for row in digits}
    tenth = {row["id"] for row in digits if int(row["id"].rsplit("_", 1)[1]) % 10 == 0}

    def split(row: Row, seen: str) -> Row | None:
        unseen = {DEV: "dev", TEST: "test"}.get(row["speaker"])
        if seen == "words":
            return {**row, "split": unseen or "train"} if unseen or row["id"] in tenth else None
        return {**row, "split": "dev" if unseen else "train" if row["id"] in tenth else "test"}

    audio = [
        {**row, "id": f"{i}-{row['id']}", "text": None, "split": "dev" if row["speaker"] == DEV else "train"}
        for i, manifest in enumerate(args.audio)
        for row in rows(manifest)
        if not (row["audio"] in of_digits and row["speaker"] == TEST)
    ]
    return {
        "audio": audio,
        "digits": [row for digit in digits if (row := split(digit, "words"))],
        "speakers": [row for digit in digits if (row := split(digit, "speakers"))],
    }


def prepare(work: Path, rows: list[Row], *, labelled: bool) -> None:
    """Utterances, and shards with the human texts where they are `labelled`; what is there is not made again."""
    work.mkdir(parents=True, exist_ok=True)
    manifest = work / "manifest.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    settings = [f"work={work}", "teacher=reference", "engine=inline"]
    voxstill_json(["index", str(manifest), "--work", str(work)], settings)
    for command in ("label", "filter", "shard") if labelled else ():
        voxstill_json([command, str(work)], settings)


def pretrain(args: argparse.Namespace, work: Path, start: str) -> str | None:
    """The folder of an encoder that has heard all the audio; None for a fresh one."""
    own = STARTS[start]
    if own is None:
        return None
    config = work / "pretrain.yaml"
    config.write_text(f"work: {work / 'audio'}\nengine: inline\n")
    settings = [*own, f"train.steps={args.pretrain_steps}", f"train.name=transfer-{start}", "plan.budget_ms=20000"]
    return str(Path(voxstill_json(["pretrain", str(config)], settings)["path"]) / "model")


def train_students(args: argparse.Namespace, rows: list[Row], about: Row, checkpoint: str | None) -> None:
    """Students of every learning rate with the first seed, and of the best one with the others."""
    for lr in args.lr:
        train_student(args, rows, {**about, "lr": lr, "seed": args.seeds[0]}, checkpoint)
    for seed in args.seeds[1:]:
        train_student(args, rows, {**about, "lr": best_lr(rows, about), "seed": seed}, checkpoint)


def best_lr(rows: list[Row], about: Row) -> float:
    """The learning rate with the best figure on the dev speaker, of those that the first seed tried."""
    own = [row for row in rows if about.items() <= row.items()]
    return float(min((row for row in own if row["seed"] == own[0]["seed"]), key=lambda row: float(row["dev"]))["lr"])


def train_student(args: argparse.Namespace, rows: list[Row], about: Row, checkpoint: str | None) -> None:
    """One student and its figures, added to the rows, unless they are there."""
    if any(about.items() <= row.items() for row in rows):
        return
    name, own = TASKS[about["task"]]
    work = Path(args.work) / name
    config = work / "train.yaml"
    config.write_text(f"work: {work}\nteacher: reference\nengine: inline\n")
    settings = [*COMMON, *own, f"train.steps={args.steps}", f"train.lr={about['lr']}", f"seed={about['seed']}"]
    settings += [f"train.name=transfer-{about['task']}"]
    settings += [f"student.checkpoint={checkpoint}"] if checkpoint else []
    run = voxstill_json(["train", str(config)], settings)["path"]
    dev, test = (
        voxstill_json(["evaluate", run, "--on", split, "--config", str(config)], settings) for split in ("dev", "test")
    )
    if about["task"] == "speakers":
        figures = {"dev": dev["eer"], "eer": dev["eer"], "min_dcf": dev["min_dcf"], "accuracy": test["accuracy"]}
    elif about["task"] == "classes":
        figures = {"dev": 1 - dev["accuracy"], "accuracy": test["accuracy"], "macro_f1": test["macro_f1"]}
    else:
        figures = {"dev": dev["wer"], "wer": test["wer"]}
    rows.append({**about, **figures})
    Path(args.output).write_text(json.dumps(rows, indent=1) + "\n")
    print(json.dumps(rows[-1]), file=sys.stderr)


def voxstill_json(command: list[str], settings: list[str]) -> Row:
    """Run a command of voxstill; return the JSON that it prints."""
    argv = [sys.executable, "-m", "voxstill.cli", *command, "--json"]
    for setting in settings:
        argv += ["--set", setting]
    done = subprocess.run(
        argv, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    figures: Row = json.loads(done.stdout)
    return figures


def table(rows: list[Row]) -> str:
    """Markdown: of each encoder the mean over the seeds, and each seed."""
    lines = [f"| task | figure, % | {' | '.join(STARTS)} |", "|---" * (2 + len(STARTS)) + "|"]
    for task, figure in (("words", "wer"), ("classes", "accuracy"), ("speakers", "accuracy"), ("speakers", "eer")):
        shown = [cell(rows, {"task": task, "start": start}, figure) for start in STARTS]
        lines.append(f"| {task} | {figure} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def cell(rows: list[Row], about: Row, figure: str) -> str:
    """The mean over seeds in percent and the figure of each seed; empty where there are none."""
    own = [row for row in rows if about.items() <= row.items()]
    if not own:
        return ""
    lr = best_lr(rows, about)
    percents = [100 * row[figure] for row in own if row["lr"] == lr]
    return f"{statistics.mean(percents):.1f} ({', '.join(f'{percent:.1f}' for percent in percents)})"


if __name__ == "__main__":
    main()
