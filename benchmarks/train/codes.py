"""How much do the codes of BEST-RQ say of what was spoken, whoever spoke? Nothing is trained.

    python benchmarks/train/codes.py --digits FSDD/manifest.jsonl

The codes of every recording of the Free Spoken Digit Dataset, as `voxstill pretrain` makes them of what it hides. A
naive Bayes classifier counts them, by thirds of a recording, for the digits of five speakers, and names those of the
sixth: the more it finds, the more a code says of the sound and the less of the voice. One digit of ten is chance.

Prints the table of `docs/results/pretraining.md`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from voxstill.audio import codec
from voxstill.core.config import Pretrain
from voxstill.nn import self_supervised
from voxstill.nn.log_mel import LogMel, centred, normalise

PARTS = 3
SMOOTHING = 0.1
Targets = Literal["mels", "cepstra"]


def main() -> None:
    """Make the codes of each way, count them, print what they are worth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", required=True, help="manifest of the Free Spoken Digit Dataset")
    parser.add_argument("--codes", nargs="+", type=int, default=[64, 128, 1024, 8192])
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in Path(args.digits).read_text(encoding="utf-8").splitlines()]
    log_mel = LogMel()
    features: dict[Targets, list[torch.Tensor]] = {"mels": [], "cepstra": []}
    for row in rows:
        samples_T = codec.decode((Path(args.digits).parent / row["audio"]).read_bytes()).samples_T
        mel_BFD, frames_B = log_mel.unnormalised(torch.from_numpy(samples_T)[None], torch.tensor([len(samples_T)]))
        mel_BFD = mel_BFD[:, : int(frames_B)]
        features["mels"].append(normalise(mel_BFD, frames_B))
        features["cepstra"].append(centred(mel_BFD, frames_B))
    digits = np.array([int(row["id"].split("_")[0]) for row in rows])
    speakers = np.array([row["speaker"] for row in rows])
    print("| `pretrain.targets` | `pretrain.codes` | perplexity | digits classified, % |\n|---|---|---|---|")
    for targets, features_of_clips in features.items():
        for num in args.codes:
            cfg = Pretrain(method="best_rq", targets=targets, codes=num)
            quantizer = self_supervised.quantizer(cfg, log_mel.num_mels, 0)
            codes = [quantizer.codes(features_BFD)[0].numpy() for features_BFD in features_of_clips]
            print(
                f"| {targets} | {num} | {perplexity(codes):.0f} | {100 * accuracy(codes, num, digits, speakers):.1f} |"
            )


def perplexity(codes: list[NDArray[Any]]) -> float:
    """How many codes are in use, if each were used as often."""
    share = np.unique(np.concatenate(codes), return_counts=True)[1] / sum(map(len, codes))
    return float(np.exp(-(share * np.log(share)).sum()))


def accuracy(codes: list[NDArray[Any]], num: int, digits: NDArray[Any], speakers: NDArray[Any]) -> float:
    """The share of digits that the codes of all other speakers name, the mean over the speakers."""
    counts_NV = np.zeros((len(codes), PARTS * num), np.float32)
    for row, codes_F in enumerate(codes):
        part = np.arange(len(codes_F)) * PARTS // len(codes_F)
        np.add.at(counts_NV[row], part * num + codes_F, 1)
    shares = []
    for speaker in np.unique(speakers):
        own = speakers == speaker
        total_CV = np.stack([counts_NV[~own & (digits == digit)].sum(0) for digit in range(10)]) + SMOOTHING
        logs_CV = np.log(total_CV / total_CV.sum(1, keepdims=True))
        shares.append((np.argmax(counts_NV[own] @ logs_CV.T, axis=1) == digits[own]).mean())
    return float(np.mean(shares))


if __name__ == "__main__":
    main()
