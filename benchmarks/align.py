"""Time and memory of forced alignment of long recordings, without the model: synthetic emissions with their text.

    python benchmarks/align.py --hours 1 3

Frames of 40 ms, 500 tokens, five tokens a second, lines of 40 tokens. The first and last five minutes have no text, and
every fiftieth line has no audio. Each length runs in a process of its own, so that its peak memory is its own; that of
the emissions is in it. CPU seconds are those of the alignment alone, on one thread, compiled beforehand.
Prints a table and writes `benchmarks/results/align.json`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voxstill.decoding import forced_alignment

HERE = Path(__file__).parent
FRAME_S, NUM_TOKENS, BLANK = 0.04, 500, 0
TOKENS_PER_S, LINE, MISSING = 5, 40, 50
INTRO_S = 300


@dataclass(frozen=True)
class Row:
    """One recording."""

    hours: float
    frames: int
    tokens: int
    emissions_mb: int
    peak_mb: int
    cpu_s: float
    within_two_frames: float
    skipped_lines: int
    lines_without_audio: int


def main() -> None:
    """Measure each length in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--one", action="store_true", help="Measure the one length in this process.")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(asdict(measure(args.hours[0]))))
        return
    rows = []
    print("| hours | frames | tokens | emissions, MB | peak memory, MB | CPU s | starts within two frames |")
    print("|---|---|---|---|---|---|---|")
    for hours in args.hours:
        command = [sys.executable, __file__, "--one", "--hours", str(hours)]
        row = Row(**json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        rows.append(asdict(row))
        print(f"| {row.hours:g} | {row.frames:,} | {row.tokens:,} | {row.emissions_mb} | {row.peak_mb} ", end="")
        print(f"| {row.cpu_s:.1f} | {row.within_two_frames:.2%} |", flush=True)
    (HERE / "results/align.json").write_text(json.dumps(rows, indent=1) + "\n")


def measure(hours: float) -> Row:
    """Align one recording; the first, of a minute, only compiles."""
    random = np.random.default_rng(0)
    log_probs_FV, lines, _ = recording(random, 660)
    forced_alignment.align(log_probs_FV, lines, BLANK)
    log_probs_FV, lines, start_U = recording(random, hours * 3600)
    begin = time.process_time()
    aligned = forced_alignment.align(log_probs_FV, lines, BLANK)
    cpu_s = time.process_time() - begin
    is_spoken_U = start_U >= 0
    distance_U = np.abs(aligned.start_U - start_U)[is_spoken_U]
    firsts = np.cumsum([0, *(len(ids) for ids in lines[:-1])])
    return Row(
        hours=hours,
        frames=len(log_probs_FV),
        tokens=len(start_U),
        emissions_mb=log_probs_FV.nbytes // 2**20,
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        cpu_s=cpu_s,
        within_two_frames=float((distance_U <= 2).mean()),
        skipped_lines=int((aligned.start_U[firsts] < 0).sum()),
        lines_without_audio=int((~is_spoken_U[firsts]).sum()),
    )


def recording(
    random: np.random.Generator, seconds: float
) -> tuple[NDArray[np.float32], list[list[int]], NDArray[np.int64]]:
    """Noisy emissions, the lines of the text, and the first frame of each token, -1 in lines without audio."""
    num_frames, intro = int(seconds / FRAME_S), int(INTRO_S / FRAME_S)
    tokens_U = random.integers(1, NUM_TOKENS, int((seconds - 2 * INTRO_S) * TOKENS_PER_S) // LINE * LINE)
    is_spoken_U = np.arange(len(tokens_U)) // LINE % MISSING != MISSING - 1
    num_spoken = int(is_spoken_U.sum())
    start_U = np.full(len(tokens_U), -1)
    start_U[is_spoken_U] = intro + np.sort(random.choice(num_frames - 2 * intro, num_spoken, replace=False))
    frame_F = np.full(num_frames, BLANK)
    without_text_F = np.concatenate([np.arange(0, intro, 5), np.arange(num_frames - intro, num_frames, 5)])
    frame_F[without_text_F] = random.integers(1, NUM_TOKENS, len(without_text_F))
    frame_F[start_U[is_spoken_U]] = tokens_U[is_spoken_U]
    log_probs_FV = np.empty((num_frames, NUM_TOKENS), np.float32)
    for begin in range(0, num_frames, 10_000):
        best_F = frame_F[begin : begin + 10_000]
        scores_FV = random.standard_normal((len(best_F), NUM_TOKENS), np.float32)
        scores_FV[np.arange(len(best_F)), best_F] += 10
        scores_FV -= np.log(np.exp(scores_FV).sum(1, keepdims=True))
        log_probs_FV[begin : begin + 10_000] = scores_FV
    return log_probs_FV, tokens_U.reshape(-1, LINE).tolist(), start_U


if __name__ == "__main__":
    main()
