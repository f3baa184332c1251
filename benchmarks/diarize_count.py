"""How many speakers the engine `embedded` counts: the conversations that its criterion is chosen on.

    python benchmarks/diarize_count.py --shared SHARED

`benchmarks/diarize.py` measures on every second speaker; these conversations are of the others. `conversations.py`
simulates them over `SHARED/librispeech-unlabelled-30` and the adults of `SHARED/speechocean762-train`: 30 s to 10
minutes, 1 to 5 speakers, wide-band, with noise of `SHARED/noise-rir`, and over a telephone, with one line for all or
one for each speaker. Of a part of them the speakers are those whose voices are most similar. Even seeds are for the
choice, odd ones for the check. Prints a table and writes `benchmarks/results/diarize_count.json`.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from conversations import Clips, Conversation, as_g711, over_line, read_clips, simulate, with_noise
from diarize import read_noises, score
from voxstill.core.config import Diarize
from voxstill.core.records import RATE_HZ
from voxstill.diarization import ge2e
from voxstill.diarization.diarizer import Diarizer
from voxstill.scoring.speakers import SpeakerTime

HERE = Path(__file__).parent
CONDITIONS = ("wide-band", "noise", "telephone", "telephone, noise", "telephone, a line each")
SHAPES = (
    (30, 1, False),
    (30, 2, False),
    (30, 2, True),
    (30, 3, False),
    (60, 1, False),
    (60, 2, False),
    (60, 2, True),
    (60, 3, False),
    (180, 1, False),
    (180, 2, True),
    (180, 3, False),
    (180, 4, False),
    (180, 5, False),
    (600, 1, False),
    (600, 2, True),
    (600, 4, False),
)
"""Seconds, number of speakers, and whether they are similar."""
NOISE_DB = (10.0, 25.0)
SHORTEST_S = 5.0
_ALIKE = 6
"""The speakers of some conversations are one and its nearest of so many."""


@dataclass(frozen=True)
class Case:
    """What a recording is, and how it was made."""

    voices: str
    condition: str
    seconds: int
    number: int
    similar: bool
    seed: int


@dataclass(frozen=True)
class Row:
    """Recordings of one kind: how many have the number of speakers right, too high or too low, and their errors."""

    name: str
    recordings: int
    right: int
    over: int
    under: int
    der: float
    """Collar 0, overlap scored."""
    der_collar: float
    """Collar 0.25 s, without overlap."""


Result = tuple[Case, int, int, SpeakerTime, SpeakerTime]
"""A case, the speakers found and those of the reference, and time at both collars."""


def main() -> None:
    """Measure all cases, and print a row for each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=6)
    args = parser.parse_args()
    torch.set_num_threads(1)
    simulator, results = Simulator(args.shared), list[Result]()
    with Diarizer(Diarize(name="embedded")) as diarizer:
        for case in cases(range(args.seeds)):
            talk = simulator(case)
            result = diarizer.diarize(talk.samples_T)
            at_0, at_250 = (score(talk, result.turns, *way) for way in ((0.0, True), (0.25, False)))
            results.append((case, result.num_speakers, talk.num_speakers, at_0, at_250))
    rows = rows_of(results)
    for row in rows:
        shares = " | ".join(f"{100 * number / row.recordings:.0f}" for number in (row.right, row.over, row.under))
        print(f"| {row.name} | {row.recordings} | {shares} | {100 * row.der:.1f} ({100 * row.der_collar:.1f}) |")
    (HERE / "results" / "diarize_count.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def rows_of(results: Sequence[Result]) -> list[Row]:
    """A row for each condition and number of speakers, each length, and each half of the seeds."""
    kinds: dict[str, list[Result]] = {}
    for result in results:
        case, _, number, *_ = result
        speakers = "one speaker" if number == 1 else "two" if number == 2 else "three to five"
        half = "odd seeds, for the check" if case.seed % 2 else "even seeds, for the choice"
        for kind in (f"{case.condition}: {speakers}", f"{case.seconds} s", half):
            kinds.setdefault(kind, []).append(result)
    return [_row(kind, kinds[kind]) for kind in sorted(kinds)]


def _row(name: str, results: Sequence[Result]) -> Row:
    at_0, at_250 = SpeakerTime(), SpeakerTime()
    for *_, one_0, one_250 in results:
        at_0, at_250 = at_0 + one_0, at_250 + one_250
    difference = [num_found - number for _, num_found, number, *_ in results]
    right, over, under = (int(sum(np.sign(difference) == sign)) for sign in (0, 1, -1))
    return Row(name, len(results), right, over, under, at_0.rate or 0.0, at_250.rate or 0.0)


def cases(seeds: Sequence[int]) -> Iterator[Case]:
    """All recordings of some seeds; clips of a few seconds come again too often in long ones."""
    for seed in seeds:
        for voices in ("librispeech", "speechocean"):
            for condition in CONDITIONS:
                for seconds, number, similar in SHAPES:
                    if seconds <= 60 or (voices == "librispeech" and (seconds <= 180 or seed < 2)):
                        yield Case(voices, condition, seconds, number, similar, seed)


def voices_of(shared: Path) -> dict[str, Clips]:
    """Clips of the speakers that no figure is of; those of one speaker are one clip, long enough for a turn."""
    ages = {}
    for line in (shared / "speechocean762-train/manifest.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        ages[row["speaker"]] = row["age"]
    pause_T = np.zeros(RATE_HZ // 2, np.float32)
    result: dict[str, Clips] = {}
    for name, folder in (("librispeech", "librispeech-unlabelled-30"), ("speechocean", "speechocean762-train")):
        clips = read_clips(shared / folder)
        joined = {
            speaker: np.concatenate([part_T for clip_T in clips[speaker] for part_T in (clip_T, pause_T)])
            for speaker in sorted(clips)[::2]
            if ages.get(speaker, 99) >= 16
        }
        result[name] = {speaker: [clip_T] for speaker, clip_T in joined.items() if len(clip_T) > SHORTEST_S * RATE_HZ}
    return result


class Simulator:
    """Makes the recording of a case, the same one each time."""

    def __init__(self, shared: Path) -> None:
        self.voices, self.noises = voices_of(shared), read_noises(shared)
        self.embedding = {name: _embeddings(clips) for name, clips in self.voices.items()}

    def __call__(self, case: Case) -> Conversation:
        """The recording of a case."""
        seed = zlib.crc32(repr(case).encode())
        rng = np.random.default_rng(seed)
        clips = self.voices[case.voices]
        names = list(clips)
        chosen = rng.permutation(len(names))
        if case.similar:
            voice_SE = self.embedding[case.voices]
            chosen[1:] = np.argsort(-(voice_SE @ voice_SE[chosen[0]]))[1:]
            rng.shuffle(chosen[1:_ALIKE])
        clips = {names[i]: clips[names[i]] for i in chosen[: case.number]}
        if is_telephone := case.condition.startswith("telephone"):
            is_one_line, line = not case.condition.endswith("each"), int(rng.integers(1 << 30))
            clips = {
                speaker: [over_line(clip_T, np.random.default_rng(line if is_one_line else [line, i]))]
                for i, (speaker, [clip_T]) in enumerate(clips.items())
            }
        talk = simulate("talk", clips, case.number, seed, seconds=float(case.seconds))
        if case.condition.endswith("noise"):
            noise_T = self.noises[int(rng.integers(len(self.noises)))]
            noise_T = over_line(noise_T, np.random.default_rng(line)) if is_telephone else noise_T
            talk = with_noise(talk, noise_T, float(rng.uniform(*NOISE_DB)))
        return as_g711(talk) if is_telephone else talk


def _embeddings(clips: Clips) -> NDArray[np.float32]:
    network = ge2e.load()
    return np.concatenate(
        [ge2e.embed(network, ge2e.mel_power((clip_T * 32767).astype(np.int16))[None]) for [clip_T] in clips.values()]
    )


if __name__ == "__main__":
    main()
