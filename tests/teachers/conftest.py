"""Small models of others that know the language of `tones` by heart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from checkpoints import write_overfitted_wav2vec2, write_overfitted_whisper
from shared_folders import made_once
from tones import TEXTS, speak
from voxstill.core.records import Utterance
from voxstill.teachers.teacher import Clip


def clip_of(samples_T: np.ndarray, number: int = 0) -> Clip:
    utterance = Utterance(id=f"u{number}", recording_id="r", uri="", end_ms=len(samples_T) // 16)
    return Clip(utterance=utterance, samples_T=samples_T)


@pytest.fixture(scope="session")
def spoken() -> list[Clip]:
    """Each of `TEXTS`, in order."""
    return [clip_of(speak(text, i)[0], i) for i, text in enumerate(TEXTS)]


@pytest.fixture(scope="session")
def poisoned(spoken: list[Clip]) -> list[Clip]:
    """The first two of `TEXTS`, between clips that nobody can hear: empty, of a few samples, of 31 s, of silence."""
    hopeless = (np.zeros(0, np.int16), np.ones(159, np.int16), *(np.zeros(num * 16_000, np.int16) for num in (31, 1)))
    return [spoken[0], *(clip_of(samples_T, 10 + i) for i, samples_T in enumerate(hopeless)), spoken[1]]


@pytest.fixture(scope="session")
def whisper(tmp_path_factory: pytest.TempPathFactory, spoken: list[Clip]) -> Path:
    """A Whisper of all languages."""

    def make(folder: Path) -> None:
        write_overfitted_whisper(folder, [clip.samples_T for clip in spoken], TEXTS, languages=True)

    return made_once(tmp_path_factory, "whisper", make)


@pytest.fixture(scope="session")
def letters(tmp_path_factory: pytest.TempPathFactory, spoken: list[Clip]) -> Path:
    """A wav2vec 2.0 that spells with letters."""

    def make(folder: Path) -> None:
        write_overfitted_wav2vec2(folder, [clip.samples_T for clip in spoken], TEXTS)

    return made_once(tmp_path_factory, "letters", make)


@pytest.fixture(scope="session")
def english_whisper(tmp_path_factory: pytest.TempPathFactory, spoken: list[Clip]) -> Path:
    """A Whisper of English alone."""

    def make(folder: Path) -> None:
        write_overfitted_whisper(folder, [clip.samples_T for clip in spoken], TEXTS, languages=False)

    return made_once(tmp_path_factory, "english-whisper", make)
