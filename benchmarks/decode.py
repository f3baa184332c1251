"""Utterances a CPU-second of our CTC beam search, of flashlight-text and of pyctcdecode, at an equal beam.

    python benchmarks/decode.py --peers path/to/python

`--peers` is the Python of an environment with numpy older than 2, flashlight-text, kenlm and pyctcdecode; without it
ours runs alone. All run in turn, round after round, on the same core and the same random log-probabilities: flat ones,
in which many tokens are likely, and peaky ones, as a student gives them. `all tokens` prunes nothing. `pruned` looks at
the beam + 1 likeliest tokens of a frame in flashlight-text, and prunes as it does by itself in pyctcdecode, which would
take half a minute an utterance else. `3-gram` has a language model over whole words, the same file for both, and the
32 likeliest tokens of a frame; 50 is the threshold that torchaudio sets. Ours leaves out what cannot matter, and rounds
the beam up to a power of two. Our times hold words, times and confidences. Medians; also the mean score of the texts,
for the first utterances: the logarithm of their probability, with what the language model adds.
Writes `benchmarks/results/decode.json`.

    python benchmarks/decode.py --limits [--student EXP]

tells instead what the limits with a language model cost: how many tokens of a frame are looked at, and how far below
the best. Sentences of a made-up language of `--tokens` words are said so badly that a third of the words are wrong
without the model; how many are with it, and the mean score of the texts found. With `--student` the same of an
experiment that `voxstill run` has judged with `evaluate.lm_order`. Writes `benchmarks/results/decode_limits.json`.
"""

from __future__ import annotations

import argparse
import json
import math
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

from voxstill.core.records import ErrorCounts  # noqa: E402
from voxstill.decoding import ctc, prefix_search  # noqa: E402
from voxstill.decoding.ctc_likelihood import mean_log_likelihood  # noqa: E402
from voxstill.decoding.fusion import Fusion, fusion  # noqa: E402
from voxstill.scoring import words as scored  # noqa: E402
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
    parser.add_argument("--limits", action="store_true")
    parser.add_argument("--student", metavar="EXP")
    parser.add_argument("--output")
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # the peers' process too
    if args.limits:
        limits(args)
        return
    draw = np.random.default_rng(0)
    shape = (args.utterances, args.frames, args.tokens)
    log_probs = {"flat": flat(draw, shape), "peaky": peaky(draw, shape)}
    pieces = [f"▁{k}" for k in range(args.tokens - 1)] + [""]
    with tempfile.TemporaryDirectory() as folder:
        fusions = {
            "ours": fusion(pieces),
            "ours, 3-gram": fusion(pieces, trigrams(draw, Path(folder), pieces), LM_WEIGHT, WORD_BONUS),
        }
        for name, log_probs_BFV in log_probs.items():
            np.save(f"{folder}/{name}.npy", log_probs_BFV)
            for fused in fusions.values():
                voxstill(log_probs_BFV[:1], fused, args.beam, pieces)  # compiled
        rounds: dict[str, dict[str, list[tuple[float, float]]]] = {name: {} for name in log_probs}
        with PeerProcess(args.peers) as worker:
            for _ in range(args.rounds):
                for name, log_probs_BFV in log_probs.items():
                    for who, fused in fusions.items():
                        rounds[name].setdefault(who, []).append(voxstill(log_probs_BFV, fused, args.beam, pieces))
                    for who, peer in PEERS.items() if args.peers else ():
                        request = {**peer, "beam": args.beam}
                        if "most_tokens" in peer:
                            request["arpa"] = f"{folder}/words.arpa"
                        figure = ask(worker, f"{folder}/{name}.npy", request, args.utterances)
                        rounds[name].setdefault(who, []).append(figure)
    figures = {
        name: {
            who: {
                "utterances_per_second": median(round_figures, 0),
                "spread": spread(round_figures),
                "mean_score": median(round_figures, 1),
            }
            for who, round_figures in systems.items()
        }
        for name, systems in rounds.items()
    }
    settings = {name: value for name, value in vars(args).items() if isinstance(value, int)}
    output = args.output or str(HERE / "results/decode.json")
    Path(output).write_text(json.dumps({"settings": settings, **figures}, indent=1) + "\n")
    print("| | flat | peaky |\n|---|---|---|")
    for who in rounds["flat"]:
        cells = (figures[name][who] for name in log_probs)
        print(f"| {who} |", " | ".join(f"{c['utterances_per_second']:.1f} ({c['mean_score']:.3f})" for c in cells), "|")


