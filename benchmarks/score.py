"""How many pairs a second are scored, beside jiwer and kaldialign, and how long a thousand bootstrap draws take.

    pip install --constraint constraints.txt --editable '.[dev]'
    python benchmarks/score.py

10,000 pairs of 21 words on average, an eighth of them wrong, are scored by each in turn, in one process on one core,
and that is repeated; medians of CPU time. Ours is `voxstill.scoring.words`: words, characters, and both with
an object for each pair. The bootstrap draws 10,000 blocks 1,000 times. Prints a table and writes
`benchmarks/results/score.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

import jiwer  # noqa: E402
import kaldialign  # noqa: E402

from voxstill.scoring import stats, words  # noqa: E402

HERE = Path(__file__).parent
Pairs = list[tuple[str, str]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", default=str(HERE / "results/score.json"))
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    pairs = sentences(args.pairs)
    counted: dict[str, Callable[[Pairs], int]] = {
        "voxstill, words": lambda pairs: words.wer(pairs).errors,
        "jiwer, words": jiwer_words,
        "kaldialign, words": kaldialign_words,
        "voxstill, characters": lambda pairs: words.cer(pairs).errors,
        "jiwer, characters": jiwer_characters,
        "voxstill, words and characters of each": lambda pairs: words.total(scored(pairs)).words.errors,
    }
    seconds: dict[str, list[float]] = {name: [] for name in counted}
    errors: dict[str, int] = {}
    for _ in range(args.rounds):
        for name, count in counted.items():
            start = time.process_time()
            errors[name] = count(pairs)
            seconds[name].append(time.process_time() - start)
    blocks = [row.words for row in scored(pairs)]
    drawing = []
    for seed in range(args.rounds):
        start = time.process_time()
        stats.interval(blocks, 1000, seed)
        drawing.append(time.process_time() - start)
    figures = {
        "pairs": len(pairs),
        "words": sum(len(ref.split()) for ref, _ in pairs),
        "rounds": args.rounds,
        "pairs_per_second": {name: len(pairs) / statistics.median(rounds) for name, rounds in seconds.items()},
        "errors": errors,
        "bootstrap_seconds": statistics.median(drawing),
        "versions": {name: version(name) for name in ("jiwer", "kaldialign", "rapidfuzz", "numpy")},
    }
    Path(args.output).write_text(json.dumps(figures, indent=1) + "\n")
    print("| what | pairs a second | errors counted |\n|---|---|---|")
    for name, rounds in seconds.items():
        print(f"| {name} | {len(pairs) / statistics.median(rounds):,.0f} | {errors[name]:,} |")
    print(f"| 1,000 draws of {len(blocks):,} blocks | {statistics.median(drawing):.2f} s | |")


def sentences(number: int) -> Pairs:
    """Sentences of 5 to 38 words out of 5,000, and recognised versions with errors."""
    rng = random.Random(0)
    vocabulary = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(5000)]
    pairs = []
    for _ in range(number):
        reference = rng.choices(vocabulary, k=rng.randint(5, 38))
        hypothesis = list[str]()
        for word in reference:
            kind = rng.random()
            hypothesis += [] if kind < 0.03 else [rng.choice(vocabulary)] if kind < 0.1 else [word]
            hypothesis += [rng.choice(vocabulary)] if kind > 0.97 else []
        pairs.append((" ".join(reference), " ".join(hypothesis)))
    return pairs


def scored(pairs: Pairs) -> list[words.Scored]:
    """As `voxstill score words` and `voxstill evaluate` do it."""
    return [words.score(str(i), ref, hyp) for i, (ref, hyp) in enumerate(pairs)]


def jiwer_words(pairs: Pairs) -> int:
    """All pairs in one call."""
    output = jiwer.process_words([ref for ref, _ in pairs], [hyp for _, hyp in pairs])
    return int(output.substitutions + output.insertions + output.deletions)


def jiwer_characters(pairs: Pairs) -> int:
    """All pairs in one call."""
    output = jiwer.process_characters([ref for ref, _ in pairs], [hyp for _, hyp in pairs])
    return int(output.substitutions + output.insertions + output.deletions)


def kaldialign_words(pairs: Pairs) -> int:
    """All pairs in one call."""
    return int(
        kaldialign.batch_error_rate([ref.split() for ref, _ in pairs], [hyp.split() for _, hyp in pairs])["total"]
    )


if __name__ == "__main__":
    main()
