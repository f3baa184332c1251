"""A streaming student on streams: its words stay, and at the end they are those of the whole utterance."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tones import TEXTS, speak
from voxstill.core.config import Decode
from voxstill.core.errors import ConfigError
from voxstill.core.records import Hypothesis
from voxstill.decoding.options import RecognizerOptions
from voxstill.decoding.recognizer import Recognizer

SPOKEN = [speak(text, i)[0] for i, text in enumerate(TEXTS)]


def loaded(folder: Path, decoding: Decode | None = None) -> Recognizer:
    recognizer = Recognizer(RecognizerOptions(model=str(folder), dtype="float32"), decoding)
    recognizer.load()
    return recognizer


@pytest.fixture(scope="module", params=["torch", "onnx"])
def folder(request: pytest.FixtureRequest, streaming_tone_student: Path, exported_streaming_tone_student: Path) -> Path:
    """The folder of the student, or its export."""
    return streaming_tone_student if request.param == "torch" else exported_streaming_tone_student


def advance(recognizer: Recognizer, samples: Sequence[NDArray[np.int16]], block: int) -> list[list[Hypothesis]]:
    """The hypotheses of each stream, one for each block until its end; all streams are advanced together."""
    streams, hypotheses = [recognizer.open_stream() for _ in samples], [list[Hypothesis]() for _ in samples]
    for end in range(block, max(map(len, samples)) + block, block):
        rows = [i for i, samples_T in enumerate(samples) if end - block < len(samples_T)]
        so_far, is_last = [samples[i][:end] for i in rows], [end >= len(samples[i]) for i in rows]
        for i, hypothesis in zip(rows, recognizer.advance([streams[i] for i in rows], so_far, is_last), strict=True):
            hypotheses[i].append(hypothesis)
    return hypotheses


@pytest.mark.parametrize(("chunk_ms", "block"), [(560, 1600), (560, 100_000), (160, 511)])
def test_the_end_is_the_whole_and_no_word_changes(folder: Path, chunk_ms: int, block: int) -> None:
    recognizer = loaded(folder, Decode.model_validate({"chunk_ms": chunk_ms}))
    assert recognizer.chunk_ms == chunk_ms
    whole = recognizer.transcribe_batch(SPOKEN)
    streamed = advance(recognizer, SPOKEN, block)
    for expected, hypotheses in zip(whole, streamed, strict=True):
        final = hypotheses[-1]
        assert (final.text, final.token_ids) == (expected.text, expected.token_ids)
        assert [(word.text, word.start_ms, word.end_ms) for word in final.words] == [
            (word.text, word.start_ms, word.end_ms) for word in expected.words
        ]
        texts = [hypothesis.text.split() for hypothesis in hypotheses]
        assert all(later[: len(words)] == words for words, later in itertools.pairwise(texts))
    if chunk_ms == 560:
        assert [hypothesis.text for hypothesis in whole] == list(TEXTS)


def test_words_come_before_the_end(folder: Path) -> None:
    [hypotheses] = advance(loaded(folder), [SPOKEN[2]], 1600)
    assert any(0 < len(hypothesis.words) < 4 for hypothesis in hypotheses[:-1])


def test_the_export_writes_what_torch_writes(
    streaming_tone_student: Path, exported_streaming_tone_student: Path
) -> None:
    for chunk_ms in (560, 160):
        decoding = Decode.model_validate({"chunk_ms": chunk_ms})
        ours, theirs = (
            loaded(path, decoding).transcribe_batch(SPOKEN)
            for path in (streaming_tone_student, exported_streaming_tone_student)
        )
        assert [hypothesis.token_ids for hypothesis in ours] == [hypothesis.token_ids for hypothesis in theirs]


def test_a_beam_and_phrases_work_on_utterances(folder: Path) -> None:
    recognizer = loaded(folder, Decode(beam=4))
    assert [hypothesis.text for hypothesis in recognizer.transcribe_batch(SPOKEN)] == list(TEXTS)
    assert recognizer.takes_phrases
    recognizer.transcribe_batch(SPOKEN, phrases=["mi mi"])


def test_an_audio_without_a_frame_is_no_audio(folder: Path) -> None:
    recognizer = loaded(folder)
    [hypothesis] = recognizer.advance([recognizer.open_stream()], [np.zeros(0, np.int16)], [False])
    assert (hypothesis.text, hypothesis.error) == ("", None)
    for num in (0, 159):
        [hypothesis] = recognizer.advance([recognizer.open_stream()], [np.zeros(num, np.int16)], [True])
        assert (hypothesis.text, hypothesis.error) == ("", "no audio")
        assert recognizer.transcribe_batch([np.zeros(num, np.int16)])[0].error == "no audio"


def test_a_length_that_is_not_there_is_refused(tone_student: Path, exported_streaming_tone_student: Path) -> None:
    with pytest.raises(ConfigError, match="chunk_ms"):
        loaded(tone_student, Decode.model_validate({"chunk_ms": 560}))
    with pytest.raises(ConfigError, match=r"encoder\.80ms\.onnx"):
        loaded(exported_streaming_tone_student, Decode.model_validate({"chunk_ms": 80}))
    encoder = exported_streaming_tone_student / "encoder.560ms.onnx"
    with pytest.raises(ConfigError, match="chunk_ms"):
        loaded(encoder, Decode.model_validate({"chunk_ms": 160}))
