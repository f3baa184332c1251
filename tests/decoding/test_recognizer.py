"""A student as a recogniser: each utterance has its own text, and `transformers` alone writes the same."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tones import TEXTS, speak
from voxstill.core.config import Decode
from voxstill.core.errors import ConfigError, DataError
from voxstill.decoding.checkpoint_files import model_folder
from voxstill.decoding.loaded import Samples
from voxstill.decoding.options import RecognizerOptions
from voxstill.decoding.recognizer import Recognizer, batches_by_length
from voxstill.decoding.search import PHRASE_BEAM

SPOKEN = [speak(text, i)[0] for i, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def recognizer(tone_student: Path) -> Recognizer:
    student = Recognizer(RecognizerOptions(model=str(tone_student.parent)))
    student.load()
    return student


def log_likelihoods(recognizer: Recognizer, samples: Sequence[Samples], texts: Sequence[str]) -> list[float | None]:
    return [answer.logprob for answer in recognizer.align(samples, texts)]


def test_every_utterance_gets_its_own_text_in_order(recognizer: Recognizer) -> None:
    assert [hypothesis.text for hypothesis in recognizer.transcribe_batch(SPOKEN)] == list(TEXTS)
    assert [hypothesis.text for hypothesis in recognizer.transcribe_batch(SPOKEN[::-1])] == list(TEXTS[::-1])


def test_an_answer_has_confidence_tokens_and_words_within_the_clip(recognizer: Recognizer) -> None:
    for samples_T, hypothesis in zip(SPOKEN, recognizer.transcribe_batch(SPOKEN), strict=True):
        assert hypothesis.score is not None
        assert -1 < hypothesis.score <= 0
        assert len(hypothesis.token_ids) == len(hypothesis.words) == len(hypothesis.text.split())
        assert " ".join(word.text for word in hypothesis.words) == hypothesis.text
        assert all(0 <= word.start_ms < word.end_ms <= len(samples_T) // 16 + 80 for word in hypothesis.words)
        assert (hypothesis.error, hypothesis.finish) == (None, "stop")


def test_the_batch_of_a_clip_changes_nothing(tone_student: Path, recognizer: Recognizer) -> None:
    alone = Recognizer(RecognizerOptions(model=str(tone_student), batch_ms=1000))
    alone.load()
    for one, two in zip(recognizer.transcribe_batch(SPOKEN), alone.transcribe_batch(SPOKEN), strict=True):
        assert (one.text, [(w.start_ms, w.end_ms) for w in one.words]) == (
            two.text,
            [(w.start_ms, w.end_ms) for w in two.words],
        )
        assert one.score == pytest.approx(two.score, abs=1e-4)


def test_a_clip_too_short_to_transcribe_is_an_error_row_among_the_others(recognizer: Recognizer) -> None:
    hypotheses = recognizer.transcribe_batch([SPOKEN[0], np.zeros(0, np.int16), np.ones(159, np.int16), SPOKEN[1]])
    assert [hypothesis.text for hypothesis in hypotheses] == [TEXTS[0], "", "", TEXTS[1]]
    assert [hypothesis.error is None for hypothesis in hypotheses] == [True, False, False, True]
    assert hypotheses[1].finish == "failed"
    assert recognizer.transcribe_batch([]) == []


def test_silence_is_no_error(recognizer: Recognizer) -> None:
    (hypothesis,) = recognizer.transcribe_batch([np.zeros(8000, np.int16)], ["u7"])
    assert (hypothesis.id, hypothesis.error) == ("u7", None)


def test_a_recogniser_has_its_number_of_parameters_and_its_longest_clip(recognizer: Recognizer) -> None:
    assert recognizer.max_duration_ms is None
    assert 1_000_000 < recognizer.num_parameters < 3_000_000


def test_the_spoken_text_has_a_higher_log_likelihood_than_similar_ones(recognizer: Recognizer) -> None:
    for samples_T, text in zip(SPOKEN, TEXTS, strict=True):
        words = text.split()
        others = [" ".join(words[1:]), " ".join(words[:-1]), f"{text} ba", " ".join(["mi", *words[1:]]), *TEXTS]
        others = [other for other in others if other != text]
        best, *rest = log_likelihoods(recognizer, [samples_T] * (1 + len(others)), (text, *others))
        assert best is not None
        assert -0.5 < best <= 0
        assert all(value is not None and value < best - 0.5 for value in rest)


def test_a_text_that_cannot_be_tokenized_or_is_too_long_has_no_log_likelihood(recognizer: Recognizer) -> None:
    texts = ["Ba, DU ko!", "ba du ice", "", "ba du ko " * 20, "ba du ko"]
    values = log_likelihoods(recognizer, [SPOKEN[0]] * len(texts), texts)
    assert [value is None for value in values] == [False, True, True, True, False]
    assert values[0] == pytest.approx(values[-1], abs=1e-4)
    short_T = np.zeros(9, np.int16)
    likelihoods = log_likelihoods(recognizer, [short_T, SPOKEN[0]], ["ba", "ba du ko"])
    assert likelihoods == [None, pytest.approx(values[-1], abs=1e-4)]
    assert log_likelihoods(recognizer, [], []) == []


def test_aligned_words_are_where_they_are_said(recognizer: Recognizer) -> None:
    for text in ("ba du ko " * 20 + "mi", "Ba, du - ko! (mi)"):
        spelt = [word for word in text.split() if word != "-"]
        samples_T, spoken = speak(" ".join(word.strip(",!()").lower() for word in spelt), 7)
        (answer, untimed) = recognizer.align([samples_T] * 2, [text] * 2, [True, False])
        assert (untimed.logprob, untimed.words) == (pytest.approx(answer.logprob, abs=1e-4), ())
        assert [word.text for word in answer.words] == text.split()
        for word, true in zip((word for word in answer.words if word.text != "-"), spoken, strict=True):
            assert word.start_ms < true.end_ms
            assert true.start_ms < word.end_ms
            assert abs(word.start_ms - true.start_ms) <= 80
        assert all(word.start_ms == word.end_ms for word in answer.words if word.text == "-")


def test_a_text_without_an_alignment_has_no_word_times(recognizer: Recognizer) -> None:
    texts = ["ba du ice", "", "ba du ko " * 20]
    answers = recognizer.align([SPOKEN[0]] * len(texts), texts, [True] * len(texts))
    assert [(answer.logprob, answer.words) for answer in answers] == [(None, ())] * len(texts)


@given(st.lists(st.integers(0, 400_000), max_size=30), st.integers(1000, 60_000), st.sampled_from([0, 480_000]))
def test_batches_hold_every_usable_clip_once_within_the_budget(
    num_samples: list[int], batch_ms: int, window: int
) -> None:
    batches = batches_by_length(num_samples, batch_ms, window)
    assert sorted(i for members in batches for i in members) == [i for i, n in enumerate(num_samples) if n >= 160]
    for members in batches:
        assert members
        longest = max(window, *(num_samples[i] for i in members))
        assert len(members) == 1 or longest * len(members) <= batch_ms * 16
    lengths = [num_samples[i] for members in batches for i in members]
    assert lengths == sorted(lengths)


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


def test_a_saved_student_transcribes_the_same_with_transformers_alone(
    tone_student: Path, recognizer: Recognizer, tmp_path: Path
) -> None:
    file = tmp_path / "clips.json"
    file.write_text(json.dumps([samples_T.tolist() for samples_T in SPOKEN]))
    process = subprocess.run(
        [sys.executable, "-c", ALONE, str(tone_student), str(file)], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr[-2000:]
    kind, texts = json.loads(process.stdout.splitlines()[-1])
    assert kind == "ParakeetForCTC"
    assert texts == [hypothesis.text for hypothesis in recognizer.transcribe_batch(SPOKEN)] == list(TEXTS)


def test_the_revision_differs_for_other_weights_and_vocabularies(tone_student: Path, tmp_path: Path) -> None:
    def revision(folder: Path) -> str:
        return Recognizer(RecognizerOptions(model=str(folder))).revision()

    other = tmp_path / "model"
    shutil.copytree(tone_student, other)
    assert revision(other) == revision(tone_student)
    for name in ("model.safetensors", "tokenizer.json"):
        (other / name).write_bytes((other / name).read_bytes() + b" ")
        assert revision(other) != revision(tone_student)


def test_a_folder_without_a_student_is_an_error_before_anything_is_loaded(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone"):
        with pytest.raises(ConfigError, match="no student") as caught:
            Recognizer(RecognizerOptions(model=str(path)))
        assert caught.value.fix


def test_the_experiment_folder_means_the_model_in_it(tone_student: Path) -> None:
    assert model_folder(str(tone_student.parent)) == model_folder(str(tone_student)) == tone_student


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_damaged_student_is_an_error_when_opened(tone_student: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tone_student, folder)
    (folder / name).write_bytes((folder / name).read_bytes()[:100])
    with pytest.raises(DataError, match=r"contains no (student|vocabulary of a student)"):
        Recognizer(RecognizerOptions(model=str(folder))).load()


def test_phrases_of_a_call_are_listened_for_as_those_of_the_options_are(tone_student: Path) -> None:
    samples = [speak(text, seed)[0] for seed, text in enumerate(TEXTS)]
    options = RecognizerOptions(model=str(tone_student))
    by_options = Recognizer(options, Decode(beam=PHRASE_BEAM, boost=["mi mi", "ba"], boost_weight=30.0))
    by_call = Recognizer(options, Decode(boost_weight=30.0))
    by_options.load()
    by_call.load()
    plain = by_call.transcribe_batch(samples)
    boosted = by_call.transcribe_batch(samples, phrases=["mi mi", "ba"])
    assert by_call.takes_phrases
    assert [hypothesis.text for hypothesis in boosted] != [hypothesis.text for hypothesis in plain] == list(TEXTS)
    assert [hypothesis.text for hypothesis in boosted] == [
        hypothesis.text for hypothesis in by_options.transcribe_batch(samples)
    ]
    assert [hypothesis.text for hypothesis in by_call.transcribe_batch(samples)] == list(TEXTS)
