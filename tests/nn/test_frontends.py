"""Frontends: as many frames as the model answers with, features as `transformers` makes them, padding is nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoFeatureExtractor, Wav2Vec2FeatureExtractor

from voxstill.core.config import Augment
from voxstill.nn.augment_waveform import NoiseBank
from voxstill.nn.frontends import Frontend, LogMelFrontend, WaveformFrontend

PLAIN = Augment(noise_prob=0.0, tempo=0.0, vtlp=0.0, time_masks=0, mel_masks=0)
NOISY = Augment(noise_prob=1.0, rir_prob=1.0, gain_db=6.0, spec_augment_start=0.0)
NOISE_BANK = NoiseBank.from_recordings(
    [torch.randint(-900, 900, (5000,), dtype=torch.int16)], [torch.tensor([1.0, 0.0, 0.5, 0.2])]
)
KERNELS, STRIDES = (10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2)


def waveform_frontend(cfg: Augment = PLAIN, noise_bank: NoiseBank | None = None) -> WaveformFrontend:
    return WaveformFrontend(cfg, noise_bank, kernels=KERNELS, strides=STRIDES)


def both(cfg: Augment, noise_bank: NoiseBank | None = None) -> list[Frontend]:
    return [LogMelFrontend(cfg, noise_bank), waveform_frontend(cfg, noise_bank)]


def speech(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    audio_BT = torch.zeros(len(lengths), max(lengths), dtype=torch.int16)
    for row_T, num in zip(audio_BT, lengths, strict=True):
        row_T[:num] = torch.randint(-3000, 3000, (num,), generator=torch.Generator().manual_seed(num))
    return audio_BT, torch.tensor(lengths)


def test_samples_are_scaled_as_the_extractor_of_transformers_scales_them() -> None:
    audio_BT, len_B = speech([4000, 2500])
    extractor = Wav2Vec2FeatureExtractor(do_normalize=True, return_attention_mask=True)
    clips = [row_T[:num].numpy() / np.float32(32768) for row_T, num in zip(audio_BT, len_B.tolist(), strict=True)]
    expected = extractor(clips, sampling_rate=16_000, padding=True, return_tensors="pt").input_values
    output_BT, output_len_B = waveform_frontend().extract(audio_BT, len_B)
    assert torch.allclose(output_BT, expected, atol=1e-4)
    assert torch.equal(output_len_B, len_B)
    assert waveform_frontend().extractor["do_normalize"]


@pytest.mark.parametrize("frontend", both(PLAIN), ids=["mels", "samples"])
def test_the_extractor_that_is_saved_is_one_of_transformers(frontend: Frontend, tmp_path: Any) -> None:
    import json

    (tmp_path / "preprocessor_config.json").write_text(json.dumps(dict(frontend.extractor)))
    assert AutoFeatureExtractor.from_pretrained(tmp_path).sampling_rate == 16_000


@pytest.mark.parametrize("which", [0, 1], ids=["mels", "samples"])
@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(3200, 9000), min_size=1, max_size=3), seed=st.integers(0, 99))
def test_frames_are_counted_as_they_come_out_on_the_host_and_on_the_device(
    which: int, lengths: list[int], seed: int
) -> None:
    audio_BT, len_B = speech(lengths)
    tempo_B = 0.8 + 0.4 * torch.rand(len(lengths), generator=torch.Generator().manual_seed(seed))
    frontend = both(Augment(tempo=0.2))[which]
    inputs, in_B, frame_ms_B = frontend.extract_augmented(
        audio_BT, len_B, tempo_B, 0.0, torch.Generator().manual_seed(seed)
    )
    own = in_B * 160 if which == 0 else in_B
    counted_B = frontend.num_frames(len_B, tempo_B)
    assert counted_B.tolist() == frontend.num_frames(len_B.numpy(), tempo_B.numpy()).tolist()
    assert counted_B.tolist() == frontend.num_frames(own).tolist()
    assert inputs.shape[1] >= int(in_B.max())
    # the more audio is sped up, the longer an output frame lasts in the original
    assert torch.allclose(frame_ms_B, frontend.frame_ms / tempo_B, rtol=0.08)


@pytest.mark.parametrize("which", [0, 1], ids=["mels", "samples"])
def test_another_batch_changes_nothing_and_chance_is_the_generators(which: int) -> None:
    audio_BT, len_B = speech([6000, 4000])
    frontend = both(PLAIN)[which]
    whole, whole_B = frontend.extract(audio_BT, len_B)
    alone, _ = frontend.extract(audio_BT[1:, :4000], len_B[1:])
    assert torch.allclose(whole[1, : int(whole_B[1])], alone[0, : int(whole_B[1])], atol=1e-4)
    noisy = both(NOISY, NOISE_BANK)[which]
    ones_B = torch.ones(2)

    def drawn(seed: int) -> torch.Tensor:
        return noisy.extract_augmented(audio_BT, len_B, ones_B, 1.0, torch.Generator().manual_seed(seed))[0]

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    assert drawn(3).isfinite().all()


@pytest.mark.parametrize("which", [0, 1], ids=["mels", "samples"])
def test_with_everything_off_augmented_features_are_plain_ones(which: int) -> None:
    audio_BT, len_B = speech([6000, 4000])
    frontend = both(PLAIN)[which]
    plain, plain_B = frontend.extract(audio_BT, len_B)
    output, output_len_B, _ = frontend.extract_augmented(
        audio_BT, len_B, torch.ones(2), 1.0, torch.Generator().manual_seed(0)
    )
    assert torch.equal(output_len_B, plain_B)
    assert torch.allclose(output, plain[:, : output.shape[1]], atol=1e-3)


def test_each_sort_of_noise_reaches_the_features() -> None:
    audio_BT, len_B = speech([6000, 4000])
    for options in ({"rir_prob": 1.0}, {"gain_db": 20.0}, {"noise_prob": 1.0}):
        cfg = PLAIN.model_copy(update={"rir_prob": 0.0, **options})
        as_loud_as_it_is = WaveformFrontend(cfg, NOISE_BANK, kernels=KERNELS, strides=STRIDES, normalises=False)
        for frontend in (LogMelFrontend(cfg, NOISE_BANK), as_loud_as_it_is):
            plain, _ = frontend.extract(audio_BT, len_B)
            output, _, _ = frontend.extract_augmented(
                audio_BT, len_B, torch.ones(2), 1.0, torch.Generator().manual_seed(0)
            )
            assert (output - plain[:, : output.shape[1]]).abs().mean() > 1e-5, (options, frontend)
