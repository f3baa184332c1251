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
says what the test split is. Prints the table of `docs/results.md` and adds the figures to
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
        found = one(args, name, manifest, speaker)
        rows = json.loads(output.read_text()) if output.exists() else {}
        rows[f"{name}, {speaker} held out" if speaker else name] = found
        output.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(json.loads(output.read_text())))


def one(args: argparse.Namespace, name: str, manifest: str, speaker: str | None) -> dict[str, Any]:
    """Labels, and students from all of them and from those kept."""
    settings = [f"work=work/filter-{name}", f"source.uri={json.dumps(manifest)}", f"train.steps={args.steps}"]
    settings += args.set
    if speaker is not None:
        after = (args.test_speakers.index(speaker) + 1) % len(args.test_speakers)
        settings += [f"source.test_speakers=[{speaker}]", f"source.dev_speakers=[{args.test_speakers[after]}]"]
    if args.no_student:
        for command in (["index", manifest, "--work", f"work/filter-{name}"], ["label", f"work/filter-{name}"]):
            told(args.config, command, settings)
        labels = told(args.config, ["filter", f"work/filter-{name}"], [*settings, kept(args.keep_share)])
        return {"labels": labels}
    found: dict[str, Any] = {}
    for which, share in (("kept", args.keep_share), ("all", 1.0)):
        run = [*settings, kept(share), f"train.name=filter-{name}-{speaker or 'test'}-{which}"]
        done = told(None, ["run", args.config], run)
        found[which] = done["student"]
        if which == "kept":
            found["labels"] = next(step["figures"] for step in done["steps"] if step["step"] == "filter")
            found["teacher"] = done["teacher"]
    return found


def kept(share: float) -> str:
    """The setting that keeps a share of the labels."""
    return f"filter.keep_share={share}"


def told(config: str | None, command: list[str], settings: list[str]) -> dict[str, Any]:
    """What a command of voxstill prints as JSON."""
    argv = [sys.executable, "-m", "voxstill.cli", *command, "--json"]
    argv += ["--config", config] if config else []
    for each in settings:
        argv += ["--set", each]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Markdown, in percent."""
    lines = [
        "| corpus | labels | kept labels | kept | teacher | student of all | student of the kept |",
        "|---" * 7 + "|",
    ]
    for name, row in rows.items():
        labels = row["labels"]
        shares = [labels["wer_before"], labels["wer_after"], labels["kept"]]
        shares += [row[each]["wer"] if each in row else None for each in ("teacher", "all", "kept")]
        lines.append(f"| {name} | " + " | ".join("" if each is None else f"{100 * each:.1f}" for each in shares) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