LIMITS: dict[str, tuple[int, float]] = {
    "none": (1_000_000, math.inf),
    "so many tokens": (ctc.MOST_TOKENS, math.inf),
    "so far below the best": (1_000_000, ctc.BAND),
    "both, as they are": (ctc.MOST_TOKENS, ctc.BAND),
    "half of both": (ctc.MOST_TOKENS // 2, ctc.BAND / 2),
    "a quarter of both": (ctc.MOST_TOKENS // 4, ctc.BAND / 4),
}
"""The limits that are compared: tokens of a frame, nats below its best."""


def limits(args: argparse.Namespace) -> None:
    """Errors and scores under each of the limits."""
    draw = np.random.default_rng(0)
    words = [f"w{k}" for k in range(args.tokens - 1)]
    likely = [draw.choice(len(words), 8, p=zipf(len(words))) for _ in words]
    with tempfile.TemporaryDirectory() as folder:
        language = model_of([" ".join(words[k] for k in sentence(draw, likely)) for _ in range(5000)], Path(folder))
    fused = fusion([f"▁{word}" for word in words] + [""], language, 0.5, 1.5)
    references = [sentence(draw, likely) for _ in range(args.utterances)]
    utterances = [noisy_frames(draw, tokens, args.tokens) for tokens in references]
    places = 1 << (args.beam - 1).bit_length()
    rows = {"without the model": greedy_row(references, utterances)}
    for name, (most, band) in LIMITS.items():
        prefix_search.search(utterances[0], args.tokens - 1, places, most, band, fused)  # compiled
        start = time.process_time()
        hypotheses = [
            prefix_search.search(log_probs_FV, args.tokens - 1, places, most, band, fused)
            for log_probs_FV in utterances
        ]
        seconds = time.process_time() - start
        rows[name] = {
            "wer": rate(references, [tokens_U.tolist() for tokens_U, _ in hypotheses]),
            "mean_score": float(np.mean([score for _, score in hypotheses])),
            "utterances_per_second": len(references) / seconds,
        }
    results: dict[str, Any] = {"settings": {"utterances": args.utterances, "tokens": args.tokens, "beam": args.beam}}
    results["made up"] = rows
    if args.student:
        results["student"] = student_rows(args.student)
    Path(args.output or HERE / "results/decode_limits.json").write_text(json.dumps(results, indent=1) + "\n")
    for title in (key for key in results if key != "settings"):
        print(f"\n| {title} | WER | mean score | utterances a second |\n|---|---|---|---|")
        for name, row in results[title].items():
            score, speed = (row.get(key) for key in ("mean_score", "utterances_per_second"))
            cells = (
                f"{100 * row['wer']:.2f} %",
                *("" if value is None else f"{value:.3f}" for value in (score, speed)),
            )
            print(f"| {name} |", " | ".join(cells), "|")


def zipf(num: int) -> NDArray[np.float64]:
    """Zipf probabilities of `num` words."""
    odds = 1 / np.arange(1, num + 1)
    return np.asarray(odds / odds.sum())


def sentence(draw: np.random.Generator, likely: list[NDArray[np.int64]]) -> list[int]:
    """Ten words of the language: four in five are among the eight that often follow the one before."""
    words = [int(draw.choice(len(likely), p=zipf(len(likely))))]
    while len(words) < 10:
        often = draw.random() < 0.8
        words.append(int(draw.choice(likely[words[-1]]) if often else draw.choice(len(likely), p=zipf(len(likely)))))
    return words


def noisy_frames(draw: np.random.Generator, words: list[int], num_tokens: int) -> NDArray[np.float32]:
    """The frames of a sentence: blanks, and one or two of each word, in which others are likely, too."""
    rows = []
    for word in words:
        rows += [num_tokens - 1] * int(draw.integers(1, 5)) + [word] * int(draw.integers(1, 3))
    truth_F = np.array([*rows, num_tokens - 1])
    logits_FV = draw.normal(0, 1.5, (len(truth_F), num_tokens))
    logits_FV[np.arange(len(truth_F)), truth_F] += np.where(truth_F == num_tokens - 1, 12, 6)
    return normal(logits_FV)


def greedy_row(references: list[list[int]], utterances: list[NDArray[np.float32]]) -> dict[str, Any]:
    """Word error rate of greedy decoding."""
    best = [log_probs_FV.argmax(1) for log_probs_FV in utterances]
    collapsed = [
        best_F[(np.diff(best_F, prepend=-1) != 0) & (best_F != utterances[0].shape[1] - 1)].tolist() for best_F in best
    ]
    return {"wer": rate(references, collapsed)}


def rate(references: list[list[int]], hypotheses: list[list[int]]) -> float:
    """Word error rate."""
    counts = ErrorCounts.sum(
        scored.count(list(map(str, reference)), list(map(str, hypothesis)))
        for reference, hypothesis in zip(references, hypotheses, strict=True)
    )
    return counts.errors / counts.reference


def student_rows(experiment: str) -> dict[str, Any]:
    """Word error rates of an experiment with the language model of its labels."""
    from voxstill.core import config
    from voxstill.evaluation import recognition
    from voxstill.pipeline import judge
    from voxstill.pipeline.judged_split import of_split
    from voxstill.storage.rundir import RunDir

    run = RunDir(Path(experiment))
    cfg = config.load(str(run.config))
    judged = recognition.references(cfg, of_split(cfg).utterances)
    rows = {"without the model": {"wer": recognition.evaluate(cfg, experiment, judged).errors.rates.wer}}
    for name, (ctc.MOST_TOKENS, ctc.BAND) in LIMITS.items():
        figures = recognition.evaluate(judge.with_lm(cfg, run.lm), experiment, judged)
        rows[name] = {"wer": figures.errors.rates.wer}
    return rows


LM_WEIGHT, WORD_BONUS = 0.5, 1.0
_FLASHLIGHT_LM = {
    "peer": "flashlight",
    "most_tokens": ctc.MOST_TOKENS,
    "lm_weight": LM_WEIGHT,
    "word_bonus": WORD_BONUS,
}
"""The same model, words and weights as ours, and as many tokens of a frame."""
PEERS: dict[str, dict[str, Any]] = {
    "flashlight-text, all tokens": {"peer": "flashlight", "all_tokens": True, "one_in": 20},
    "flashlight-text, pruned": {"peer": "flashlight", "all_tokens": False, "one_in": 1},
    "pyctcdecode, pruned": {"peer": "pyctcdecode", "one_in": 20},
    "flashlight-text, 3-gram": {**_FLASHLIGHT_LM, "beam_threshold": None, "one_in": 4},
    "flashlight-text, 3-gram, threshold 50": {**_FLASHLIGHT_LM, "beam_threshold": 50, "one_in": 4},
}
"""Requests to the process of the peers; the slow ones decode one in `one_in` utterances."""
COMPARED = 5
"""So many utterances are in the mean score of all."""


def voxstill(log_probs_BFV: NDArray[np.float32], fused: Fusion, beam: int, pieces: list[str]) -> tuple[float, float]:
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
        prefix_search.search(log_probs_FV, tokens - 1, places, ctc.MOST_TOKENS, ctc.BAND, fused)[1]
        for log_probs_FV in log_probs_BFV[:COMPARED]
    ]
    return num / seconds, float(np.mean(scores))


class PeerProcess:
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


def ask(
    worker: subprocess.Popen[str] | None, file: str, request: dict[str, Any], utterances: int
) -> tuple[float, float]:
    """Utterances a second, and the mean score."""
    assert worker is not None
    assert worker.stdin is not None
    assert worker.stdout is not None
    num = max(utterances // request["one_in"], 1)
    print(json.dumps({**request, "file": file, "utterances": num}), file=worker.stdin, flush=True)
    answer = json.loads(worker.stdout.readline())
    scores = answer["scores"][:COMPARED]
    if "arpa" in request:
        scores = [total(*one, request["arpa"]) for one in zip(np.load(file), scores, strict=False)]
    return num / answer["seconds"], float(np.mean(scores))


def total(log_probs_FV: NDArray[np.float32], tokens: list[int], arpa: str) -> float:
    """The score of a text that our search would give it: summed over all alignments, with the language model."""
    mean = mean_log_likelihood(log_probs_FV, tokens, blank_id=log_probs_FV.shape[1] - 1)
    assert mean is not None
    language = sum(lm.read(arpa).logprobs([str(token) for token in tokens]))
    return mean * len(tokens) + LM_WEIGHT * language + WORD_BONUS * len(tokens)


def flat(draw: np.random.Generator, shape: tuple[int, int, int]) -> NDArray[np.float32]:
    """Log-probabilities in which many tokens are likely."""
    return normal(draw.normal(0, 1, shape))


def peaky(draw: np.random.Generator, shape: tuple[int, int, int]) -> NDArray[np.float32]:
    """Log-probabilities in which one token is likely in each frame, the blank as a rule."""
    likely_BF = np.where(
        draw.random(shape[:2]) < BLANK_SHARE, shape[2] - 1, draw.integers(shape[2] - 1, size=shape[:2])
    )
    return normal(draw.normal(0, 1, shape) + 10 * (likely_BF[..., None] == np.arange(shape[2])))


def normal(logits_V: NDArray[np.float64]) -> NDArray[np.float32]:
    """Log-softmax over the last axis."""
    log_probs_V: NDArray[np.float32] = (logits_V - np.logaddexp.reduce(logits_V, -1)[..., None]).astype(np.float32)
    return log_probs_V


def trigrams(draw: np.random.Generator, folder: Path, pieces: list[str]) -> lm.LanguageModel:
    """A language model of random sentences."""
    words = [piece.removeprefix("▁") for piece in pieces[:-1]]
    return model_of([" ".join(draw.choice(words, 10, p=zipf(len(words)))) for _ in range(5000)], folder)


def model_of(sentences: list[str], folder: Path) -> lm.LanguageModel:
    """The 3-gram model of sentences."""
    (folder / "words.arpa").write_text("\n".join(kneser_ney.arpa(sentences, 3)) + "\n")
    return lm.read(str(folder / "words.arpa"))


def median(rounds: list[tuple[float, float]], column: int) -> float:
    """Median of a column over the rounds."""
    return statistics.median(figure[column] for figure in rounds)


def spread(rounds: list[tuple[float, float]]) -> list[float]:
    """Slowest and fastest round."""
    return [min(figure[0] for figure in rounds), max(figure[0] for figure in rounds)]


if __name__ == "__main__":
    main()
