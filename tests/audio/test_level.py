"""The level of recordings: measured before rounding, brought to a target, and the same at every read."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from voxstill.audio import codec
from voxstill.audio.decoder import Decoder
from voxstill.audio.level import MAX_GAIN_DB, PEAK_DBFS, RMS_DBFS, Level, LevelMeter, gain_db, level_of, normalized
from voxstill.audio.loudness import loudness_lufs
from voxstill.audio.samples import from_array
from voxstill.core.errors import DataError
from voxstill.core.records import Normalization

Float = NDArray[np.float32]
TARGETS: tuple[Normalization, ...] = ("peak", "rms", "loudness")


def sine(dbfs: float, seconds: float = 2.0, rate_hz: int = 16_000, hz: float = 997) -> Float:
    time_T = np.arange(int(seconds * rate_hz)) / rate_hz
    return (10 ** (dbfs / 20) * np.sin(2 * np.pi * hz * time_T)).astype(np.float32)


def noise(dbfs: float, seconds: float = 2.0, seed: int = 0) -> Float:
    """Noise whose level rises and falls as that of speech does."""
    rng = np.random.default_rng(seed)
    swell_T = 0.5 + 0.5 * np.sin(np.arange(int(seconds * 16_000)) / 2_000)
    noise_T = rng.normal(0, 1, len(swell_T)) * swell_T
    return (10 ** (dbfs / 20) * noise_T / np.abs(noise_T).max()).astype(np.float32)


def file(samples: Float, subtype: str, rate_hz: int = 16_000) -> bytes:
    sink = io.BytesIO()
    soundfile.write(sink, samples, rate_hz, format="WAV", subtype=subtype)
    return sink.getvalue()


def peak_db(samples_T: NDArray[np.int16]) -> float:
    return 20 * math.log10(np.abs(samples_T.astype(np.int32)).max() / 32768)


# ------------------------------------------------------------------------------------------------------ loudness


def test_a_sine_of_997_hz_at_full_scale_has_the_loudness_that_the_standard_says() -> None:
    assert loudness_lufs([sine(0.0)]) == pytest.approx(-3.01, abs=0.01)
    assert loudness_lufs([sine(-20.0)]) == pytest.approx(-23.01, abs=0.01)


def test_quiet_passages_are_gated() -> None:
    parts = [sine(-36, 10, hz=1000), sine(-23, 60, hz=1000), sine(-36, 10, hz=1000)]  # case 3 of EBU Tech 3341, mono
    assert loudness_lufs(parts) == pytest.approx(-23 - 3.01, abs=0.1)
    with_pause = [sine(-20), np.zeros(160_000, np.float32), sine(-20)]
    assert loudness_lufs(with_pause) == pytest.approx(-23.01, abs=0.7)  # blocks that are part pause count
    assert loudness_lufs([np.zeros(16_000, np.float32)]) == loudness_lufs([sine(-80)]) == -math.inf


@given(st.lists(st.integers(0, 170_000), max_size=4), st.integers(1, 400_000))
@settings(max_examples=25, deadline=None)
def test_loudness_does_not_depend_on_how_the_samples_come(cuts: list[int], num_samples: int) -> None:
    samples_T = noise(-10, 25)[:num_samples]
    parts = np.split(samples_T, sorted(cut for cut in cuts if cut <= num_samples))
    assert loudness_lufs(parts) == pytest.approx(loudness_lufs([samples_T]), abs=1e-4)


# ---------------------------------------------------------------------------------------------------------- gain


@pytest.mark.parametrize(
    ("target", "level_db"), [("peak", PEAK_DBFS), ("rms", RMS_DBFS + 3.01), ("loudness", -23 + 3.01)]
)
def test_each_target_is_reached(target: Normalization, level_db: float) -> None:
    for dbfs in (-60.0, -10.0, 6.0):
        audio = codec.decode(file(sine(dbfs), "FLOAT"), gain=target)
        assert peak_db(audio.samples_T) == pytest.approx(level_db, abs=0.02)
        assert audio.gain_db == pytest.approx(level_db - dbfs, abs=0.02)


@given(st.floats(-90, 30), st.sampled_from(TARGETS), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_nothing_clips_whatever_the_target(dbfs: float, target: Normalization, seed: int) -> None:
    samples_T = noise(dbfs, 1.0, seed)
    samples_T[100] = samples_T[100] * 20  # a click, far above the rest
    normal_T, _ = normalized(samples_T, target)
    assert np.abs(normal_T.astype(np.int32)).max() <= math.ceil(32768 * 10 ** (PEAK_DBFS / 20))


def test_a_gain_ends_at_the_rounding_noise_and_silence_has_none() -> None:
    assert gain_db([np.full(1000, 1e-7, np.float32)], "peak") == MAX_GAIN_DB
    for target in TARGETS:
        assert gain_db([np.zeros(1000, np.float32)], target) == 0.0
    assert gain_db([np.full(16_000, 0.1, np.float32)], "rms") == pytest.approx(PEAK_DBFS + 20)  # a DC offset alone


def test_quiet_24_bit_audio_keeps_its_levels() -> None:
    even_T = np.random.default_rng(0).uniform(-1, 1, 160_000).astype(np.float32)
    for dbfs, num_before, num_after in ((-71, 19, 4_500), (-60, 67, 10_000)):  # the first has no more in its 24 bits
        data = file(even_T * np.float32(10 ** (dbfs / 20)), "PCM_24")
        assert len(np.unique(codec.decode(data).samples_T)) == num_before
        assert len(np.unique(codec.decode(data, gain="peak").samples_T)) > num_after


@pytest.mark.parametrize("target", TARGETS)
def test_float_audio_beyond_full_scale_keeps_its_form(target: Normalization) -> None:
    samples_T = noise(6)
    data = file(samples_T, "FLOAT")
    assert np.count_nonzero(np.abs(codec.decode(data).samples_T.astype(np.int32)) >= 32767) > 10
    audio = codec.decode(data, gain=target)
    assert audio.gain_db is not None
    expected_T = samples_T * 10 ** (audio.gain_db / 20) * 32768
    np.testing.assert_allclose(audio.samples_T, expected_T, atol=0.51)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("rate_hz", "subtype"), [(16_000, "PCM_16"), (44_100, "PCM_24"), (16_000, "FLOAT")])
def test_the_gain_that_was_kept_gives_the_same_samples(target: Normalization, rate_hz: int, subtype: str) -> None:
    stereo_TC = np.stack([sine(-30, 5, rate_hz), sine(-35, 5, rate_hz, 440)], axis=1)
    for data in (file(stereo_TC, subtype, rate_hz), file(stereo_TC[:, 0], subtype, rate_hz)):
        indexed = codec.decode(data, gain=target)
        assert indexed.gain_db is not None
        with Decoder(60.0, 4_000) as decoder:
            for again in (codec.decode(data, gain=indexed.gain_db), decoder.decode(data, gain=indexed.gain_db)):
                np.testing.assert_array_equal(again.samples_T, indexed.samples_T)
            assert decoder.decode(data, gain=target).gain_db == indexed.gain_db


def test_arrays_and_files_are_normalized_alike() -> None:
    samples_T = noise(-40)
    from_file_T = codec.decode(file(samples_T, "FLOAT"), gain="loudness").samples_T
    np.testing.assert_array_equal(from_array(samples_T, 16_000, "loudness"), from_file_T)


def test_audio_that_is_silent_at_16_bits_is_heard_after_a_gain() -> None:
    data = file(noise(-97), "PCM_24")
    with pytest.raises(DataError, match="silent"):
        codec.decode(data)
    assert peak_db(codec.decode(data, gain="peak").samples_T) == pytest.approx(PEAK_DBFS, abs=0.01)


# ------------------------------------------------------------------------------------------------------ measures


def test_clipping_and_offset_are_those_of_the_file_whatever_becomes_of_it() -> None:
    samples_T = np.concatenate([np.full(100, 1.5), np.full(300, -1.0), np.full(600, 0.25)]).astype(np.float32)
    for gain in ("none", "peak"):
        level = codec.decode(file(samples_T, "FLOAT"), gain=gain).measured_level
        assert (level.peak, level.clipped) == (1.5, 0.4)
        assert level.dc_offset == pytest.approx(0.0)


def test_both_ways_of_measuring_agree() -> None:
    samples_T = np.random.default_rng(0).integers(-32768, 32768, 5000).astype(np.int16)
    samples_T[:50], samples_T[50:70] = 32767, -32768
    meter, float_T = LevelMeter(), samples_T.astype(np.float32) / 32768
    for part_T in np.split(float_T, [7, 2000]):
        meter.add(part_T, part_T)
    whole, measured = level_of(samples_T), meter.level
    assert (whole.peak, whole.clipped) == (measured.peak, measured.clipped) == (1.0, whole.clipped)
    assert whole.dc_offset == pytest.approx(measured.dc_offset, abs=1e-6)
    assert level_of(np.zeros(0, np.int16)) == Level(0.0, 0.0, 0.0)


@pytest.mark.parametrize("peak", [1, 100, 9_000, 20_000, 32_767, 32_768])
@given(st.integers(1, 300_000), st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_the_mean_of_samples_is_exact_at_every_level_and_length(peak: int, num_samples: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    lowest = random.choice([-peak, 0, peak - 1])  # of one sign, sums are as large as they can be
    samples_T = random.integers(lowest, min(peak, 32_767), num_samples, endpoint=True).astype(np.int16)
    assert level_of(samples_T).dc_offset == int(samples_T.sum(dtype=np.int64)) / num_samples / 32_768


# ------------------------------------------------------------------------------------------------ channels that cancel


@pytest.mark.parametrize("subtype", ["PCM_16", "FLOAT"])
def test_where_channels_cancel_the_louder_one_is_taken(subtype: str) -> None:
    left_T = noise(-10)
    for right_T in (-left_T, np.float32(-0.9) * left_T):
        data = file(np.stack([right_T, left_T], axis=1), subtype)
        audio = codec.decode(data)
        assert (audio.louder_channel, audio.num_channels) == (0 if right_T[0] == -left_T[0] else 1, 2)
        np.testing.assert_array_equal(audio.samples_T, codec.decode(data, channel=audio.louder_channel).samples_T)
        with Decoder(60.0, 4_000) as decoder:
            assert decoder.decode(data).louder_channel == audio.louder_channel


@given(st.integers(2, 64), st.integers(0, 100))
@settings(max_examples=20, deadline=None)
def test_channels_that_have_nothing_in_common_are_mixed(num_channels: int, seed: int) -> None:
    samples_TC = np.random.default_rng(seed).normal(0, 0.1, (8000, num_channels)).astype(np.float32)
    assert codec.decode(file(samples_TC, "FLOAT")).louder_channel is None
    np.testing.assert_array_equal(
        codec.decode(file(samples_TC, "FLOAT")).samples_T,
        codec.decode(file(samples_TC.mean(axis=1), "FLOAT")).samples_T,
    )


def test_one_silent_channel_is_mixed_with_the_other() -> None:
    left_T = noise(-10)
    audio = codec.decode(file(np.stack([left_T, np.zeros_like(left_T)], axis=1), "FLOAT"))
    assert audio.louder_channel is None


@pytest.mark.parametrize("target", TARGETS)
def test_float_samples_of_any_size_are_brought_to_the_target(target: Normalization) -> None:
    samples_T = noise(-10)
    loud, _ = normalized(samples_T * np.float32(1e30), target)
    expected, _ = normalized(samples_T, target)
    assert np.abs(loud.astype(int) - expected).max() <= 1
