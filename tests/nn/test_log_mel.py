"""Features: those of `transformers`, and padding changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import ParakeetFeatureExtractor

from voxstill.audio import codec
from voxstill.nn import mel, students
from voxstill.nn.log_mel import LogMel, feature_frames, frame_mask, normalise, output_frames
from voxstill.nn.mel import HOP, LOG_FLOOR, NUM_MELS

LOG_MEL = LogMel()
EXTRACTOR = ParakeetFeatureExtractor.from_dict(dict(LOG_MEL.extractor))


def noise(num_samples: int, seed: int = 0, loudness: int = 9000) -> Tensor:
    samples_T = np.random.default_rng(seed).integers(-loudness, loudness + 1, num_samples).astype(np.int16)
    return torch.from_numpy(samples_T)


def padded(clips: list[Tensor], extra: int = 0) -> tuple[Tensor, Tensor]:
    """The clips as one batch, with loud noise in the padding, which must not be read."""
    longest = max(len(clip) for clip in clips) + extra
    audio_BT = torch.full((len(clips), longest), 20_000, dtype=torch.int16)
    for row_T, clip in zip(audio_BT, clips, strict=True):
        row_T[: len(clip)] = clip
    return audio_BT, torch.tensor([len(clip) for clip in clips])


@settings(max_examples=30, deadline=None)
@given(
    num_samples=st.integers(2 * HOP, 2500) | st.integers(2500, 40_000),
    loudness=st.sampled_from([0, 1, 300, 32_000]),
    seed=st.integers(0, 99),
)
def test_features_are_those_of_transformers(num_samples: int, loudness: int, seed: int) -> None:
    clip = noise(num_samples, seed, loudness)
    features_BFD, frames_B = LOG_MEL(clip[None], torch.tensor([num_samples]))
    reference = EXTRACTOR(clip.numpy() / np.float32(32768.0), sampling_rate=16_000, return_tensors="pt")
    valid = int(reference["attention_mask"].sum())
    assert int(frames_B[0]) == valid == feature_frames(num_samples)
    expected_FD = reference["input_features"][0, :valid]
    # where a sample has one bit, a band may hold next to nothing, and single precision is a share of that in either
    atol = 2e-2 if loudness == 1 else 1e-3
    assert torch.allclose(features_BFD[0, :valid], expected_FD, atol=atol), (
        (features_BFD[0, :valid] - expected_FD).abs().max()
    )


@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(st.integers(HOP, 12_000), min_size=1, max_size=4), extra=st.integers(0, 3000))
def test_a_clip_has_the_same_features_alone_and_in_a_padded_batch(lengths: list[int], extra: int) -> None:
    clips = [noise(n, seed) for seed, n in enumerate(lengths)]
    features_BFD, frames_B = LOG_MEL(*padded(clips, extra))
    for i, clip in enumerate(clips):
        (alone_FD,), (frames,) = LOG_MEL(clip[None], torch.tensor([len(clip)]))
        assert frames == frames_B[i]
        assert torch.allclose(features_BFD[i, :frames], alone_FD[:frames], atol=1e-4)
        assert not features_BFD[i, frames:].any()


def test_a_clip_has_the_same_logits_alone_and_in_a_padded_batch() -> None:
    model = students.build("tiny", 10, dropout=0.1, seed=0).eval()
    clips = [noise(n, seed) for seed, n in enumerate((160, 1000, 1600, 5000, 17_000))]
    with torch.inference_mode():
        logits_BFV, out_B = students.logits(model, *LOG_MEL(*padded(clips, 1111)))
        for i, clip in enumerate(clips):
            alone_BFV, (frames,) = students.logits(model, *LOG_MEL(clip[None], torch.tensor([len(clip)])))
            assert frames == out_B[i]
            assert torch.allclose(logits_BFV[i, :frames], alone_BFV[0, :frames], atol=1e-4)


def test_integers_and_floats_of_full_scale_one_have_equal_features() -> None:
    clip = noise(3000)
    integers, _ = LOG_MEL(clip[None], torch.tensor([3000]))
    floats, _ = LOG_MEL(clip[None].float() / 32768, torch.tensor([3000]))
    assert torch.equal(integers, floats)


def test_features_have_no_mean_and_unit_deviation_over_their_own_frames() -> None:
    mel_BFD = torch.randn(2, 50, 80) * 3 + 7
    frames_B = torch.tensor([50, 20])
    features_BFD = normalise(mel_BFD, frames_B)
    for features_FD, frames in zip(features_BFD, frames_B.tolist(), strict=True):
        assert features_FD[:frames].mean(0).abs().max() < 1e-5
        assert (features_FD[:frames].std(0) - 1).abs().max() < 1e-4


def test_one_frame_or_none_is_finite_where_transformers_divides_by_zero() -> None:
    features_BFD, frames_B = LOG_MEL(*padded([noise(10), noise(200), noise(3000)]))
    assert frames_B.tolist() == [0, 1, 18]
    assert features_BFD.isfinite().all()


def test_frames_are_counted_equally_for_integers_arrays_and_tensors() -> None:
    samples = [0, 159, 160, 1599, 16_000]
    assert [feature_frames(n) for n in samples] == feature_frames(np.array(samples)).tolist()
    assert [output_frames(n) for n in samples] == output_frames(torch.tensor(samples)).tolist()


def test_the_mask_is_true_where_a_frame_is_the_utterances_own() -> None:
    assert frame_mask(torch.tensor([0, 2, 3]), 3).int().tolist() == [[0, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_the_frontend_has_no_weights_and_saves_nothing() -> None:
    assert not list(LOG_MEL.parameters())
    assert not LOG_MEL.state_dict()


@pytest.mark.parametrize("size", ["tiny"])
def test_output_frames_are_what_the_model_gives_for_every_length(size: students.Size) -> None:
    model = students.build(size, 4, dropout=0.0, seed=0).eval()
    frames_B = torch.arange(1, 201)
    with torch.inference_mode():
        lengths_B = model._get_subsampling_output_length(frames_B)
        assert lengths_B.tolist() == output_frames(frames_B).tolist()
        for frames in range(1, 201):
            stem_BFD = model.encoder.subsampling(torch.zeros(1, frames, 80), torch.ones(1, frames))
            assert stem_BFD.shape[1] == output_frames(frames)


def test_features_are_those_of_kaldi_native_fbank_half_a_hop_later(shared_data: Callable[[str], Path]) -> None:
    """Kaldi centres its first frame at 5 ms and transformers at 0; its `hanning` is the symmetric window, its `hann`
    the periodic one. It takes the larger of energy and floor where Parakeet adds a floor."""
    import kaldi_native_fbank as kaldi

    path = shared_data("short-fixtures") / "audio/lhotse_libri-1088-134315-0000.flac"
    audio_T = codec.decode(path.read_bytes()).samples_T
    options = kaldi.FbankOptions()
    frame, mel = options.frame_opts, options.mel_opts
    frame.samp_freq, frame.frame_length_ms, frame.frame_shift_ms = 16_000, 25, 10
    frame.dither, frame.preemph_coeff, frame.window_type = 0, 0.97, "hanning"
    frame.remove_dc_offset = frame.snip_edges = options.use_energy = False
    mel.num_bins, mel.low_freq, mel.high_freq, mel.is_librosa = NUM_MELS, 0, 0, True
    reference = kaldi.OnlineFbank(options)
    reference.accept_waveform(16_000, (audio_T[HOP // 2 :] / np.float32(32768.0)).tolist())
    reference.input_finished()
    expected_FD = torch.from_numpy(np.stack([reference.get_frame(i) for i in range(reference.num_frames_ready)]))
    mel_BFD, _ = LOG_MEL.unnormalised(torch.from_numpy(audio_T)[None], torch.tensor([len(audio_T)]))
    inner = slice(2, len(expected_FD) - 3)  # what is beyond the ends is silence here and a mirror there
    difference_FD = (expected_FD[inner].exp() + LOG_FLOOR).log() - mel_BFD[0, 1:][inner]
    audible_FD = expected_FD[inner] > np.log(2.0**-22)
    assert audible_FD.float().mean() > 0.8
    assert difference_FD[audible_FD].abs().max() < 1e-3  # measured: 8e-5


@pytest.mark.parametrize("num_samples", [160, 161, 3999, 32_000])
@pytest.mark.parametrize("num_mels", [80, 128])
def test_numpy_computes_the_same_log_mels(num_samples: int, num_mels: int) -> None:
    samples_T = np.random.default_rng(0).normal(0, 2000, num_samples).astype(np.int16)
    samples_T[: num_samples // 4] = 0
    audio_BT, audio_len_B = torch.from_numpy(samples_T)[None], torch.tensor([num_samples])
    mel_BFD, frames_B = LogMel(num_mels).unnormalised(audio_BT, audio_len_B)
    ours_FD = mel.log_mels(samples_T, num_mels)
    assert ours_FD.shape == (int(frames_B[0]), num_mels)
    np.testing.assert_allclose(ours_FD, mel_BFD[0, : int(frames_B[0])], atol=2e-4)


@pytest.mark.parametrize(("num_mels", "num_fft"), [(80, 512), (128, 512), (80, 400)])
def test_the_mel_filters_are_those_of_transformers(num_mels: int, num_fft: int) -> None:
    from transformers.audio_utils import mel_filter_bank

    theirs_ND = mel_filter_bank(num_fft // 2 + 1, num_mels, 0.0, 8000.0, 16_000, norm="slaney", mel_scale="slaney")
    np.testing.assert_array_equal(mel.filters(num_mels, num_fft), theirs_ND.T.astype(np.float32))
