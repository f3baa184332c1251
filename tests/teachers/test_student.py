"""A student as a teacher: it labels as it is judged, and its labels are named after its weights and its decoding."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tones import TEXTS
from voxstill.core import config
from voxstill.core.config import Decode, Teacher
from voxstill.core.errors import ConfigError
from voxstill.decoding.options import RecognizerOptions
from voxstill.decoding.recognizer import Recognizer
from voxstill.labelling import label
from voxstill.teachers.student import StudentOptions, StudentTeacher
from voxstill.teachers.teacher import Clip, Transcription


def transcribed(checkpoint: Path, clips: list[Clip], **options: Any) -> list[Transcription]:
    teacher = StudentTeacher(StudentOptions(checkpoint=str(checkpoint), **options))
    teacher.load()
    return teacher.transcribe_batch(clips)


def recipe(checkpoint: Path, **decode: Any) -> str:
    return label.task(Teacher(name="student", checkpoint=str(checkpoint), decode=decode)).recipe


def grammar_of(path: Path, texts: tuple[str, ...]) -> Path:
    path.write_text(f"#JSGF V1.0;\ngrammar tones;\npublic <text> = {' | '.join(texts)};\n")
    return path


def test_a_student_labels_as_it_transcribes_with_times_and_confidence(tone_student: Path, spoken: list[Clip]) -> None:
    recognizer = Recognizer(RecognizerOptions(model=str(tone_student), dtype="float32"))
    recognizer.load()
    hypotheses = recognizer.transcribe_batch([clip.samples_T for clip in spoken])
    for checkpoint in (tone_student, tone_student.parent):  # the model folder, and the experiment
        answers = transcribed(checkpoint, spoken)
        assert [answer.text for answer in answers] == list(TEXTS)
        assert [answer.words for answer in answers] == [hypothesis.words for hypothesis in hypotheses]
        assert [answer.mean_logprob for answer in answers] == [hypothesis.score for hypothesis in hypotheses]
        assert all(len(answer.words) == len(answer.text.split()) == answer.num_tokens for answer in answers)


def test_a_student_labels_with_the_grammar_of_its_section_decode(
    tone_student: Path, spoken: list[Clip], tmp_path: Path
) -> None:
    allowed = TEXTS[:2]
    grammar = grammar_of(tmp_path / "tones.jsgf", allowed)
    answers = transcribed(tone_student, spoken, decode=Decode(grammar=str(grammar)))
    assert [answer.text for answer in answers[:2]] == list(allowed)
    assert {answer.text for answer in answers} <= {*allowed, ""}


def test_the_labels_of_a_student_are_named_after_its_weights_and_its_decoding(
    tone_student: Path, tmp_path: Path
) -> None:
    first = recipe(tone_student)
    copy = shutil.copytree(tone_student, tmp_path / "exp" / "model")
    assert recipe(copy.parent) == recipe(tone_student, beam=1) == first
    grammar = grammar_of(tmp_path / "tones.jsgf", TEXTS[:2])
    others = {recipe(tone_student, beam=4), recipe(tone_student, grammar=str(grammar))}
    grammar_of(grammar, TEXTS[2:4])
    others.add(recipe(tone_student, grammar=str(grammar)))
    tree = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**tree, "note": "another student"}))
    others.add(recipe(copy))
    assert len(others - {first}) == 4


def test_a_student_that_cannot_label_is_refused_before_anything_is_labelled(tone_student: Path, tmp_path: Path) -> None:
    for options, message in (
        ({"checkpoint": str(tmp_path / "exp")}, "there is no student in"),
        ({"checkpoint": str(tone_student), "decode": {"tune": True}}, r"`teacher\.decode\.tune` has no effect"),
        ({"checkpoint": str(tone_student), "decode": {"beem": 4}}, r"unknown option `teacher\.decode\.beem`"),
    ):
        with pytest.raises(ConfigError, match=message):
            label.task(config.validated(Teacher, {"name": "student", **options}))
