"""What a training does before its first step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from voxstill.commands.learn import vocabulary_of
from voxstill.config import Config
from voxstill.rundir import RunDir


@pytest.mark.parametrize("text", ["a word or two", "a b"])
@pytest.mark.parametrize("units", ["word", "character"])
def test_another_start_has_the_same_vocabulary_and_reads_no_text(tmp_path: Path, text: str, units: str) -> None:
    def untouchable() -> Iterator[str]:
        raise AssertionError("a text was read")
        yield

    cfg = Config.model_validate({"student": {"units": units}})
    made = vocabulary_of(RunDir(tmp_path), [text], cfg)
    assert vocabulary_of(RunDir(tmp_path), untouchable(), cfg) == made
