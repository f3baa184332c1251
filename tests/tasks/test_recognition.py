"""The vocabulary of a student, before the first step of its training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from voxstill.core.config import Config
from voxstill.nn.frontends import LogMelFrontend, WaveformFrontend
from voxstill.storage.rundir import RunDir
from voxstill.tasks.recognition import vocabulary_of

MELS = LogMelFrontend(Config().augment)


@pytest.mark.parametrize("text", ["a word or two", "a b"])
@pytest.mark.parametrize("units", ["word", "character", "bpe"])
def test_another_start_has_the_same_vocabulary_and_reads_no_text(tmp_path: Path, text: str, units: str) -> None:
    def untouchable() -> Iterator[str]:
        raise AssertionError("a text was read")
        yield

    cfg = Config.model_validate({"student": {"units": units}})
    vocabulary = vocabulary_of(RunDir(tmp_path), [text], cfg, MELS)
    assert vocabulary.unit == units
    assert vocabulary_of(RunDir(tmp_path), untouchable(), cfg, MELS) == vocabulary


def test_auto_units_are_pieces_for_long_frames_and_letters_for_short_ones(tmp_path: Path) -> None:
    cfg = Config.model_validate({"student": {"max_words": 2}})
    samples = WaveformFrontend(cfg.augment, kernels=[320], strides=[320])
    assert vocabulary_of(RunDir(tmp_path / "a"), ["a b c"], cfg, MELS).unit == "bpe"
    assert vocabulary_of(RunDir(tmp_path / "b"), ["a b c"], cfg, samples).unit == "character"
    assert vocabulary_of(RunDir(tmp_path / "c"), ["a b"], cfg, MELS).unit == "word"
