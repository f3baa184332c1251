"""Checkpoints of others as teachers: they say what `transformers` alone says of them, of the right clip."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tones import TEXTS
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.records import RATE_HZ
from voxstill.decoding.checkpoint_files import on_hub
from voxstill.decoding.options import RecognizerOptions
from voxstill.decoding.recognizer import Recognizer
from voxstill.teachers.teacher import Clip, Transcription
from voxstill.teachers.transformers import TransformersTeacher


def opened(model: Path | str, **options: Any) -> TransformersTeacher:
    teacher = TransformersTeacher(RecognizerOptions(model=str(model), **options))
    teacher.load()
    return teacher


def wave(clip: Clip) -> np.ndarray:
    return clip.samples_T.astype(np.float32) / 32768


@pytest.fixture(scope="session")
def transcriptions(whisper: Path, spoken: list[Clip]) -> list[Transcription]:
    return opened(whisper).transcribe_batch(spoken)


def test_a_whisper_gives_its_texts_in_order_and_their_language(transcriptions: list[Transcription]) -> None:
    assert [transcription.text for transcription in transcriptions] == list(TEXTS)
    assert {transcription.language for transcription in transcriptions} == {"en"}
    assert {(transcription.finish, transcription.error, transcription.words) for transcription in transcriptions} == {
        ("stop", None, ())
    }


def test_a_whisper_has_the_confidence_that_transformers_gives(
    whisper: Path, spoken: list[Clip], transcriptions: list[Transcription]
) -> None:
    from transformers import AutoProcessor, WhisperForConditionalGeneration

    processor, theirs = AutoProcessor.from_pretrained(whisper), WhisperForConditionalGeneration.from_pretrained(whisper)
    for clip, ours in zip(spoken, transcriptions, strict=True):
        inputs = processor(wave(clip), sampling_rate=RATE_HZ, return_tensors="pt")
        output = theirs.eval().generate(
            **inputs, language="en", force_unique_generate_call=True, return_dict_in_generate=True, output_scores=True
        )
        scores_U = theirs.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)[0]
        assert processor.decode(output.sequences[0], skip_special_tokens=True).strip() == ours.text
        assert ours.mean_logprob == pytest.approx(float(scores_U.mean()), abs=1e-3)
        assert ours.mean_logprob < 0
        assert ours.num_tokens == len(scores_U) - 1  # without the end


@pytest.mark.parametrize(
    "options",
    [
        {"language": "en"},
        {"batch_ms": 1000},
        {"num_beams": 3},
        {"dtype": "bfloat16"},
        {"temperature": 0.01, "top_k": 3, "top_p": 0.9, "seed": 3},
        {"repetition_penalty": 1.1, "no_repeat_ngram_size": 4},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_whisper_gives_the_same_text_with_any_options_of_inference(
    whisper: Path, spoken: list[Clip], transcriptions: list[Transcription], options: dict[str, Any]
) -> None:
    for one, other in zip(opened(whisper, **options).transcribe_batch(spoken), transcriptions, strict=True):
        assert (one.text, one.language) == (other.text, other.language)
        assert one.mean_logprob == pytest.approx(other.mean_logprob, abs=0.05 if "dtype" in options else 1e-4)


def test_what_is_drawn_depends_on_the_clip_and_the_seed_alone(whisper: Path, spoken: list[Clip]) -> None:
    def texts(clips: list[Clip], seed: int = 0) -> list[str]:
        return [
            row.text for row in opened(whisper, temperature=4.0, seed=seed, max_new_tokens=8).transcribe_batch(clips)
        ]

    once = texts(spoken)
    assert texts(spoken[::-1]) == once[::-1]
    assert texts(spoken, seed=1) != once != list(TEXTS)


def test_a_ctc_model_of_capitals_has_log_likelihoods_and_a_whisper_has_none(
    whisper: Path, letters: Path, spoken: list[Clip]
) -> None:
    model, no_ctc = (Recognizer(RecognizerOptions(model=str(path))) for path in (letters, whisper))
    model.load()
    no_ctc.load()
    aligned = model.align([spoken[0].samples_T] * 3, (TEXTS[0], TEXTS[3], "ба ду"))
    right, wrong, foreign = (answer.logprob for answer in aligned)
    assert right is not None
    assert wrong is not None
    assert right > -0.5 > wrong
    assert foreign is None
    with pytest.raises(ConfigError, match="cannot measure how well a text fits"):
        no_ctc.check_alignment()


def test_a_text_cut_by_the_limit_of_tokens_is_marked(whisper: Path, spoken: list[Clip]) -> None:
    for text, row in zip(TEXTS, opened(whisper, max_new_tokens=2).transcribe_batch(spoken), strict=True):
        assert row.text == " ".join(text.split()[:2])
        assert (row.finish, row.num_tokens) == ("length", 2)


def test_clips_that_cannot_be_transcribed_are_errors_of_their_own(
    whisper: Path, letters: Path, poisoned: list[Clip]
) -> None:
    for model, errors in ((whisper, ["no audio", "no audio", "longer than the 30 s"]), (letters, ["no audio"] * 2)):
        transcriptions = opened(model).transcribe_batch(poisoned)
        assert [transcriptions[0].text, transcriptions[-1].text] == list(TEXTS[:2])
        assert transcriptions[0].error is transcriptions[-1].error is None
        assert transcriptions[-2].error is None  # silence is none
        assert math.isfinite(transcriptions[-2].mean_logprob or 0)
        for transcription, error in zip(transcriptions[1:-2], errors, strict=False):
            assert error in (transcription.error or "")
            assert (transcription.text, transcription.mean_logprob, transcription.finish) == ("", None, "failed")


def test_languages_that_a_model_does_not_know_are_refused(whisper: Path, letters: Path) -> None:
    with pytest.raises(ConfigError, match=r"`teacher.language` is `klingon`") as caught:
        opened(whisper, language="klingon")
    assert "sw" in caught.value.why
    for option in ({"language": "en"}, {"num_beams": 2}):
        with pytest.raises(ConfigError, match=f"`teacher.{next(iter(option))}` has no effect"):
            opened(letters, **option)


def test_letters_are_decoded_as_by_transformers(letters: Path, spoken: list[Clip]) -> None:
    from transformers import AutoFeatureExtractor, AutoModelForCTC, AutoTokenizer

    transcriptions = opened(letters).transcribe_batch(spoken)
    assert [transcription.text for transcription in transcriptions] == list(TEXTS)
    extractor, tokenizer = (kind.from_pretrained(letters) for kind in (AutoFeatureExtractor, AutoTokenizer))
    theirs = AutoModelForCTC.from_pretrained(letters).eval()
    for clip, ours in zip(spoken, transcriptions, strict=True):
        inputs = extractor(wave(clip), sampling_rate=RATE_HZ, return_tensors="pt")
        with torch.no_grad():
            logprob_FV = theirs(**inputs).logits[0].log_softmax(-1)
        peak_F, best_F = logprob_FV.max(-1)
        assert tokenizer.decode(best_F) == ours.text
        ends = [*torch.nonzero(best_F.diff()).flatten().tolist(), len(best_F) - 1]
        starts = [0, *(end + 1 for end in ends[:-1])]
        runs = [float(peak_F[a : b + 1].mean()) for a, b in zip(starts, ends, strict=True) if best_F[a] != 0]
        assert ours.mean_logprob == pytest.approx(float(np.mean(runs)), abs=1e-3)
        assert " ".join(word.text for word in ours.words) == ours.text
        assert all(0 <= word.start_ms < word.end_ms <= len(clip.samples_T) // 16 for word in ours.words)


@pytest.fixture(scope="session")
def moonshine(whisper: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Moonshine that has learnt nothing; it has the tokenizer of another."""
    import transformers

    folder: Path = tmp_path_factory.mktemp("moonshine")
    transformers.PreTrainedTokenizerFast.from_pretrained(whisper).save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    config = transformers.MoonshineConfig(
        vocab_size=len(tokenizer),
        hidden_size=48,
        intermediate_size=96,
        encoder_num_hidden_layers=1,
        decoder_num_hidden_layers=1,
        encoder_num_attention_heads=4,
        decoder_num_attention_heads=4,
        decoder_start_token_id=1,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        initializer_range=0.2,
    )
    torch.manual_seed(1)
    transformers.MoonshineForConditionalGeneration(config).save_pretrained(folder)
    extractor = transformers.Wav2Vec2FeatureExtractor(do_normalize=False, return_attention_mask=True)
    transformers.Wav2Vec2Processor(extractor, tokenizer).save_pretrained(folder)
    return folder


