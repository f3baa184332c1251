"""Headers say what decoding counts, or nothing."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.audio import codec
from voxstill.audio.header import HEAD_BYTES, read_header

FORMS = (
    *(("WAV", subtype) for subtype in ("PCM_16", "PCM_U8", "PCM_24", "FLOAT", "DOUBLE")),
    *(("WAVEX", subtype) for subtype in ("PCM_16", "FLOAT")),
    *(("FLAC", subtype) for subtype in ("PCM_16", "PCM_24")),
)
RATES_HZ = (8_000, 11_025, 16_000, 22_050, 44_100, 48_000)


def written(form: str, subtype: str, rate_hz: int, num_channels: int, num_samples: int) -> bytes:
    file = io.BytesIO()
    noise_TC = np.random.default_rng(num_samples).uniform(-0.5, 0.5, (num_samples, num_channels))
    soundfile.write(file, noise_TC, rate_hz, format=form, subtype=subtype)
    return file.getvalue()


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(FORMS),
    st.sampled_from(RATES_HZ),
    st.integers(1, 3),
    st.integers(2_000, 9_000),
)
def test_a_header_says_what_decoding_counts(
    form: tuple[str, str], rate_hz: int, num_channels: int, num_samples: int
) -> None:
    data = written(*form, rate_hz, num_channels, num_samples)
    header = read_header(data[:HEAD_BYTES], len(data))
    assert header is not None
    audio = codec.decode(data)
    assert (header.codec, header.rate_hz, header.num_channels) == (audio.codec, audio.rate_hz, audio.num_channels)
    assert header.num_samples == num_samples
    assert abs(header.duration_ms - len(audio.samples_T) // 16) <= 1


def test_chunks_before_the_audio_are_passed_over() -> None:
    data = written("WAV", "PCM_16", 16_000, 1, 4_000)
    info = b"LIST" + struct.pack("<I", 25) + b"INFO" + bytes(21) + bytes(1)
    longer = data[:12] + info + data[12:]
    header = read_header(longer[:HEAD_BYTES], len(longer))
    assert header is not None
    assert header.num_samples == 4_000


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"fLaC",
        b"RIFF\0\0\0\0WAVE",
        written("FLAC", "PCM_16", 16_000, 1, 900)[:20],
        written("OGG", "VORBIS", 16_000, 1, 9_000)[:HEAD_BYTES],
    ],
)
def test_what_states_no_length_is_read_whole(head: bytes) -> None:
    assert read_header(head, 100_000) is None


def test_a_wav_that_ends_before_its_audio_is_read_whole() -> None:
    data = written("WAV", "PCM_16", 16_000, 1, 4_000)
    assert read_header(data[:HEAD_BYTES], len(data) - 2) is None


def test_a_flac_of_unknown_length_is_read_whole() -> None:
    data = written("FLAC", "PCM_16", 16_000, 1, 4_000)
    unknown = data[:21] + bytes([data[21] & 0xF0, 0, 0, 0, 0]) + data[26:]
    assert read_header(unknown[:HEAD_BYTES], len(unknown)) is None


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=HEAD_BYTES))
def test_no_bytes_are_an_error(head: bytes) -> None:
    for start in (b"", b"fLaC", b"RIFF\0\0\0\0WAVE", b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0"):
        read_header(start + head, 1000)
