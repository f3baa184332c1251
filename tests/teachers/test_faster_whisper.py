"""faster-whisper as a teacher: what it says, how sure it is and when, is what transformers says of the same weights."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("faster_whisper")

from tones import TEXTS
from voxstill.core.errors import ConfigError, TeacherError
from voxstill.decoding.options import RecognizerOptions
from voxstill.teachers.faster_whisper import FasterWhisperOptions, FasterWhisperTeacher, _encode_one_by_one
from voxstill.teachers.teacher import Clip
from voxstill.teachers.transformers import TransformersTeacher


@pytest.fixture(scope="module")
def converted(english_whisper: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from ctranslate2.converters import TransformersConverter

    folder: Path = tmp_path_factory.mktemp("converted") / "model"
    TransformersConverter(str(english_whisper), copy_files=["tokenizer.json"]).convert(str(folder))
    return folder


def opened(model: Path, **options: Any) -> FasterWhisperTeacher:
    few = {"compute_type": "float32", "beam_size": 1, "suppress_tokens": [], "language": "en"}
    teacher = FasterWhisperTeacher(FasterWhisperOptions(model=str(model), **{**few, **options}))
    teacher.load()
    return teacher


def test_texts_and_confidence_are_those_of_transformers(
    english_whisper: Path, converted: Path, spoken: list[Clip]
) -> None:
    transformers_teacher = TransformersTeacher(RecognizerOptions(model=str(english_whisper)))
    transformers_teacher.load()
    results = opened(converted).transcribe_batch(spoken)
    assert [result.text for result in results] == list(TEXTS)
    for result, expected in zip(results, transformers_teacher.transcribe_batch(spoken), strict=True):
        assert result.text == expected.text
        assert result.mean_logprob == pytest.approx(expected.mean_logprob, abs=1e-4)
        assert result.num_tokens == expected.num_tokens
        assert (result.finish, result.error, result.language) == ("stop", None, "en")


@pytest.mark.parametrize("options", [{"batch_size": 1}, {"batch_size": 3}, {"language": None}], ids=str)
def test_however_clips_are_batched_each_has_its_own_answer(
    converted: Path, spoken: list[Clip], options: dict[str, Any]
) -> None:
    results = opened(converted, **options).transcribe_batch(spoken[::-1])
    assert [result.text for result in results] == list(TEXTS[::-1])
    for result, expected in zip(results[::-1], opened(converted).transcribe_batch(spoken), strict=True):
        assert result.mean_logprob == pytest.approx(expected.mean_logprob, abs=1e-4)


def test_windows_that_are_encoded_one_by_one_have_the_states_of_a_batch(converted: Path) -> None:
    import faster_whisper

    model = faster_whisper.WhisperModel(str(converted), device="cpu", compute_type="float32", cpu_threads=1)
    features_BDF = np.random.default_rng(0).normal(size=(3, 80, 3000)).astype(np.float32)
    one_by_one_BFE, batch_BFE = np.array(_encode_one_by_one(model.encode, features_BDF)), model.encode(features_BDF)
    np.testing.assert_allclose(one_by_one_BFE, np.array(batch_BFE), atol=1e-5)
    np.testing.assert_array_equal(np.array(_encode_one_by_one(model.encode, features_BDF[0])), one_by_one_BFE[:1])


def test_words_have_times_within_the_clip(converted: Path, spoken: list[Clip]) -> None:
    for clip, result in zip(spoken, opened(converted).transcribe_batch(spoken), strict=True):
        assert " ".join(word.text for word in result.words) == result.text
        assert all(0 <= word.start_ms <= word.end_ms <= clip.utterance.duration_ms for word in result.words)
        assert all(0 < (word.prob or 0) <= 1 for word in result.words)
    assert {result.words for result in opened(converted, word_timestamps=False).transcribe_batch(spoken)} == {()}


def test_only_speech_is_transcribed_where_the_voice_activity_detector_is_on(
    converted: Path, spoken: list[Clip]
) -> None:
    results = opened(converted, vad_filter=True).transcribe_batch(spoken)
    assert all(result.error is None for result in results)  # tones are hardly speech
    assert {result.mean_logprob is None for result in results if not result.text} <= {True}


def test_a_text_cut_by_the_limit_of_tokens_is_marked(
    english_whisper: Path, converted: Path, spoken: list[Clip]
) -> None:
    from transformers import WhisperTokenizerFast

    end = WhisperTokenizerFast.from_pretrained(english_whisper).eos_token_id
    (result,) = opened(converted, suppress_tokens=[end], word_timestamps=False).transcribe_batch(spoken[:1])
    assert result.finish == "length"
    assert result.text.startswith(TEXTS[0])


def test_clips_that_cannot_be_transcribed_are_errors_of_their_own(converted: Path, poisoned: list[Clip]) -> None:
    results = opened(converted).transcribe_batch(poisoned)
    assert [results[0].text, results[-1].text] == list(TEXTS[:2])
    assert [result.error for result in results[1:-2]] == ["no audio", "no audio", "longer than the 30 s taken at once"]
    assert {(result.text, result.finish, result.mean_logprob) for result in results[1:-2]} == {("", "failed", None)}
    assert results[-2].error is None  # silence is none
    assert math.isfinite(results[-2].mean_logprob or 0)
    assert opened(converted).transcribe_batch([]) == []


def test_a_model_that_cannot_be_loaded_is_an_error(converted: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no model in") as caught:
        FasterWhisperTeacher(FasterWhisperOptions(model=str(tmp_path)))
    assert "model.bin" in caught.value.why
    for name in ("model.bin", "config.json"):
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(TeacherError, match="cannot be loaded"):
        opened(tmp_path)
    with pytest.raises(ConfigError, match=r"`teacher\.language` is `de`"):
        opened(converted, language="de")


def test_the_revision_is_of_the_package_and_the_weights(converted: Path, tmp_path: Path) -> None:
    import shutil

    def revision(folder: Path) -> str:
        return FasterWhisperTeacher(FasterWhisperOptions(model=str(folder))).revision()

    other = tmp_path / "model"
    shutil.copytree(converted, other)
    assert revision(other) == revision(converted)
    (other / "model.bin").write_bytes((other / "model.bin").read_bytes() + b" ")
    assert revision(other) != revision(converted)
