"""Leave one speaker out on spoken digits: teacher, labels and student for every speaker that training never heard.

    python examples/fsdd/strings.py --manifest FSDD/manifest.jsonl --output work/fsdd/corpus
    python benchmarks/fsdd.py --corpus work/fsdd/corpus/manifest.jsonl

Labels are made once: the held-out speaker changes the split, not the utterances. Prints the table of
`docs/results.md` and writes the figures to `benchmarks/results/fsdd.json`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")


def main() -> None:
    """Run the line once for each speaker and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", required=True, help="manifest written by examples/fsdd/strings.py")
    parser.add_argument("--config", default=str(HERE.parent / "examples/fsdd/fsdd.yaml"))
    parser.add_argument("--teacher", help="another teacher, such as `reference`")
    parser.add_argument("--speakers", nargs="*", default=SPEAKERS)
    parser.add_argument("--output", default=str(HERE / "results/fsdd.json"))
    parser.add_argument("--set", action="append", default=[], help="passed on to voxstill")
    args = parser.parse_args()
    extra = [f"teacher={args.teacher}"] if args.teacher else []
    rows = {speaker: run(args, speaker, [*extra, *args.set]) for speaker in args.speakers}
    Path(args.output).write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))


def run(args: argparse.Namespace, speaker: str, overrides: list[str]) -> dict[str, Any]:
    """The whole line with one speaker held out; the next one in the alphabet is the dev split."""
    dev = SPEAKERS[(SPEAKERS.index(speaker) + 1) % len(SPEAKERS)]
    settings = [
        f"source.uri={args.corpus}",
        f"source.test_speakers=[{speaker}]",
        f"source.dev_speakers=[{dev}]",
        f"train.name=fsdd-{speaker}",
        *overrides,
    ]
    command = [sys.executable, "-m", "voxstill.cli", "run", args.config, "--json"]
    for each in settings:
        command += ["--set", each]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Markdown: a row for each held-out speaker and the mean."""
    head = (
        "held out",
        "teacher isolated",
        "teacher strings",
        "labels",
        "kept labels",
        "kept",
        "student isolated",
        "student strings",
    )
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    figures: list[list[float]] = []
    for speaker, row in rows.items():
        labels = next(step["figures"] for step in row["steps"] if step["step"] == "filter")
        teacher, student = (row[side]["by_dataset"] or {} for side in ("teacher", "student"))
        figures.append(
            [
                *(teacher.get(name, {}).get("wer", float("nan")) for name in ("isolated", "strings")),
                *(labels.get(name, float("nan")) for name in ("wer_before", "wer_after", "kept")),
                *(student[name]["wer"] for name in ("isolated", "strings")),
            ]
        )
        lines.append(f"| {speaker} | " + " | ".join(f"{100 * each:.1f}" for each in figures[-1]) + " |")
    means = [sum(column) / len(column) for column in zip(*figures, strict=True)]
    lines.append("| mean | " + " | ".join(f"{100 * each:.1f}" for each in means) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
