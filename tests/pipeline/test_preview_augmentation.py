"""explain --hear: what is written is what a student hears, and each part of the augmentation changes it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from checkpoints import write_waveform_checkpoint
from tones import TEXTS, speak
from voxstill import cli
from voxstill.audio import codec
from voxstill.nn.log_mel import LogMel

EVERYTHING = {"before", "heard", "noise", "room", "gain", "tempo", "warp", "masks", "all"}


@pytest.fixture
def source(tmp_path: Path) -> list[str]:
    """Options that name four utterances, a noise and a room."""
    for name in ("source", "noise", "rooms"):
        (tmp_path / name).mkdir()
    for i, text in enumerate(TEXTS):
        (tmp_path / f"source/{i}.flac").write_bytes(codec.encode(speak(text, i)[0], "flac"))
    (tmp_path / "source/torn.flac").write_bytes(b"fLaC")
    noise_T = np.random.default_rng(0).normal(0, 500, 16_000).astype(np.int16)
    (tmp_path / "noise/one.flac").write_bytes(codec.encode(noise_T, "flac"))
    rir_T = (20_000 * 0.999 ** np.arange(4000) * np.random.default_rng(1).normal(0, 0.3, 4000)).astype(np.int16)
    rir_T[0] = 30_000
    (tmp_path / "rooms/one.flac").write_bytes(codec.encode(rir_T, "flac"))
    return [
        f"source.uri={tmp_path}/source",
        f"augment.noise={tmp_path}/noise",
        f"augment.rirs={tmp_path}/rooms",
        "augment.gain_db=6",
    ]


def previews(options: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, list[np.ndarray]]:
    """Samples of each file by what was done."""
    arguments = [argument for option in options for argument in ("--set", option)]
    assert cli.main(["explain", "--hear", "augment", "--output", str(folder), "--json", *arguments]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert len(files) == len(list(folder.iterdir()))
    samples: dict[str, list[np.ndarray]] = {}
    for file in files:
        assert file["what"]
        assert file["source"]
        name = Path(file["file"]).stem.partition("-")[2]
        samples.setdefault(name, []).append(codec.decode(Path(file["file"]).read_bytes()).samples_T)
    return samples


def log_mels(samples_T: np.ndarray) -> torch.Tensor:
    mel_BFD, _ = LogMel().unnormalised(torch.from_numpy(samples_T)[None], torch.tensor([len(samples_T)]))
    return mel_BFD[0]


def test_the_augmentation_of_mels_can_be_listened_to(
    source: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = previews(source, tmp_path / "out", capsys)
    assert samples.keys() == EVERYTHING
    assert {len(entry) for entry in samples.values()} == {4}
    for i, text in enumerate(TEXTS):
        before_T = speak(text, i)[0]
        assert np.array_equal(samples["before"][i], before_T)
        assert abs(len(samples["heard"][i]) - len(before_T)) < 160
        wanted_FD, made_FD = log_mels(before_T), log_mels(samples["heard"][i])
        size = min(len(wanted_FD), len(made_FD))
        both = torch.stack([wanted_FD[:size].flatten(), made_FD[:size].flatten()])
        assert torch.corrcoef(both)[0, 1] > 0.85  # speech has 0.97 to 0.99, pure tones less
        assert len(samples["tempo"][i]) == pytest.approx(len(before_T) * (1.1 if i % 2 == 0 else 0.9), rel=0.02)
        for name in EVERYTHING - {"before", "heard", "tempo", "all"}:
            size = min(len(samples[name][i]), len(samples["heard"][i]))
            assert np.abs(samples[name][i][:size] - samples["heard"][i][:size].astype(float)).mean() > 1, name


def test_the_augmented_input_of_a_waveform_student_is_written_unchanged(
    source: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_waveform_checkpoint(tmp_path / "checkpoint", "Wav2Vec2")
    samples = previews([*source, f"student.checkpoint={folder}"], tmp_path / "out", capsys)
    assert samples.keys() == EVERYTHING - {"warp", "masks"}
    for before_T, augmented_T in zip(samples["before"], samples["heard"], strict=True):
        assert np.abs(before_T.astype(int) - augmented_T).max() <= 1


def test_augmentation_that_is_off_is_not_written_and_a_corpus_without_audio_is_an_error(
    source: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = previews(
        [source[0], "augment.tempo=0", "augment.time_masks=0", "augment.mel_masks=0"], tmp_path / "o", capsys
    )
    assert samples.keys() == {"before", "heard", "noise", "warp", "all"}
    (tmp_path / "empty").mkdir()
    command = ["explain", "--hear", "augment", "--set", f"source.uri={tmp_path}/empty", "--output", str(tmp_path / "p")]
    assert cli.main(command) == 3
    assert "there is no audio in" in capsys.readouterr().err
