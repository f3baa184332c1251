"""The demo's corpus: spoken commands in noise, byte-identical for a seed, the texts beside the manifest, not in it."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from voxstill.audio import codec
from voxstill.audio.voices import Speech, speak
from voxstill.config import Demo
from voxstill.records import RATE_HZ, Split, fingerprint
from voxstill.text import grammar

ACCENTS = ("en-us", "en-us-nyc", "en-gb-x-rp", "en-gb-scotland", "en-029")
VARIANTS: dict[Split, tuple[str, ...]] = {
    "train": (
        *("m1", "m2", "m3", "m4", "m6", "m7", "f1", "f2", "f4", "klatt", "klatt2"),
        *("adam", "belinda", "Denis", "Gene", "Jacky", "Mike", "steph"),
    ),
    "dev": ("edward", "f3", "m5"),
    "test": ("Annie", "f5", "grandma", "m8", "Michael", "quincy", "Reed"),
}
"""Voices of espeak-ng, each with every accent. PocketSphinx, with our grammar, hears 1 to 15 % of their words wrong in
quiet; of 74 variants those above (the likes of `zac`, 92 %) teach nothing. The sets have alike shares of hard ones."""
Colour = Literal["white", "pink", "babble"]
COLOURS: tuple[Colour, ...] = ("white", "pink", "babble")
SNRS_DB: dict[str, int | None] = {"clean": None, "20db": 20, "10db": 10, "5db": 5}
"""Name in the manifest's `dataset` -> speech over noise."""
BABBLERS = 48
"""Commands said only to be mixed into babble."""
BABBLE_VOICES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One utterance of the corpus, before it is spoken: everything that chance decided."""

    id: str
    split: Split
    accent: str
    variant: str
    speech: Speech
    dataset: str
    colour: Colour
    level_db: float
    before_ms: int
    after_ms: int


def make(folder: Path, demo: Demo, seed: int) -> Path:
    """The manifest of a corpus in `folder`; equal options and seed give equal bytes, on any number of processes.

    `texts.jsonl` lies beside the manifest with `id` and `text` of every utterance: no step but the scoring may read it.
    A corpus that is there, of the same options and seed, is not made again.
    """
    made, manifest = folder / "made.json", folder / "manifest.jsonl"
    options = json.dumps({"seed": seed, **demo.model_dump()}) + "\n"
    if made.is_file() and made.read_text(encoding="utf-8") == options:
        return manifest
    made.unlink(missing_ok=True)
    commands = draw(demo, seed)
    babblers = [command.speech for command in _draw("train", BABBLERS, fingerprint(seed, "babble"))]
    (folder / "audio").mkdir(parents=True, exist_ok=True)
    spoken = speak([*babblers, *(command.speech for command in commands)], processes=os.cpu_count() or 1)
    crowd = [next(spoken) for _ in babblers]
    for command, samples_T in zip(commands, spoken, strict=True):
        noisy_T = mix(command, samples_T, crowd)
        (folder / f"audio/{command.id}.flac").write_bytes(codec.encode(noisy_T, "flac"))
    _write(folder / "texts.jsonl", ({"id": each.id, "text": each.speech.text} for each in commands))
    _write(manifest, (_row(each) for each in commands))
    made.write_text(options, encoding="utf-8")  # last: where it is, there is everything
    return manifest


def draw(demo: Demo, seed: int) -> list[Command]:
    """What is said, by whom and in which noise; an utterance does not depend on how many others there are."""
    sizes: dict[Split, int] = {
        "train": demo.train_utterances,
        "dev": demo.dev_utterances,
        "test": demo.test_utterances,
    }
    return [each for split, size in sizes.items() for each in _draw(split, size, fingerprint(seed, split))]


def mix(command: Command, samples_T: NDArray[np.int16], crowd: list[NDArray[np.int16]]) -> NDArray[np.int16]:
    """The speech at its level between two pauses, with noise at its ratio to the mean power of the speech."""
    rng = np.random.default_rng(int(fingerprint(command.id, command.speech.text), 16))
    speech_T = samples_T / np.sqrt(np.mean(np.square(samples_T, dtype=np.float64)))
    clip_T = np.pad(speech_T, (codec.ms_to_samples(command.before_ms), codec.ms_to_samples(command.after_ms)))
    snr_db = SNRS_DB[command.dataset]
    if snr_db is not None:
        clip_T += _noise(command.colour, len(clip_T), crowd, rng) * 10 ** (-snr_db / 20)
    return codec.quantize((clip_T * 10 ** (command.level_db / 20)).astype(np.float32))


def _draw(split: Split, size: int, seed: str) -> Iterator[Command]:
    commands = grammar.parse(resources.files("voxstill.factory").joinpath("commands.jsgf").read_text(encoding="utf-8"))
    voices = [(accent, variant) for variant in VARIANTS[split] for accent in ACCENTS]
    random.Random(seed).shuffle(voices)
    conditions = [(dataset, colour) for dataset in SNRS_DB for colour in COLOURS]
    for number in range(size):
        rng = random.Random(fingerprint(seed, number))
        accent, variant = voices[number % len(voices)]
        dataset, colour = conditions[(number + number // len(conditions)) % len(conditions)]
        yield Command(
            id=f"{split}-{number:05d}",
            split=split,
            accent=accent,
            variant=variant,
            speech=Speech(
                text=" ".join(commands.sample(rng)),
                voice=f"{accent}+{variant}",
                words_per_minute=rng.randint(145, 190),
                pitch=rng.randint(35, 65),
            ),
            dataset=dataset,
            colour=colour,
            level_db=rng.uniform(-30, -22),
            before_ms=rng.randint(50, 200),
            after_ms=rng.randint(50, 200),
        )


def _noise(
    colour: Colour, num_samples: int, crowd: list[NDArray[np.int16]], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Noise of mean power 1."""
    if colour == "babble":
        noise_T = np.zeros(num_samples)
        for voice in rng.choice(len(crowd), BABBLE_VOICES, replace=False):
            noise_T += np.roll(np.resize(crowd[voice], num_samples), int(rng.integers(num_samples)))
    else:
        noise_T = rng.standard_normal(num_samples)
        if colour == "pink":  # power falls by 3 dB an octave; flat below 20 Hz
            spectrum = np.fft.rfft(noise_T)
            frequency_hz = np.fft.rfftfreq(num_samples, 1 / RATE_HZ)
            noise_T = np.fft.irfft(spectrum / np.sqrt(np.maximum(frequency_hz, 20.0)), num_samples)
    unit_T: NDArray[np.float64] = noise_T / np.sqrt(np.mean(np.square(noise_T)))
    return unit_T


def _row(command: Command) -> dict[str, str]:
    return {
        "id": command.id,
        "audio": f"audio/{command.id}.flac",
        "speaker": command.speech.voice,
        "language": "en",
        "dialect": command.accent,
        "dataset": command.dataset,
        "split": command.split,
    }


def _write(path: Path, rows: Iterator[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
