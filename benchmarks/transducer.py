"""Transducer decoding, greedy and by beam search: seconds of audio in a CPU-second, the encoder left out.

    python benchmarks/transducer.py --before OLD/src

Utterances of 3 to 20 s have four tokens a second at random times, which the joint gives a logit of their own and the
predictor counts; the products of both are those of a student, of the width and vocabulary that are named. So decoding
has the work and the order of events of speech, and all that is measured is the search. `--before` is the `src` folder
of another checkout, which is measured in turns with this one, each round in a process of its own on one thread. Prints
a table of medians and writes `benchmarks/results/transducer.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
HERE = Path(__file__).parent
TOKENS_PER_S, FRAME_MS = 4, 80
LEAST_S = 2.0
"""A case is repeated for so long, in CPU-seconds."""
CASES = [
    # width of the joint, tokens, utterances in a batch, beam
    *((320, 500, num, 1) for num in (2, 60)),
    *((640, 1024, num, 1) for num in (2, 60)),
    *((320, 500, num, 4) for num in (2, 8)),
]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, metavar="SRC")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case is not None:
        print(speed(*CASES[args.case]))
        return
    sources = {"now": HERE.parent / "src", **({"before": args.before.resolve()} if args.before else {})}
    speeds: list[dict[str, list[float]]] = [{name: [] for name in sources} for _ in CASES]
    for round_number in range(args.rounds):
        for number, case in enumerate(speeds):
            for name in sorted(sources, reverse=round_number % 2 == 0):
                case[name].append(measured(sources[name], number))
    rows = []
    for (width, num_tokens, num, beam), case in zip(CASES, speeds, strict=True):
        row: dict[str, Any] = {"width": width, "tokens": num_tokens, "utterances": num, "beam": beam}
        row |= {name: round(statistics.median(values), 1) for name, values in case.items()}
        if "before" in case:
            ratios = [one / other for one, other in zip(case["now"], case["before"], strict=True)]
            row["ratio"] = round(statistics.median(ratios), 2)
        rows.append(row)
    figures = {
        "rounds": args.rounds,
        "rows": rows,
        "machine": {"processor": platform.machine(), "python": platform.python_version()},
        "versions": {name: version(name) for name in ("torch", "numpy", "numba")},
    }
    (HERE / "results" / "transducer.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(f"| {' | '.join(rows[0])} |\n|{'---|' * len(rows[0])}")
    for row in rows:
        print(f"| {' | '.join(map(str, row.values()))} |")


def measured(source: Path, number: int) -> float:
    """The speed of a case in a process of its own, with the voxstill of a folder."""
    process = subprocess.run(
        [sys.executable, __file__, "--case", str(number)],
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, **THREADS, "PYTHONPATH": str(source)},
    )
    return float(process.stdout)


def speed(width: int, num_tokens: int, num: int, beam: int) -> float:
    """Seconds of audio in a CPU-second, of a batch."""
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from voxstill.core.config import Decode
    from voxstill.decoding.search import beam_search, decode_transducer
    from voxstill.decoding.transducer import EncodedBatch, TransducerModel

    torch.set_num_threads(1)
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    seconds_B = np.sort(random.uniform(3, 20, num))
    frames_B = (seconds_B * 1000 / FRAME_MS).astype(np.int64)
    times = [
        np.sort(random.integers(0, frames, int(s * TOKENS_PER_S)))
        for s, frames in zip(seconds_B, frames_B, strict=True)
    ]
    time_BU = np.full((num, max(map(len, times)) + 1), 1 << 40)
    for time_U, own_U in zip(time_BU, times, strict=True):
        time_U[: len(own_U)] = own_U
    encoded_BFE = random.normal(size=(num, frames_B[-1], width)).astype(np.float32)
    encoded_BFE[:, :, 0], encoded_BFE[:, :, 1] = np.arange(num)[:, None], np.arange(frames_B[-1])
    lstm, embedding = torch.nn.LSTM(width, width, batch_first=True), torch.nn.Embedding(num_tokens + 1, width)
    projector, head = torch.nn.Linear(width, width), torch.nn.Linear(width, num_tokens + 1)
    with torch.no_grad():
        head.weight[:, :2] = 0  # the numbers of rows, frames and tokens are no features

    @torch.inference_mode()
    def predict(tokens_BU: NDArray[np.int64], memory: tuple[NDArray[np.float32], NDArray[np.float32]] | None) -> Any:
        before = None if memory is None else tuple(map(torch.from_numpy, memory))
        state_BUP, after = lstm(embedding(torch.from_numpy(tokens_BU)), before)
        hidden_LBH, cell_LBH = (tensor.numpy().copy() for tensor in after)
        hidden_LBH[0, :, 0] = 0 if memory is None else memory[0][0, :, 0] + 1  # counts tokens
        predicted_BUP = projector(state_BUP).numpy().copy()
        predicted_BUP[:, 0, 0] = hidden_LBH[0, :, 0]
        return predicted_BUP, (hidden_LBH, cell_LBH)

    @torch.inference_mode()
    def joint(encoded_NE: NDArray[np.float32], predicted_NP: NDArray[np.float32]) -> NDArray[np.float32]:
        logits_NV: NDArray[np.float32] = head(torch.relu(torch.from_numpy(encoded_NE + predicted_NP))).numpy()
        row_N, frame_N, count_N = (array.astype(np.int64) for array in (*encoded_NE[:, :2].T, predicted_NP[:, 0]))
        is_due_N = frame_N >= time_BU[row_N, np.minimum(count_N, time_BU.shape[1] - 1)]
        logits_NV[np.arange(len(row_N)), np.where(is_due_N, count_N * 7 % num_tokens, num_tokens)] += 10
        return logits_NV

    pieces = [f"▁{number}" for number in range(num_tokens)]
    model = TransducerModel(predict=predict, joint=joint, pieces=pieces, blank_id=num_tokens, frame_ms=FRAME_MS)
    batch = EncodedBatch(encoded_BFE=encoded_BFE, frames_B=frames_B.tolist(), ids=list(map(str, range(num))))
    search = beam_search(Decode(beam=beam), pieces)
    first = EncodedBatch(encoded_BFE=encoded_BFE[:1, :20], frames_B=[20], ids=["0"])
    decode_transducer(model, first, search)  # compiled
    begin, num_runs = time.process_time(), 0
    while (passed_s := time.process_time() - begin) < LEAST_S:
        decode_transducer(model, batch, search)
        num_runs += 1
    return num_runs * float(seconds_B.sum()) / passed_s


if __name__ == "__main__":
    main()
