"""A streaming student from its configuration: what cannot be combined with it, its defaults, and its folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from small_students import write_student
from tones import TEXTS, speak
from voxstill.core import config, pcm
from voxstill.core.errors import ConfigError
from voxstill.decoding.options import RecognizerOptions
from voxstill.decoding.recognizer import Recognizer
from voxstill.tasks import recognition
from voxstill.training.check import check

STREAMING = ["student.streaming=true", "student.kind=rnnt"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["student.streaming=true"], "student.kind: ctc"),
        ([*STREAMING, "student.normalization=level"], "student.normalization: level"),
        ([*STREAMING, "student.task=classes"], "student.task: classes"),
        (["student.streaming=true", "student.kind=tdt"], "student.kind: tdt"),
    ],
)
def test_what_does_not_go_with_streaming_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        config.load(None, overrides)
    assert caught.value.fix


def test_a_length_of_chunks_without_a_streaming_student_is_refused_before_the_training() -> None:
    with pytest.raises(ConfigError, match=r"`decode\.chunk_ms` has no effect"):
        check(config.load(None, ["train.steps=1", "decode.chunk_ms=160", "student.kind=rnnt"]))
    check(config.load(None, ["train.steps=1", "decode.chunk_ms=160", *STREAMING]))


def test_a_checkpoint_that_hears_utterances_as_a_whole_is_refused(tmp_path: Path) -> None:
    folder = write_student(tmp_path / "model", "rnnt", "level")
    with pytest.raises(ConfigError, match=r"student.streaming.*cannot be used with"):
        recognition.frontend_of(config.load(None, [*STREAMING, f"student.checkpoint={folder}"]), None)


def test_a_streaming_checkpoint_goes_on_as_one(streaming_tone_student: Path) -> None:
    cfg = config.load(None, ["student.kind=rnnt", f"student.checkpoint={streaming_tone_student}"])
    frontend = recognition.frontend_of(cfg, None)
    assert int(frontend.num_frames(16_000)) == 14
    vocabulary = recognition.new_vocabulary(TEXTS, cfg.student, frontend)
    model = recognition.new_student(cfg, vocabulary)
    assert type(model).__name__ == "NemotronAsrStreamingForRNNT"
    with pytest.raises(ConfigError, match="it is a streaming student"):
        recognition.new_student(
            config.load(None, ["student.kind=ctc", f"student.checkpoint={streaming_tone_student}"]), vocabulary
        )


def test_transformers_alone_writes_the_same(streaming_tone_student: Path) -> None:
    model = transformers.AutoModelForRNNT.from_pretrained(streaming_tone_student).eval()
    processor = transformers.AutoProcessor.from_pretrained(streaming_tone_student)
    assert type(processor).__name__ == "NemotronAsrStreamingProcessor"
    assert processor.default_num_lookahead_tokens == 6
    recognizer = Recognizer(RecognizerOptions(model=str(streaming_tone_student)))
    recognizer.load()
    for i, text in enumerate(TEXTS):
        samples_T = speak(text, i)[0]
        inputs = processor(pcm.to_float(samples_T), sampling_rate=16_000)
        with torch.inference_mode():
            output = model.generate(**inputs)
        [theirs] = processor.batch_decode(getattr(output, "sequences", output), skip_special_tokens=True)
        [ours] = recognizer.transcribe_batch([samples_T])
        assert theirs.strip() == ours.text == text
