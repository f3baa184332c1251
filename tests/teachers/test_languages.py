"""The language of a manifest reaches the teacher; labels that were begun without languages go on so."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tones import TEXTS
from voxstill.core import config
from voxstill.core.records import Utterance, UtteranceInfo
from voxstill.labelling import label
from voxstill.storage.store import Store
from voxstill.teachers import registry, teacher
from voxstill.teachers.teacher import Clip, Transcription

NAMES = ("en-US", "deu", None, "klingon")
"""What the manifest says, utterance by utterance; the model detects English in each."""


@pytest.fixture
def mixed_clips(spoken: list[Clip]) -> list[Clip]:
    return [in_language(clip, NAMES[i % len(NAMES)]) for i, clip in enumerate(spoken)]


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("voxstill"), "propagate", True)
    teacher._warn_unknown.cache_clear()
    return caplog


def in_language(clip: Clip, name: str | None) -> Clip:
    utterance = dataclasses.replace(clip.utterance, info=UtteranceInfo(language=name))
    return Clip(utterance=utterance, samples_T=clip.samples_T)


def transcriptions(clips: Sequence[Clip], **options: Any) -> list[Transcription]:
    loaded = registry.create(config.Teacher.model_validate(options))
    loaded.load()
    try:
        return loaded.transcribe_batch(clips)
    finally:
        loaded.close()


def test_each_clip_is_transcribed_in_its_own_language_and_one_that_is_unknown_is_detected(
    whisper: Path, mixed_clips: list[Clip], warnings: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"name": "transformers", "model": str(whisper)}
    results = transcriptions(mixed_clips, **options)
    assert [result.error for result in results] == [None] * len(mixed_clips)
    languages = {"en-US": "en", "deu": "de", None: "en", "klingon": "en"}
    assert [result.language for result in results] == [languages[clip.utterance.info.language] for clip in mixed_clips]
    in_english = [i for i, result in enumerate(results) if result.language == "en"]
    assert [results[i].text for i in in_english] == [TEXTS[i] for i in in_english]
    assert [record.message for record in warnings.records if "teacher:" in record.message] == [
        f"teacher: `{whisper}` does not support `klingon`, a language of the manifest: the language is detected there"
    ]
    for language, of_all in (("sw", "sw"), (None, "en")):  # what is configured counts more than the manifest
        assert {result.language for result in transcriptions(mixed_clips, **options, language=language)} == {of_all}


def test_faster_whisper_is_given_clips_of_one_language_at_a_time(
    english_whisper: Path, mixed_clips: list[Clip], tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("faster_whisper")
    from ctranslate2.converters import TransformersConverter

    model = str(tmp_path / "model")
    TransformersConverter(str(english_whisper), copy_files=["tokenizer.json"]).convert(model)
    few: dict[str, Any] = {"compute_type": "float32", "beam_size": 1, "suppress_tokens": []}
    results = transcriptions(mixed_clips, name="faster-whisper", model=model, **few)
    assert [(result.text, result.language) for result in results] == [(text, "en") for text in TEXTS]
    assert {name for name in ("deu", "klingon") if f"`{name}`" in warnings.text} == {"deu", "klingon"}
    members = teacher.by_language(mixed_clips * 2, range(1, 2 * len(mixed_clips)), "manifest", ("en", "de"), "m")
    assert sorted(i for positions in members.values() for i in positions) == list(range(1, 2 * len(mixed_clips)))
    names = {language: {NAMES[i % len(mixed_clips)] for i in positions} for language, positions in members.items()}
    assert names == {
        "de": {"deu"},
        None: {None, "klingon"},
        "en": {"en-US"},
    }


def test_a_student_of_one_language_goes_by_its_own(english_whisper: Path, mixed_clips: list[Clip]) -> None:
    results = transcriptions(mixed_clips, name="transformers", model=str(english_whisper))
    assert [result.text for result in results] == list(TEXTS)


def test_a_ctc_model_has_no_use_for_languages(letters: Path, mixed_clips: list[Clip]) -> None:
    assert [result.text for result in transcriptions(mixed_clips, name="transformers", model=str(letters))] == list(
        TEXTS
    )


OPENAI = {"name": "openai", "base_url": "http://127.0.0.1:1/v1", "model": "m"}


def begin(work: Store, recipe: str) -> None:
    work.create(f"labels/{recipe}/part.parquet", b"")


def test_labels_that_were_begun_without_languages_go_on_so_and_no_others_do(tmp_path: Path) -> None:
    work = Store(str(tmp_path))
    unset, detected = (config.Teacher.model_validate(options) for options in (OPENAI, {**OPENAI, "language": None}))
    by_manifest = config.Teacher.model_validate({**OPENAI, "language": "manifest"})
    new, former = label.task(unset), label.task(detected)
    assert label.task(by_manifest).recipe == new.recipe != former.recipe
    assert label.task(unset, work) == new
    begin(work, former.recipe)
    assert label.task(unset, work).recipe == former.recipe
    assert registry.create(label.task(unset, work).teacher).options.language is None  # type: ignore[attr-defined]
    assert label.task(by_manifest, work).recipe == new.recipe  # whoever asks for it gets it
    begin(work, new.recipe)
    assert label.task(unset, work) == new


def test_labels_that_version_0_1_began_go_on_without_languages(tmp_path: Path) -> None:
    from voxstill.core import legacy

    work, unset = Store(str(tmp_path)), config.Teacher.model_validate(OPENAI)
    in_0_1 = legacy.labels(label.task(unset).name, unset, registry.options(unset))
    assert in_0_1 is not None
    begin(work, in_0_1)
    task = label.task(unset, work)
    assert (task.recipe, dict(task.teacher.model_extra or {})["language"]) == (in_0_1, None)


def test_a_teacher_without_languages_has_the_recipe_that_it_had() -> None:
    assert config.first_defaults(registry.find("pocketsphinx").Options) == {}
    clip = Clip(utterance=Utterance(id="u", recording_id="r", uri="", end_ms=0), samples_T=[])  # type: ignore[arg-type]
    assert teacher.language_of(clip, "manifest", ("en",), "m") is None
