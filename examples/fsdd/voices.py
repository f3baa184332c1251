"""Digits said by synthetic voices, to learn from beside five people: many throats and accents, the texts known.

    python examples/fsdd/voices.py --output work/fsdd/voices

Writes a manifest like that of the recordings, for examples/fsdd/strings.py to make strings of. Equal seeds give equal
bytes. As in the recordings there is nothing above 4 kHz, and no silence around a digit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from pathlib import Path

import numpy as np
import soxr
from numpy.typing import NDArray

from voxstill.audio import codec
from voxstill.core import pcm
from voxstill.core.records import RATE_HZ, fingerprint
from voxstill.synthesis.voices import ACCENTS, VARIANTS, SpeechJob, synthesize

DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
BAND_HZ = 8000
STEP = RATE_HZ // 100
FLOOR_DB = (22.0, 38.0)
"""What is so much fainter than the loudest 10 ms is cut off at both ends."""
PEAK_DB = (-25.0, -3.0)


def main() -> None:
    """Say every digit with every voice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for manifest.jsonl and the audio")
    parser.add_argument("--times", type=int, default=2, help="how often each voice says each digit")
    parser.add_argument("--voices", type=int, help="the first so many voices, not all")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    (args.output / "audio").mkdir(parents=True, exist_ok=True)
    voices = [(accent, variant) for accent in ACCENTS for variants in VARIANTS.values() for variant in variants]
    keys = [(*voice, digit, time) for voice in voices[: args.voices] for digit in DIGITS for time in range(args.times)]
    chances = [random.Random(fingerprint(args.seed, *key)) for key in keys]
    jobs = [
        SpeechJob(
            text=digit,
            voice=f"{accent}+{variant}",
            words_per_minute=rng.randint(130, 220),
            pitch=rng.randint(20, 80),
        )
        for (accent, variant, digit, _), rng in zip(keys, chances, strict=True)
    ]
    lines = []
    speech = synthesize(jobs, processes=os.cpu_count() or 1)
    for (accent, variant, digit, time), rng, samples_T in zip(keys, chances, speech, strict=True):
        name = f"{digit}_{accent}-{variant}_{time}"
        (args.output / f"audio/{name}.flac").write_bytes(codec.encode(recorded(samples_T, rng), "flac"))
        row = {"id": name, "audio": f"audio/{name}.flac", "text": digit, "speaker": f"{accent}-{variant}"}
        lines.append(json.dumps(row) + "\n")
    (args.output / "manifest.jsonl").write_text("".join(lines), encoding="utf-8")


def recorded(samples_T: NDArray[np.int16], rng: random.Random) -> NDArray[np.int16]:
    """The samples with the band, the edges and the loudness that the recordings have."""
    narrow_T = soxr.resample(soxr.resample(samples_T.astype(np.float32), RATE_HZ, BAND_HZ), BAND_HZ, RATE_HZ)
    steps_FT = narrow_T[: len(narrow_T) // STEP * STEP].reshape(-1, STEP)
    level_F = 10 * np.log10(np.square(steps_FT).mean(axis=1) + 1.0)
    loud = np.flatnonzero(level_F > level_F.max() - rng.uniform(*FLOOR_DB))
    digit_T = narrow_T[loud[0] * STEP : (loud[-1] + 1) * STEP]
    return pcm.quantize(digit_T / np.abs(digit_T).max() * 10 ** (rng.uniform(*PEAK_DB) / 20))


if __name__ == "__main__":
    main()
