"""Coffee orders of the speech-to-intent benchmark as two folders, one to learn from and one to judge by.

    python examples/coffee/prepare.py --benchmark data/speech-to-intent-benchmark --output data/coffee

Both have `manifest.jsonl` with what was ordered (`slots`), which the training never reads; the first has the grammar.
A third of the clips, drawn by their names, is judged. The benchmark does not say who speaks, so clips of one person may
be in both: where that is known, divide by it and name it `speaker`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
from pathlib import Path

GRAMMAR = Path(__file__).parent / "orders.jsgf"


def main() -> None:
    """Read the labels of the benchmark, write two manifests that name its audio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmark", type=Path, required=True, help="a clone of Picovoice/speech-to-intent-benchmark")
    parser.add_argument("--output", type=Path, required=True, help="folder for `train` and `test`")
    args = parser.parse_args()
    try:
        labels = json.loads((args.benchmark / "data/label/label.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        sys.exit(f"error: `{args.benchmark}` is no clone of the benchmark: {error}")
    rows: dict[str, list[str]] = {"train": [], "test": []}
    for name, label in sorted(labels.items()):
        row = {
            "id": Path(name).stem,
            "audio": str((args.benchmark / "data/speech/clean" / name).resolve()),
            "slots": {slot: " ".join(words.split()) for slot, words in label["slots"].items()},
        }
        part = "test" if hashlib.sha256(name.encode()).digest()[0] % 3 == 0 else "train"
        rows[part].append(json.dumps(row) + "\n")
    for part, lines in rows.items():
        folder = args.output / part
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.jsonl").write_text("".join(lines), encoding="utf-8")
    shutil.copy(GRAMMAR, args.output / "train/coffee.jsgf")


if __name__ == "__main__":
    main()
