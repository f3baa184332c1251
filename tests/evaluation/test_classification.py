"""Evaluation of classifiers, and of a teacher without its grammar: a part of the split is in memory at once."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tones import voiced
from voxstill.audio import codec
from voxstill.core.config import Augment, Config, Section, Student
from voxstill.core.records import Utterance, UtteranceInfo
from voxstill.evaluation import classification, recognition, teacher
from voxstill.nn import checkpoints, classifiers
from voxstill.teachers.teacher import Clip, Transcription

WORDS, SPEAKERS = ("ba", "du", "ko"), ("ann", "bob")
REPEATED = 20
"""Of each word, so that a recording has some seconds."""


class DurationTeacher:
    """A teacher that transcribes how long a clip is."""

    Options: ClassVar[type[Section]] = Section
    reads_texts: ClassVar[bool] = False

    def __init__(self, options: Section | None = None) -> None:
        pass

    def revision(self) -> str:
        return "1"

    def load(self) -> None:
        pass

    def transcribe_batch(self, clips: Sequence[Clip]) -> list[Transcription]:
        return [Transcription(text=f"{len(clip.samples_T)} samples") for clip in clips]

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def utterances(tmp_path_factory: pytest.TempPathFactory) -> list[Utterance]:
    """A recording for each, of which one has too little audio and one cannot be read."""
    folder = tmp_path_factory.mktemp("audio")
    rows = []
    for number in range(18):
        word, speaker = WORDS[number % 3], SPEAKERS[number % 2]
        samples_T = voiced(" ".join([word] * REPEATED), speaker, number)
        path, num = folder / f"{number}.flac", 100 if number == 7 else len(samples_T)
        path.write_bytes(codec.encode(samples_T[:num], "flac") if number != 5 else b"no audio")
        info = UtteranceInfo(speaker=speaker)
        row = Utterance(
            id=f"u{number:02}", recording_id=f"r{number}", uri=str(path), end_ms=num // 16, text=word, info=info
        )
        rows.append(row)
    return rows


def whole_and_in_parts(
    monkeypatch: pytest.MonkeyPatch, evaluate: Callable[[], dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any], int]:
    """What is the same of the figures of both, and how many bytes were taken at most by that in parts."""
    whole = evaluate()
    monkeypatch.setattr(recognition, "PART_MS", 1000)
    tracemalloc.start()
    try:
        in_parts = evaluate()
        return whole | {"rtfx": None}, in_parts | {"rtfx": None}, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def num_bytes(utterances: list[Utterance]) -> int:
    """Of all samples."""
    return sum(32 * row.duration_ms for row in utterances)


def test_a_classifier_is_evaluated_in_parts_with_the_figures_of_the_whole(
    tmp_path: Path, utterances: list[Utterance], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = classifiers.new(Student(task="speakers"), list(SPEAKERS), 0, {"target": "speaker", "text": "basic"})
    model.save_pretrained(tmp_path)
    extractor = checkpoints.make_frontend(model.config, Augment(), None, None).extractor
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(dict(extractor)))

    def evaluate() -> dict[str, Any]:
        return dict(classification.evaluate(Config(), str(tmp_path), utterances).figures)

    whole, in_parts, peak_bytes = whole_and_in_parts(monkeypatch, evaluate)
    for name in ("eer", "min_dcf", "threshold"):
        assert whole.pop(name, None) == pytest.approx(in_parts.pop(name, None), abs=1e-5)
    assert whole == in_parts
    assert (whole["utterances"], sorted(whole["unread"])) == (16, ["u05", "u07"])
    assert peak_bytes < num_bytes(utterances) / 2


def test_a_teacher_without_its_grammar_transcribes_in_parts(
    utterances: list[Utterance], monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = Config.model_validate({"teacher": "echo"})

    def evaluate() -> dict[str, Any]:
        return teacher.evaluate_without_grammar(cfg, DurationTeacher(), utterances).to_dict()

    whole, in_parts, peak_bytes = whole_and_in_parts(monkeypatch, evaluate)
    assert whole == in_parts
    assert "1 of 18 utterances could not be read" in whole["warnings"][0]
    assert peak_bytes < num_bytes(utterances) / 2
