"""Engines of other packages with tiny random models, and any program: turns, or the reason why there are none."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from diarization_models import write_embedding, write_segmentation, write_sortformer
from voxstill.core.config import Diarize
from voxstill.core.errors import ConfigError
from voxstill.diarization.diarizer import Diarization, Diarizer
from voxstill.diarization.turns import Turn

PROGRAM = """
import os, sys, wave
with wave.open(sys.argv[-1]) as wav:
    assert (wav.getframerate(), wav.getnchannels(), wav.getsampwidth()) == (16000, 1, 2)
    seconds = wav.getnframes() / 16000
assert "PYTHONPATH" not in os.environ
print("SPEAKER audio 1 0.000 1.500 <NA> <NA> zoe <NA> <NA>")
print(f"SPEAKER audio 1 1.000 {seconds - 1:.3f} <NA> <NA> adam <NA> <NA>")
"""


def noise(seconds: float) -> NDArray[np.int16]:
    return np.random.default_rng(0).normal(0, 3_000, int(seconds * 16_000)).astype(np.int16)


def diarize(samples_T: NDArray[np.int16], **options: object) -> Diarization:
    with Diarizer(Diarize.model_validate(options)) as diarizer:
        return diarizer.diarize(samples_T)


def program(folder: Path, code: str) -> list[str]:
    path = folder / "diarize.py"
    path.write_text(code)
    return [sys.executable, str(path)]


def test_a_program_reads_wav_and_writes_rttm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = diarize(noise(4), name="command", command=program(tmp_path, PROGRAM))
    assert result.error is None
    assert result.turns == (
        Turn(start_ms=0, end_ms=1_500, speaker=1, overlap=True),
        Turn(start_ms=1_000, end_ms=4_000, speaker=2, overlap=True),
    )
    assert result.warning is not None


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import sys; sys.exit('no model here')", "it ended with 1: no model here"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "it ended with -9: no message"),
        ("print('SPEAKER audio 1 0.0')", "fewer than eight columns"),
        ("import time; time.sleep(60)", "it took longer than `diarize.timeout_s`, 1 s"),
    ],
)
def test_what_a_program_does_wrong_is_the_reason(tmp_path: Path, code: str, reason: str) -> None:
    result = diarize(noise(1), name="command", command=program(tmp_path, code), timeout_s=1.0 if "60" in code else 60.0)
    assert result.turns == ()
    assert result.error is not None
    assert result.error.startswith("diarization has failed: ")
    assert reason in result.error


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be run"):
        diarize(noise(1), name="command", command=[str(tmp_path / "none")])


@pytest.fixture(scope="module")
def sortformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sortformer(tmp_path_factory.mktemp("sortformer"))


@pytest.mark.parametrize("seconds", [0.05, 0.4, 7.3])
def test_a_streaming_sortformer_hears_several_speakers_at_once(sortformer: Path, seconds: float) -> None:
    result = diarize(noise(seconds), name="transformers", model=str(sortformer))
    assert result.error is None
    assert {turn.speaker for turn in result.turns} <= {1, 2, 3, 4}
    assert all(0 <= turn.start_ms < turn.end_ms <= seconds * 1000 for turn in result.turns)
    if seconds > 5:
        assert any(turn.overlap for turn in result.turns)
    silent = diarize(noise(seconds), name="transformers", model=str(sortformer), threshold=0.99)
    assert silent.turns == ()


def test_chunks_of_a_stream_give_what_one_pass_gives(sortformer: Path) -> None:
    """With the sizes of its own streaming mode, frame for frame; here it is told by the number of frames."""
    from voxstill.diarization.engines.transformers import TransformersEngine, TransformersOptions

    engine = TransformersEngine(TransformersOptions(model=str(sortformer)))
    engine.load()
    for num_samples in (16_000, 25_600, 25_601, 51_200, 99_999):
        frames = len(engine._active(noise(num_samples / 16_000)))
        assert abs(frames - num_samples / 160) <= 2


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded by transformers"):
        diarize(noise(1), name="transformers", model=str(tmp_path))


def test_sherpa_onnx_diarizes_with_its_two_models(tmp_path: Path) -> None:
    pytest.importorskip("sherpa_onnx")
    pytest.importorskip("onnx")
    models = {
        "segmentation": str(write_segmentation(tmp_path / "segmentation.onnx")),
        "embedding": str(write_embedding(tmp_path / "embedding.onnx")),
    }
    result = diarize(noise(15), name="sherpa-onnx", num_speakers=2, **models)
    assert result.error is None
    assert result.num_speakers == 2
    assert all(0 <= turn.start_ms < turn.end_ms <= 15_100 for turn in result.turns)
    swapped = {"segmentation": models["embedding"], "embedding": models["segmentation"]}
    with pytest.raises(ConfigError, match="do not run") as error:  # sherpa-onnx ends its process
        diarize(noise(1), name="sherpa-onnx", **swapped)
    assert error.value.why