def test_a_moonshine_gives_the_text_of_transformers(moonshine: Path, spoken: list[Clip]) -> None:
    from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor

    transcriptions = opened(moonshine, max_new_tokens=12, batch_ms=100_000).transcribe_batch(spoken)
    processor = AutoProcessor.from_pretrained(moonshine)
    theirs = AutoModelForSpeechSeq2Seq.from_pretrained(moonshine).eval()
    for clip, ours in zip(spoken, transcriptions, strict=True):
        inputs = processor(wave(clip), sampling_rate=RATE_HZ, return_tensors="pt")
        output = theirs.generate(
            **inputs, max_new_tokens=12, return_dict_in_generate=True, output_scores=True, do_sample=False
        )
        scores_U = theirs.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)[0]
        assert processor.decode(output.sequences[0, 1:], skip_special_tokens=True).strip() == ours.text != ""
        assert ours.mean_logprob == pytest.approx(float(scores_U.mean()), abs=1e-3)
        assert ours.language is None


def test_code_that_comes_with_a_checkpoint_is_warned_of(
    moonshine: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("voxstill"), "propagate", True)
    opened(moonshine, trust_remote_code=True)
    assert "trust_remote_code" in caplog.text


def test_a_checkpoint_that_is_no_recogniser_is_an_error(letters: Path, tmp_path: Path) -> None:
    config = json.loads((letters / "config.json").read_text())
    (tmp_path / "model.safetensors").touch()
    for model_type in ("bert", "no such thing"):
        (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": model_type}))
        with pytest.raises(DataError, match="contains no student and no other recogniser"):
            opened(tmp_path)


def test_a_name_on_the_hub_is_what_no_folder_here_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert on_hub("openai/whisper-tiny")
    (tmp_path / "exp").mkdir()
    assert not any(map(on_hub, ("exp/mine", "/exp/mine", "exp/mine/model", "./exp", "exp")))


FROM_HUB = """
import sys
import numpy as np
from voxstill.decoding.options import RecognizerOptions
from voxstill.core.errors import DataError
from voxstill.core.records import Utterance
from voxstill.teachers.teacher import Clip
from voxstill.teachers.transformers import TransformersTeacher
teacher = TransformersTeacher(RecognizerOptions(model="owner/letters", revision="main"))
teacher.load()
clip = Clip(utterance=Utterance(id="u", recording_id="r", uri="", end_ms=1), samples_T=np.load(sys.argv[1]))
print(teacher.revision(), teacher.transcribe_batch([clip])[0].text)
try:
    TransformersTeacher(RecognizerOptions(model="owner/letters", revision="none")).revision()
except DataError as error:
    print(error.what)
"""


def test_a_name_on_the_hub_is_read_from_its_cache_and_its_commit_is_its_revision(
    letters: Path, spoken: list[Clip], tmp_path: Path
) -> None:
    commit, folder = "0123456789abcdef" * 2 + "01234567", tmp_path / "hub" / "models--owner--letters"
    shutil.copytree(letters, folder / "snapshots" / commit)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    np.save(tmp_path / "clip.npy", spoken[0].samples_T)
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}

    command = [sys.executable, "-c", FROM_HUB, str(tmp_path / "clip.npy")]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    message = "`owner/letters` cannot be fetched from the Hugging Face Hub"
    assert process.stdout.splitlines()[-2:] == [f"{commit[:16]} {TEXTS[0]}", message], process.stderr


def test_ctc_gives_the_same_text_in_half_precision(letters: Path, tone_student: Path, spoken: list[Clip]) -> None:
    for model in (letters, tone_student):
        for half, whole in zip(
            opened(model, dtype="bfloat16").transcribe_batch(spoken),
            opened(model).transcribe_batch(spoken),
            strict=True,
        ):
            assert half.text == whole.text
            assert half.mean_logprob == pytest.approx(whole.mean_logprob, abs=0.05)


def test_a_thousand_clips_are_answered_in_order(letters: Path, spoken: list[Clip]) -> None:
    order = np.random.default_rng(0).integers(len(spoken), size=1000)
    transcriptions = opened(letters, batch_ms=100_000).transcribe_batch([spoken[i] for i in order])
    assert [transcription.text for transcription in transcriptions] == [TEXTS[i] for i in order]
