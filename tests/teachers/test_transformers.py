"""A student as a teacher: what it says, it says of the right clip, and `transformers` alone says the same."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tones import TEXTS, speak
from voxstill.errors import ConfigError, DataError
from voxstill.records import Utterance
from voxstill.teachers.teacher import Clip, Heard
from voxstill.teachers.transformers import TransformersOptions, TransformersTeacher, batches_by_length, model_folder


def clip_of(samples_T: np.ndarray, number: int = 0) -> Clip:
    utterance = Utterance(id=f"u{number}", recording_id="r", uri="", end_ms=len(samples_T) // 16)
    return Clip(utterance=utterance, samples_T=samples_T)


CLIPS = [clip_of(speak(text, i)[0], i) for i, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def teacher(tone_student: Path) -> TransformersTeacher:
    made = TransformersTeacher(TransformersOptions(model=str(tone_student.parent)))
    made.open()
    return made


def test_every_clip_gets_its_own_answer_in_order(teacher: TransformersTeacher) -> None:
    assert [each.text for each in teacher.hear(CLIPS)] == list(TEXTS)
    assert [each.text for each in teacher.hear(CLIPS[::-1])] == list(TEXTS[::-1])


def test_an_answer_has_confidence_tokens_and_words_within_the_clip(teacher: TransformersTeacher) -> None:
    for clip, heard in zip(CLIPS, teacher.hear(CLIPS), strict=True):
        assert heard.mean_logprob is not None
        assert -1 < heard.mean_logprob <= 0
        assert heard.num_tokens == len(heard.words) == len(heard.text.split())
        assert " ".join(word.text for word in heard.words) == heard.text
        assert all(0 <= word.start_ms < word.end_ms <= clip.utterance.duration_ms + 80 for word in heard.words)
        assert (heard.error, heard.finish) == (None, "stop")


def test_the_batch_a_clip_is_heard_in_changes_nothing(tone_student: Path, teacher: TransformersTeacher) -> None:
    alone = TransformersTeacher(TransformersOptions(model=str(tone_student), batch_ms=1000))
    alone.open()
    for one, two in zip(teacher.hear(CLIPS), alone.hear(CLIPS), strict=True):
        assert (one.text, [(w.start_ms, w.end_ms) for w in one.words]) == (
            two.text,
            [(w.start_ms, w.end_ms) for w in two.words],
        )
        assert one.mean_logprob == pytest.approx(two.mean_logprob, abs=1e-4)


def test_a_clip_too_short_to_hear_is_an_error_row_among_the_others(teacher: TransformersTeacher) -> None:
    heard = teacher.hear([CLIPS[0], clip_of(np.zeros(0, np.int16)), clip_of(np.ones(159, np.int16)), CLIPS[1]])
    assert [each.text for each in heard] == [TEXTS[0], "", "", TEXTS[1]]
    assert [each.error is None for each in heard] == [True, False, False, True]
    assert heard[1].finish == "failed"
    assert teacher.hear([]) == []


def test_silence_is_no_error(teacher: TransformersTeacher) -> None:
    (heard,) = teacher.hear([clip_of(np.zeros(8000, np.int16))])
    assert isinstance(heard, Heard)
    assert heard.error is None


def saying(clip: Clip, text: str) -> Clip:
    return dataclasses.replace(clip, utterance=dataclasses.replace(clip.utterance, text=text))


def test_what_was_said_fits_better_than_anything_else_that_is_near(teacher: TransformersTeacher) -> None:
    for clip, text in zip(CLIPS, TEXTS, strict=True):
        said = text.split()
        others = [" ".join(said[1:]), " ".join(said[:-1]), f"{text} ba", " ".join(["mi", *said[1:]]), *TEXTS]
        others = [each for each in others if each != text]
        found, *rest = teacher.fit([saying(clip, each) for each in (text, *others)])
        assert found is not None
        assert -0.5 < found <= 0
        assert all(each is not None and each < found - 0.5 for each in rest)


def test_a_text_that_cannot_be_written_or_has_no_time_fits_neither_well_nor_badly(teacher: TransformersTeacher) -> None:
    texts = ["Ba, DU ko!", "ba du ice", "", "ba du ko " * 20, "ba du ko"]
    found = teacher.fit([saying(CLIPS[0], text) for text in texts])
    assert [each is None for each in found] == [False, True, True, True, False]
    assert found[0] == pytest.approx(found[-1], abs=1e-4)
    short = saying(clip_of(np.zeros(9, np.int16)), "ba")
    assert teacher.fit([short, saying(CLIPS[0], "ba du ko")]) == [None, pytest.approx(found[-1], abs=1e-4)]
    assert teacher.fit([]) == []


@given(st.lists(st.integers(0, 400_000), max_size=30), st.integers(1000, 60_000))
def test_batches_hold_every_clip_that_can_be_heard_once_within_the_budget(
    num_samples: list[int], batch_ms: int
) -> None:
    batches = batches_by_length(num_samples, batch_ms)
    assert sorted(i for members in batches for i in members) == [i for i, n in enumerate(num_samples) if n >= 160]
    for members in batches:
        assert members
        longest = max(num_samples[i] for i in members)
        assert len(members) == 1 or longest * len(members) <= batch_ms * 16


ALONE = """
import json, sys
sys.modules["voxstill"] = None  # whoever asks for it fails
import numpy as np
import torch
from transformers import AutoModelForCTC, AutoProcessor
folder, clips = sys.argv[1:]
processor = AutoProcessor.from_pretrained(folder)
model = AutoModelForCTC.from_pretrained(folder).eval()
texts = []
for samples in json.load(open(clips)):
    audio = np.array(samples, np.float32) / 32768
    inputs = processor(audio, sampling_rate=16000, return_tensors="pt")
    with torch.inference_mode():
        logits = model(**inputs).logits
    texts += processor.batch_decode(logits.argmax(-1), skip_special_tokens=True)
