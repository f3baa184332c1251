"""Make the demo's corpus: synthetic spoken commands with noise, byte-identical for a seed.

Texts are in a file beside the manifest, not in it."""

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
from voxstill.core import pcm
from voxstill.core.config import Demo
from voxstill.core.records import RATE_HZ, Split, fingerprint
from voxstill.synthesis.voices import ACCENTS, VARIANTS, SpeechJob, synthesize
from voxstill.text import jsgf

Colour = Literal["white", "pink", "babble"]
COLOURS: tuple[Colour, ...] = ("white", "pink", "babble")
SNRS_DB: dict[str, int | None] = {"clean": None, "20db": 20, "10db": 10, "5db": 5}
"""Name in the manifest's `dataset` -> signal-to-noise ratio."""
BABBLERS = 48
"""Utterances that are synthesised only to be mixed into babble noise."""
BABBLE_VOICES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One utterance of the corpus before synthesis, with all its random choices."""

    id: str
    split: Split
    accent: str
    variant: str
    speech: SpeechJob
    dataset: str
    colour: Colour
    level_db: float
    before_ms: int
    after_ms: int


def make(folder: Path, demo: Demo, seed: int) -> Path:
    """Make a corpus in `folder` and return its manifest; equal options and seed give equal bytes.

    `texts.jsonl` lies beside the manifest with `id` and `text` of every utterance: only scoring may read it.
    A corpus of the same options and seed that exists is not made again.
    """
    marker, manifest = folder / "made.json", folder / "manifest.jsonl"
    options = json.dumps({"seed": seed, **demo.model_dump()}) + "\n"
    if marker.is_file() and marker.read_text(encoding="utf-8") == options:
        return manifest
    marker.unlink(missing_ok=True)
    commands = draw(demo, seed)
    babblers = [command.speech for command in _draw("train", BABBLERS, fingerprint(seed, "babble"))]
    (folder / "audio").mkdir(parents=True, exist_ok=True)
    recordings = synthesize([*babblers, *(command.speech for command in commands)], processes=os.cpu_count() or 1)
    babble = [next(recordings) for _ in babblers]
    for command, samples_T in zip(commands, recordings, strict=True):
        noisy_T = mix(command, samples_T, babble)
        (folder / f"audio/{command.id}.flac").write_bytes(codec.encode(noisy_T, "flac"))
    _write(folder / "texts.jsonl", ({"id": command.id, "text": command.speech.text} for command in commands))
    _write(manifest, (_row(command) for command in commands))
    marker.write_text(options, encoding="utf-8")  # last: it marks the corpus as complete
    return manifest


def draw(demo: Demo, seed: int) -> list[Command]:
    """Draw text, voice and noise of every utterance; an utterance does not depend on how many others there are."""
    sizes: dict[Split, int] = {
        "train": demo.train_utterances,
        "dev": demo.dev_utterances,
        "test": demo.test_utterances,
    }
    return [command for split, size in sizes.items() for command in _draw(split, size, fingerprint(seed, split))]


def mix(command: Command, samples_T: NDArray[np.int16], babble: list[NDArray[np.int16]]) -> NDArray[np.int16]:
    """Pad the speech, set its level and add noise at the utterance's signal-to-noise ratio.

    `babble` are the recordings that babble noise is mixed from."""
    rng = np.random.default_rng(int(fingerprint(command.id, command.speech.text), 16))
    speech_T = samples_T / np.sqrt(np.mean(np.square(samples_T, dtype=np.float64)))
    clip_T = np.pad(speech_T, (pcm.ms_to_samples(command.before_ms), pcm.ms_to_samples(command.after_ms)))
    snr_db = SNRS_DB[command.dataset]
    if snr_db is not None:
        clip_T += _noise(command.colour, len(clip_T), babble, rng) * 10 ** (-snr_db / 20)
    return pcm.quantize((clip_T * 10 ** (command.level_db / 20)).astype(np.float32))


def _draw(split: Split, size: int, seed: str) -> Iterator[Command]:
    commands = jsgf.parse(resources.files("voxstill.demo").joinpath("commands.jsgf").read_text(encoding="utf-8"))
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
            speech=SpeechJob(
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
    colour: Colour, num_samples: int, babble: list[NDArray[np.int16]], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Noise of mean power 1."""
    if colour == "babble":
        noise_T = np.zeros(num_samples)
        for voice in rng.choice(len(babble), BABBLE_VOICES, replace=False):
            noise_T += np.roll(np.resize(babble[voice], num_samples), int(rng.integers(num_samples)))
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
