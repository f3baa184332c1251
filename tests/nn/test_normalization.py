"""`student.normalization`: what `level` leaves as it is, and how a student says which one it was trained with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoFeatureExtractor

from tones import PLAIN, TEXTS, speak
from voxstill.core.config import Augment
from voxstill.core.errors import ConfigError
from voxstill.nn import checkpoints, students
from voxstill.nn.frontends import LogMelFrontend
from voxstill.nn.log_mel import LEVEL_RANGE_DB, LogMel, feature_frames, level

LEVEL = LogMel(normalization="level")
EXTRACTOR = AutoFeatureExtractor.from_pretrained  # called with a folder


def clip(gain_db: float = 0.0, seed: int = 0) -> Tensor:
    samples_T, _ = speak(TEXTS[seed % len(TEXTS)], seed)
    return torch.from_numpy(samples_T / 32768.0 * 10 ** (gain_db / 20)).float()[None]


def features(log_mel: LogMel, wave_BT: Tensor) -> Tensor:
    features_BFD, _ = log_mel(wave_BT, torch.tensor([wave_BT.shape[1]]))
    return features_BFD


def level_db(wave_BT: Tensor) -> float:
    return float(level(*LEVEL.unnormalised(wave_BT, torch.tensor([wave_BT.shape[1]]))))


@settings(max_examples=20, deadline=None)
@given(num_samples=st.integers(320, 30_000), loudness=st.sampled_from([300, 3000, 12_000]), seed=st.integers(0, 99))
def test_speech_of_a_usual_level_has_the_features_of_transformers(
    tmp_path_factory: pytest.TempPathFactory, num_samples: int, loudness: int, seed: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "level"
    folder.mkdir(exist_ok=True)
    (folder / "preprocessor_config.json").write_text(json.dumps(dict(LEVEL.extractor)))
    samples_T = np.random.default_rng(seed).normal(0, loudness / 3, num_samples).clip(-32768, 32767).astype(np.int16)
    samples_T = samples_T / np.float32(32768)
    unchanged = LogMel(normalization="none")
    reference = EXTRACTOR(folder)(samples_T, sampling_rate=16_000, return_tensors="pt")
    frames = int(reference["attention_mask"].sum())
    assert frames == feature_frames(num_samples)
    expected_FD = reference["input_features"][0, :frames]
    wave_1T = torch.from_numpy(samples_T)[None]
    assert torch.allclose(features(unchanged, wave_1T)[0, :frames], expected_FD, atol=1e-3)
    if abs(level_db(wave_1T)) < LEVEL_RANGE_DB:
        assert torch.allclose(features(LEVEL, wave_1T)[0, :frames], expected_FD, atol=1e-3)


@pytest.mark.parametrize("gain_db", [-26.0, 30.0])
def test_louder_and_fainter_speech_is_brought_to_the_edge_of_the_range(gain_db: float) -> None:
    edge_db = LEVEL_RANGE_DB if gain_db > 0 else -LEVEL_RANGE_DB
    at_edge = clip(edge_db - level_db(clip()))
    loud_FD = LEVEL.unnormalised(at_edge, torch.tensor([at_edge.shape[1]]))[0][0, :-1] > -9  # far above the floor
    out, edge = features(LEVEL, clip(gain_db))[0, :-1], features(LEVEL, at_edge)[0, :-1]
    assert loud_FD.float().mean() > 0.02
    assert torch.allclose(out[loud_FD], edge[loud_FD], atol=0.05)


def test_the_level_follows_the_gain_and_hardly_the_noise_between_the_words() -> None:
    assert level_db(clip(7.0)) - level_db(clip()) == pytest.approx(7.0, abs=0.1)
    noise_BT = torch.randn(clip().shape, generator=torch.Generator().manual_seed(0))
    speech_db = 10 * torch.log10(clip().square().mean())
    noisy_BT = clip() + noise_BT * 10 ** ((speech_db - 10) / 20)
    assert abs(level_db(noisy_BT) - level_db(clip())) < 1.0


def test_silence_and_one_frame_have_finite_features() -> None:
    for num_samples in (160, 5000):
        assert features(LEVEL, torch.zeros(1, num_samples)).isfinite().all()


def test_padding_changes_neither_features_nor_logits() -> None:
    model = students.build("tiny", 10, dropout=0.0, seed=0, normalization="level").eval()
    clips = [clip(gain_db, seed)[0] for seed, gain_db in enumerate((0, -50, 20, -10))]
    audio_BT = torch.nn.utils.rnn.pad_sequence([*clips, torch.zeros(60_000)], batch_first=True)[:-1]
    len_B = torch.tensor([len(wave_T) for wave_T in clips])
    with torch.inference_mode():
        features_BFD, frames_B = LEVEL(audio_BT, len_B)
        logits_BFV, out_B = students.logits(model, features_BFD, frames_B)
        for i, wave_T in enumerate(clips):
            alone_1FD, frames_1 = LEVEL(wave_T[None], len_B[i : i + 1])
            assert torch.allclose(features_BFD[i, : frames_B[i]], alone_1FD[0, : frames_1[0]], atol=1e-3)
            assert not features_BFD[i, frames_B[i] :].any()
            alone_1FV, _ = students.logits(model, alone_1FD, frames_1)
            assert torch.allclose(logits_BFV[i, : out_B[i]], alone_1FV[0, : out_B[i]], atol=1e-3)


def test_a_new_student_of_either_normalisation_begins_with_outputs_of_the_same_size() -> None:
    deviations = {}
    for log_mel in (LEVEL, LogMel()):
        model = students.build("tiny", 10, dropout=0.0, seed=0, normalization=log_mel.normalization).eval()
        features_BFD, _ = log_mel(clip(), torch.tensor([clip().shape[1]]))
        deviations[log_mel.normalization] = float(model.encoder.subsampling(features_BFD).std().detach())
    assert 0.5 < deviations["level"] / deviations["utterance"] < 2.0


def test_spec_augment_masks_with_the_mean_of_the_band() -> None:
    cfg = PLAIN.model_copy(update={"mel_masks": 1, "spec_augment_start": 0.0})
    frontend, generator = LogMelFrontend(cfg, log_mel=LEVEL), torch.Generator().manual_seed(1)
    len_B = torch.tensor([clip().shape[1]])
    plain_BFD, frames_B = frontend.extract(clip(), len_B)
    masked_BFD, _, _ = frontend.extract_augmented(clip(), len_B, torch.ones(1), 1.0, generator)
    own_FD, own_masked_FD = plain_BFD[0, : frames_B[0]], masked_BFD[0, : frames_B[0]]
    changed_D = ((own_FD - own_masked_FD).abs() > 1e-3).any(0)
    assert changed_D.any()
    assert not changed_D.all()
    assert torch.allclose(own_masked_FD[:, changed_D], own_FD[:, changed_D].mean(0), atol=1e-3)


def test_the_level_is_varied_after_it_was_brought_into_its_range() -> None:
    cfg = PLAIN.model_copy(update={"gain_db": 12.0, "mel_masks": 0})
    frontend, generator = LogMelFrontend(cfg, log_mel=LEVEL), torch.Generator().manual_seed(0)
    audio_BT = clip(-50.0).repeat(64, 1)
    len_B = torch.full((64,), audio_BT.shape[1])
    plain_BFD, frames_B = frontend.extract(audio_BT, len_B)
    varied_BFD, _, _ = frontend.extract_augmented(audio_BT, len_B, torch.ones(64), 0.0, generator)
    gain_BF = (varied_BFD[:, : frames_B[0]] - plain_BFD[:, : frames_B[0]]).mean(2) * 10 / np.log(10)
    assert torch.allclose(gain_BF, gain_BF[:, :1].expand_as(gain_BF), atol=0.02)
    assert gain_BF.abs().max() <= 12.1
    assert gain_BF.max() > 9
    assert gain_BF.min() < -9
    assert not varied_BFD[:, frames_B[0] :].any()


def saved(folder: Path, extractor: dict[str, Any] | None) -> Path:
    students.build("tiny", 3, dropout=0.0, seed=0).save_pretrained(folder)
    if extractor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(extractor))
    return folder


def test_a_checkpoint_brings_the_normalization_that_it_was_trained_with(tmp_path: Path) -> None:
    foreign = {"feature_extractor_type": "NemotronAsrStreamingFeatureExtractor", "feature_size": 80}
    expected = {
        "old": ({**LogMel().extractor}, "utterance", LEVEL_RANGE_DB),
        "without": (None, "utterance", LEVEL_RANGE_DB),
        "level": ({**LEVEL.extractor}, "level", LEVEL_RANGE_DB),
        "none": ({**LogMel(normalization="none").extractor}, "none", LEVEL_RANGE_DB),
        "foreign": (foreign, "none", LEVEL_RANGE_DB),
    }
    for name, (extractor, normalization, range_db) in expected.items():
        folder = saved(tmp_path / name, extractor)
        config = checkpoints.read_config(str(folder))
        frontend = checkpoints.make_frontend(config, Augment(), checkpoint=str(folder))
        assert isinstance(frontend, LogMelFrontend)
        assert (frontend.log_mel.normalization, frontend.log_mel.level_range_db) == (normalization, range_db)
        assert checkpoints.make_frontend(config, Augment(), None, str(folder), normalization)
        other = "utterance" if normalization == "level" else "level"
        with pytest.raises(ConfigError, match=rf"student.normalization: {other}.*cannot be used with"):
            checkpoints.make_frontend(config, Augment(), None, str(folder), other)