print(json.dumps([type(model).__name__, texts]))
"""


def test_a_saved_student_says_the_same_with_transformers_alone(
    tone_student: Path, teacher: TransformersTeacher, tmp_path: Path
) -> None:
    file = tmp_path / "clips.json"
    file.write_text(json.dumps([clip.samples_T.tolist() for clip in CLIPS]))
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(tone_student), str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    kind, texts = json.loads(done.stdout.splitlines()[-1])
    assert kind == "ParakeetForCTC"
    assert texts == [each.text for each in teacher.hear(CLIPS)] == list(TEXTS)


def test_the_revision_tells_other_weights_and_vocabularies_apart(tone_student: Path, tmp_path: Path) -> None:
    def revision(folder: Path) -> str:
        return TransformersTeacher(TransformersOptions(model=str(folder))).revision()

    other = tmp_path / "model"
    shutil.copytree(tone_student, other)
    assert revision(other) == revision(tone_student)
    for name in ("model.safetensors", "tokenizer.json"):
        (other / name).write_bytes((other / name).read_bytes() + b" ")
        assert revision(other) != revision(tone_student)


def test_a_folder_without_a_student_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone"):
        with pytest.raises(ConfigError, match="no student") as caught:
            TransformersTeacher(TransformersOptions(model=str(path)))
        assert caught.value.fix


def test_the_experiment_folder_means_the_model_in_it(tone_student: Path) -> None:
    assert model_folder(str(tone_student.parent)) == model_folder(str(tone_student)) == tone_student


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_damaged_student_is_an_error_when_opened(tone_student: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tone_student, folder)
    (folder / name).write_bytes((folder / name).read_bytes()[:100])
    with pytest.raises(DataError, match="holds no student"):
        TransformersTeacher(TransformersOptions(model=str(folder))).open()
