"""What the filter is worth on real speech: how wrong labels are before and after, and the student that each teaches.

    python benchmarks/filter_speech.py --corpus fsdd=work/fsdd/corpus/manifest.jsonl --config examples/fsdd/fsdd.yaml \\
        --test-speakers george jackson lucas nicolas theo yweweler
    python benchmarks/filter_speech.py --corpus speechocean762=SPEECHOCEAN/manifest.jsonl \\
        --config examples/free.yaml --steps 1000
    python benchmarks/filter_speech.py --corpus fixtures=FIXTURES/manifest.jsonl --config examples/free.yaml \\
        --no-student

The human texts are hidden from the teacher, the filter and the students; they are there to count errors. Two students
of a corpus learn for the same number of steps: one from all labels, one from the share that is kept. With
`--test-speakers` each of them is held out in turn, and the speaker after them is the dev split; without, the manifest
says what the test split is. Prints the table of `docs/results/corpora.md` and adds the figures to
`benchmarks/results/filter_speech.json`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def main() -> None:
    """Both students of each held-out speaker in turn, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", required=True, metavar="NAME=MANIFEST")
    parser.add_argument("--config", required=True, help="of the line; its work folder becomes `work/filter-NAME`")
    parser.add_argument("--test-speakers", nargs="*", default=[None])
    parser.add_argument("--keep-share", type=float, default=0.65)
    parser.add_argument("--steps", type=int, default=2800)
    parser.add_argument("--no-student", action="store_true", help="of a corpus too small to learn from")
    parser.add_argument("--output", default=str(HERE / "results/filter_speech.json"))
    parser.add_argument("--set", action="append", default=[], help="passed on to voxstill")
    args = parser.parse_args()
    name, _, manifest = args.corpus.partition("=")
    output = Path(args.output)
    for speaker in args.test_speakers:
        row = figures_of(args, name, manifest, speaker)
        rows = json.loads(output.read_text()) if output.exists() else {}
        rows[f"{name}, {speaker} held out" if speaker else name] = row
        output.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(json.loads(output.read_text())))


def figures_of(args: argparse.Namespace, name: str, manifest: str, speaker: str | None) -> dict[str, Any]:
    """Labels, and students from all of them and from those that are kept."""
    settings = [f"work=work/filter-{name}", f"source.uri={json.dumps(manifest)}", f"train.steps={args.steps}"]
    settings += args.set
    if speaker is not None:
        after = (args.test_speakers.index(speaker) + 1) % len(args.test_speakers)
        settings += [f"source.test_speakers=[{speaker}]", f"source.dev_speakers=[{args.test_speakers[after]}]"]
    if args.no_student:
        for command in (["index", manifest, "--work", f"work/filter-{name}"], ["label", f"work/filter-{name}"]):
            voxstill_json(args.config, command, settings)
        labels = voxstill_json(
            args.config, ["filter", f"work/filter-{name}"], [*settings, keep_share_of(args.keep_share)]
        )
        return {"labels": labels}
    row: dict[str, Any] = {}
    for which, share in (("kept", args.keep_share), ("all", 1.0)):
        run = [*settings, keep_share_of(share), f"train.name=filter-{name}-{speaker or 'test'}-{which}"]
        done = voxstill_json(None, ["run", args.config], run)
        row[which] = done["student"]
        if which == "kept":
            row["labels"] = next(step["figures"] for step in done["steps"] if step["step"] == "filter")
            row["teacher"] = done["teacher"]
    return row


def keep_share_of(share: float) -> str:
    """The setting that keeps a share of the labels."""
    return f"filter.keep_share={share}"


def voxstill_json(config: str | None, command: list[str], settings: list[str]) -> dict[str, Any]:
    """Run a command of voxstill; return the JSON that it prints."""
    argv = [sys.executable, "-m", "voxstill.cli", *command, "--json"]
    argv += ["--config", config] if config else []
    for setting in settings:
        argv += ["--set", setting]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Markdown, in percent."""
    lines = [
        "| corpus | labels | kept labels | kept | teacher | student of all | student of the kept |",
        "|---" * 7 + "|",
    ]
    for name, row in rows.items():
        labels = row["labels"]
        shares = [labels["wer_before"], labels["wer_after"], labels["kept"]]
        shares += [row[label_set]["wer"] if label_set in row else None for label_set in ("teacher", "all", "kept")]
        lines.append(
            f"| {name} | " + " | ".join("" if share is None else f"{100 * share:.1f}" for share in shares) + " |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
