"""Utterances a CPU-second of our CTC beam search, of flashlight-text and of pyctcdecode, at an equal beam.

    python benchmarks/decode.py --peers path/to/python

`--peers` is the Python of an environment with numpy older than 2, flashlight-text and pyctcdecode; without it ours runs
alone. All run in turn, round after round, on the same core and the same random log-probabilities: flat ones, in which
many tokens are likely, and peaky ones, as a student gives them. `all tokens` prunes nothing. `pruned` looks at the
beam + 1 likeliest tokens of a frame in flashlight-text, and prunes as it does by itself in pyctcdecode, which would
take half a minute an utterance else. Ours leaves out what cannot matter, and rounds the beam up to a power of two. Our
times hold words, times and confidences. Medians; also the mean logarithm of the probabilities of the texts that were
found, for the first utterances. Writes `benchmarks/results/decode.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

from voxstill.decode import ctc, prefixes  # noqa: E402
from voxstill.decode.fusion import Fusion, fusion  # noqa: E402
from voxstill.text import kneser_ney, lm  # noqa: E402

HERE = Path(__file__).parent
BLANK_SHARE = 0.75


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", metavar="PYTHON")
    parser.add_argument("--utterances", type=int, default=100)
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--beam", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", default=str(HERE / "results/decode.json"))
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # the peers' process too
    draw = np.random.default_rng(0)
    shape = (args.utterances, args.frames, args.tokens)
    made = {"flat": flat(draw, shape), "peaky": peaky(draw, shape)}
    pieces = [f"▁{k}" for k in range(args.tokens - 1)] + [""]
    with tempfile.TemporaryDirectory() as folder:
        fusions = {
            "ours": fusion(pieces),
            "ours, 3-gram": fusion(pieces, trigrams(draw, Path(folder), pieces), 0.5, 1.0),
        }
        for name, log_probs_BFV in made.items():
            np.save(f"{folder}/{name}.npy", log_probs_BFV)
            for fused in fusions.values():
                ours(log_probs_BFV[:1], fused, args.beam, pieces)  # compiled
        rounds: dict[str, dict[str, list[tuple[float, float]]]] = {name: {} for name in made}
        with peers(args.peers) as worker:
            for _ in range(args.rounds):
                for name, log_probs_BFV in made.items():
                    for who, fused in fusions.items():
                        rounds[name].setdefault(who, []).append(ours(log_probs_BFV, fused, args.beam, pieces))
                    for who, asked in PEERS.items() if args.peers else ():
                        found = ask(worker, f"{folder}/{name}.npy", {**asked, "beam": args.beam}, args.utterances)
                        rounds[name].setdefault(who, []).append(found)
    figures = {
        name: {
            who: {"utterances_per_second": median(found, 0), "spread": spread(found), "mean_score": median(found, 1)}
            for who, found in each.items()
        }
        for name, each in rounds.items()
    }
    settings = {name: value for name, value in vars(args).items() if isinstance(value, int)}
    Path(args.output).write_text(json.dumps({"settings": settings, **figures}, indent=1) + "\n")
    print("| | flat | peaky |\n|---|---|---|")
    for who in rounds["flat"]:
        cells = (figures[name][who] for name in made)
        print(f"| {who} |", " | ".join(f"{c['utterances_per_second']:.1f} ({c['mean_score']:.3f})" for c in cells), "|")


PEERS: dict[str, dict[str, Any]] = {
    "flashlight-text, all tokens": {"peer": "flashlight", "all_tokens": True, "one_in": 20},
    "flashlight-text, pruned": {"peer": "flashlight", "all_tokens": False, "one_in": 1},
    "pyctcdecode, pruned": {"peer": "pyctcdecode", "one_in": 20},
}
"""What is asked of the process of the peers; the slow ones decode one in so many utterances."""
COMPARED = 5
"""So many utterances are in the mean score of all."""


def ours(log_probs_BFV: NDArray[np.float32], fused: Fusion, beam: int, pieces: list[str]) -> tuple[float, float]:
    """Utterances a second, and the mean score."""
    num, frames, tokens = log_probs_BFV.shape
    ids = [str(k) for k in range(num)]
    start = time.process_time()
    ctc.beam(
        log_probs_BFV,
        [frames] * num,
        width=beam,
        fusion=fused,
        ids=ids,
        pieces=pieces,
        blank_id=tokens - 1,
        frame_ms=80,
    )
    seconds = time.process_time() - start
    places = 1 << (beam - 1).bit_length()
    scores = [
        prefixes.search(each, tokens - 1, places, ctc.MOST_TOKENS, ctc.BAND, fused)[1]
        for each in log_probs_BFV[:COMPARED]
    ]
    return num / seconds, float(np.mean(scores))


class peers:  # noqa: N801
    """The process of the peers while the block runs; None where there is no Python for it."""

    def __init__(self, python: str | None) -> None:
        self.python = python

    def __enter__(self) -> subprocess.Popen[str] | None:
        self.process = None
        if self.python:
            command = [self.python, str(HERE / "decode_peers.py")]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self.process

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.communicate()


def ask(worker: subprocess.Popen[str] | None, file: str, asked: dict[str, Any], utterances: int) -> tuple[float, float]:
    """Utterances a second, and the mean score."""
    assert worker is not None
    assert worker.stdin is not None
    assert worker.stdout is not None
    num = max(utterances // asked["one_in"], 1)
    print(json.dumps({**asked, "file": file, "utterances": num}), file=worker.stdin, flush=True)
    answer = json.loads(worker.stdout.readline())
    return num / answer["seconds"], float(np.mean(answer["scores"][:COMPARED]))


def flat(draw: np.random.Generator, shape: tuple[int, int, int]) -> NDArray[np.float32]:
    """Log-probabilities in which many tokens are likely."""
    return normal(draw.normal(0, 1, shape))


def peaky(draw: np.random.Generator, shape: tuple[int, int, int]) -> NDArray[np.float32]:
    """Log-probabilities in which one token is likely in each frame, the blank as a rule."""
    likely_BF = np.where(
        draw.random(shape[:2]) < BLANK_SHARE, shape[2] - 1, draw.integers(shape[2] - 1, size=shape[:2])
    )
    return normal(draw.normal(0, 1, shape) + 10 * (likely_BF[..., None] == np.arange(shape[2])))


def normal(logits_BFV: NDArray[np.float64]) -> NDArray[np.float32]:
    """Log-softmax."""
    found: NDArray[np.float32] = (logits_BFV - np.logaddexp.reduce(logits_BFV, 2)[..., None]).astype(np.float32)
    return found


def trigrams(draw: np.random.Generator, folder: Path, pieces: list[str]) -> lm.LanguageModel:
    """A language model of random sentences."""
    words = [each.removeprefix("▁") for each in pieces[:-1]]
    odds = 1 / np.arange(1, len(words) + 1)
    sentences = (" ".join(draw.choice(words, 10, p=odds / odds.sum())) for _ in range(5000))
    (folder / "words.arpa").write_text("\n".join(kneser_ney.arpa(sentences, 3)) + "\n")
    return lm.read(str(folder / "words.arpa"))


def median(found: list[tuple[float, float]], column: int) -> float:
    """Of the rounds."""
    return statistics.median(each[column] for each in found)


def spread(found: list[tuple[float, float]]) -> list[float]:
    """Slowest and fastest round."""
    return [min(each[0] for each in found), max(each[0] for each in found)]


if __name__ == "__main__":
    main()
