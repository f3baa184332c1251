"""Leave one speaker out on spoken digits: teacher, labels and student for every speaker that training never heard.

    python examples/fsdd/strings.py --manifest FSDD/manifest.jsonl --output work/fsdd/corpus
    python benchmarks/fsdd.py --corpus work/fsdd/corpus/manifest.jsonl --no-dev \
        --voices work/fsdd/voices-corpus/manifest.jsonl

The texts of `--voices` are learnt from; those of the corpus are hidden from all but the teacher `reference`. Several
manifests may be given: what the held-out speaker does not say is learnt from. Labels are made once: the held-out
speaker changes the split, not the utterances. Prints the table of `docs/results/corpora.md` and writes the figures to
`benchmarks/results/fsdd.json`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")


def main() -> None:
    """Run the line once for each speaker and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", required=True, nargs="+", help="manifests written by examples/fsdd/strings.py")
    parser.add_argument("--voices", help="manifest of synthetic voices, whose texts are learnt from")
    parser.add_argument("--config", default=str(HERE.parent / "examples/fsdd/fsdd.yaml"))
    parser.add_argument("--teacher", help="another teacher, such as `reference`")
    parser.add_argument("--speakers", nargs="+", default=SPEAKERS, choices=SPEAKERS, metavar="NAME")
    parser.add_argument("--no-dev", action="store_true", help="learn from all five other speakers, without a dev split")
    parser.add_argument("--output", default=str(HERE / "results/fsdd.json"))
    parser.add_argument("--set", action="append", default=[], help="passed on to voxstill")
    args = parser.parse_args()
    extra = [f"teacher={args.teacher}"] if args.teacher else []
    if not args.voices:
        extra.append("plan.weights={}")  # they are of a mixture with voices
    Path(args.output).parent.mkdir(parents=True, exist_ok=True)
    rows: dict[str, dict[str, Any]] = {}
    for speaker in args.speakers:
        rows[speaker] = run(args, speaker, [*extra, *args.set])
        Path(args.output).write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))


def run(args: argparse.Namespace, speaker: str, overrides: list[str]) -> dict[str, Any]:
    """The whole line with one speaker held out; the next one in the alphabet is the dev split, if there is one."""
    dev = SPEAKERS[(SPEAKERS.index(speaker) + 1) % len(SPEAKERS)]
    held_out = {"dev_share": 0.0} if args.no_dev else {"dev_speakers": [dev]}
    sources: list[dict[str, Any]] = [{"uri": args.corpus, "test_speakers": [speaker], **held_out}]
    if args.voices:
        sources.append({"uri": args.voices, "supervised": True, "split": "train"})
    settings = [
        f"source={json.dumps(sources)}",
        f"train.name=fsdd-{speaker}",
        *overrides,
    ]
    command = [sys.executable, "-m", "voxstill.cli", "run", args.config, "--json"]
    for setting in settings:
        command += ["--set", setting]
    before_s = cpu_s()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)  # its message says why
    figures: dict[str, Any] = json.loads(done.stdout)
    return {**figures, "cpu_s": cpu_s() - before_s}


def cpu_s() -> float:
    """Processor time of all commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Markdown: a row for each held-out speaker and the mean; a column that no speaker has figures for is left out."""
    lines: dict[str, dict[str, float]] = {}
    for speaker, row in rows.items():
        labels = next(step["figures"] for step in row["steps"] if step["step"] == "filter")
        teacher, student = (row[side]["by_dataset"] or {} for side in ("teacher", "student"))
        percent = {
            "teacher isolated": teacher.get("isolated", {}).get("wer"),
            "teacher strings": teacher.get("strings", {}).get("wer"),
            "labels": labels.get("wer_before"),
            "kept labels": labels.get("wer_after"),
            "kept": labels.get("kept"),
            "student isolated": student["isolated"]["wer"],
            "student strings": student["strings"]["wer"],
            "student": row["student"]["wer"],
        }
        lines[speaker] = {name: 100 * share for name, share in percent.items() if share is not None}
        lines[speaker]["CPU minutes"] = row["cpu_s"] / 60
    head = list(next(iter(lines.values())))
    lines["mean"] = {name: sum(line[name] for line in lines.values()) / len(lines) for name in head}
    shown = [f"| {name} | " + " | ".join(f"{row[column]:.1f}" for column in head) + " |" for name, row in lines.items()]
    return "\n".join(["| held out | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|", *shown])


if __name__ == "__main__":
    main()
