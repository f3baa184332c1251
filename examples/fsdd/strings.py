"""Digits said one by one become digit strings: words of one speaker joined with pauses, byte-identical for a seed.

    python examples/fsdd/strings.py --manifest FSDD/manifest.jsonl --output work/fsdd/corpus

The manifest that is written names every single digit (data set `isolated`, the audio where it was) and the strings
(data set `strings`), with their texts: voxstill shows them to nobody but the scoring.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from voxstill.audio import codec
from voxstill.core import pcm
from voxstill.core.records import fingerprint

PAUSE_MS = (60, 350)
EDGE_MS = (80, 200)
Row = dict[str, Any]


def main() -> None:
    """Read one manifest, write another and the strings' audio beside it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--manifest", type=Path, required=True, help="JSONL with audio, text and speaker")
    parser.add_argument("--output", type=Path, required=True, help="folder for manifest.jsonl and the strings")
    parser.add_argument("--strings", type=int, default=240, help="strings of each speaker")
    parser.add_argument("--shortest", type=int, default=3, help="fewest digits in a string")
    parser.add_argument("--longest", type=int, default=6, help="most digits in a string")
    parser.add_argument("--dataset", help="name of the data set of all, instead of `isolated` and `strings`")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if not 1 <= args.shortest <= args.longest:
        sys.exit(f"error: strings of {args.shortest} to {args.longest} digits: `--shortest` must be 1 to `--longest`")
    try:
        lines = args.manifest.read_text(encoding="utf-8-sig").splitlines()
        isolated = [single(json.loads(line), args.manifest.parent) for line in lines if line.strip()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(
            f"error: `{args.manifest}` cannot be read: {type(error).__name__}: {error}\n"
            "  fix: each line must be a JSON object with `id`, `audio`, `text` and `speaker`"
        )
    counts = Counter(row["speaker"] for row in isolated)
    if not counts or min(counts.values()) < args.longest:
        sys.exit(f"error: `{args.manifest}` must have {args.longest} digits or more of each speaker")
    (args.output / "audio").mkdir(parents=True, exist_ok=True)
    strings = []
    for speaker in sorted({row["speaker"] for row in isolated}):
        own = [row for row in isolated if row["speaker"] == speaker]
        for number in range(args.strings):
            rng = random.Random(fingerprint(args.seed, speaker, number))
            chosen = rng.sample(own, rng.randint(args.shortest, args.longest))
            strings.append(joined(f"{speaker}-string-{number:04}", chosen, args.output, rng))
    corpus = [{**row, "dataset": args.dataset or row["dataset"]} for row in (*isolated, *strings)]
    written = (json.dumps(row, ensure_ascii=False) + "\n" for row in corpus)
    (args.output / "manifest.jsonl").write_text("".join(written), encoding="utf-8")


def single(row: Row, folder: Path) -> Row:
    """The row of a digit said alone, with the path of its audio."""
    names = ("id", "text", "speaker")
    return {
        **{name: row[name] for name in names},
        "audio": str((folder / row["audio"]).resolve()),
        "dataset": "isolated",
    }


def joined(name: str, chosen: list[Row], folder: Path, rng: random.Random) -> Row:
    """One string: the digits in order between pauses as faint as the least step of 16 bits."""
    hiss = np.random.default_rng(int(fingerprint(name), 16))

    def pause(limits: tuple[int, int]) -> Any:
        return hiss.integers(-1, 2, pcm.ms_to_samples(rng.randint(*limits)), dtype=np.int16)

    pieces = [pause(EDGE_MS)]
    for row in chosen:
        pieces += [codec.decode(Path(row["audio"]).read_bytes()).samples_T, pause(PAUSE_MS)]
    pieces.append(pause(EDGE_MS))
    (folder / f"audio/{name}.flac").write_bytes(codec.encode(np.concatenate(pieces), "flac"))
    return {
        "id": name,
        "audio": f"audio/{name}.flac",
        "text": " ".join(row["text"] for row in chosen),
        "speaker": chosen[0]["speaker"],
        "dataset": "strings",
    }


if __name__ == "__main__":
    main()
