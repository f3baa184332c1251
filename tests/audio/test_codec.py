from __future__ import annotations

import io
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from voxstill.audio import codec
from voxstill.core import pcm
from voxstill.core.errors import DataError

Int16 = NDArray[np.int16]


def speech_like(seconds: float, rate_hz: int = 16_000, seed: int = 0) -> Int16:
    rng = np.random.default_rng(seed)
    time_T = np.arange(int(seconds * rate_hz)) / rate_hz
    tone_T = np.sin(2 * np.pi * 180 * time_T) * (0.5 + 0.5 * np.sin(2 * np.pi * 3 * time_T))
    return (8000 * tone_T + rng.normal(0, 300, len(time_T))).astype(np.int16)


def in_a_file(samples: NDArray[np.generic], rate_hz: int = 16_000, form: str = "WAV", subtype: str = "PCM_16") -> bytes:
    sink = io.BytesIO()
    soundfile.write(sink, samples, rate_hz, format=form, subtype=subtype)
    return sink.getvalue()


def reason(data: bytes, **options: float) -> DataError:
    with pytest.raises(DataError) as caught:
        codec.decode(data, **options)  # type: ignore[arg-type]
    assert caught.value.why
    return caught.value


def outcome(data: bytes, max_s: float = codec.MAX_S) -> str:
    try:
        return f"{len(codec.decode(data, max_s=max_s).samples_T)} samples"
    except DataError as error:
        return error.what if error.why else ""


@given(hnp.arrays(np.int16, st.integers(1, 3000)).filter(lambda samples_T: bool(samples_T.any())), st.booleans())
@settings(max_examples=60, deadline=None)
def test_what_is_encoded_comes_back_bit_by_bit_and_equal_samples_give_equal_bytes(samples_T: Int16, flac: bool) -> None:
    data = codec.encode(samples_T, "flac" if flac else "wav")
    np.testing.assert_array_equal(codec.decode(data).samples_T, samples_T)
    assert codec.encode(samples_T.copy(), "flac" if flac else "wav") == data


@pytest.mark.parametrize("rate_hz", [8_000, 11_025, 16_000, 22_050, 44_100, 48_000, 96_000])
def test_every_rate_keeps_its_length_and_its_tone(rate_hz: int) -> None:
    tone_T = (10_000 * np.sin(2 * np.pi * 440 * np.arange(2 * rate_hz) / rate_hz)).astype(np.int16)
    audio = codec.decode(in_a_file(tone_T, rate_hz))
    assert (audio.rate_hz, audio.num_channels, len(audio.samples_T)) == (rate_hz, 1, 32_000)
    assert np.argmax(np.abs(np.fft.rfft(audio.samples_T))) == 880


def test_resampling_in_blocks_equals_resampling_at_once() -> None:
    import soxr

    samples_T = speech_like(5, 44_100)  # several blocks
    at_once_T = pcm.quantize(soxr.resample(samples_T.astype(np.float32) / 32768, 44_100, 16_000))
    np.testing.assert_array_equal(codec.decode(in_a_file(samples_T, 44_100)).samples_T, at_once_T)


def test_channels_are_mixed_or_picked() -> None:
    left_T, right_T = speech_like(1, seed=1), speech_like(1, seed=2)
    data = in_a_file(np.stack([left_T, right_T], axis=1))
    np.testing.assert_array_equal(codec.decode(data, channel=0).samples_T, left_T)
    np.testing.assert_array_equal(codec.decode(data, channel=1).samples_T, right_T)
    mixed_T = np.rint((left_T.astype(np.float64) + right_T) / 2)
    np.testing.assert_array_equal(codec.decode(data).samples_T, mixed_T)
    assert codec.decode(data).num_channels == 2
    assert reason(data, channel=2).what == "no such channel"


@pytest.mark.parametrize(
    ("form", "name", "rate_hz"),
    [
        ("mp3", "libmp3lame", 44_100),
        ("ipod", "aac", 44_100),
        ("adts", "aac", 48_000),
        ("webm", "libopus", 48_000),
        ("ogg", "libopus", 48_000),
        ("asf", "wmav2", 44_100),
        ("ac3", "ac3", 48_000),
        ("mp4", "alac", 44_100),
        ("aiff", "pcm_s16be", 22_050),
        ("matroska", "pcm_s16le", 16_000),
    ],
)
def test_what_ffmpeg_writes_is_read_whole(form: str, name: str, rate_hz: int) -> None:
    samples_T = speech_like(3, rate_hz)
    encoder = av.Codec(name, "w")
    if encoder.audio_formats and "s16" not in {sample_format.name for sample_format in encoder.audio_formats}:
        resampler = av.AudioResampler(format=encoder.audio_formats[0].name, layout="mono", rate=rate_hz)
    else:
        resampler = None
    sink = io.BytesIO()
    with av.open(sink, "w", format=form) as container:
        stream = container.add_stream(name, rate=rate_hz, layout="mono")
        stream.bit_rate = 96_000
        frame = av.AudioFrame.from_ndarray(samples_T.reshape(1, -1), "s16", "mono")
        frame.sample_rate = rate_hz
        fifo = av.AudioFifo()
        for resampled in resampler.resample(frame) if resampler else [frame]:
            fifo.write(resampled)
        size = stream.codec_context.frame_size or 1024
        while (part := fifo.read(size, partial=True)) is not None:
            for packet in stream.encode(part):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)
    audio = codec.decode(sink.getvalue())
    assert audio.rate_hz == rate_hz
    assert 2.95 < len(audio.samples_T) / 16_000 < 3.2


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW", "IMA_ADPCM"])
def test_every_kind_of_wav_is_read(subtype: str) -> None:
    samples_T = speech_like(1).astype(np.float32) / 32768
    got_T = codec.decode(in_a_file(samples_T, subtype=subtype)).samples_T[: len(samples_T)]
    assert np.corrcoef(got_T, samples_T)[0, 1] > 0.98


@pytest.mark.parametrize("form", ["wav", "flac"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_the_error_of_a_truncated_file_has_its_actual_and_its_declared_length(form: str, share: float) -> None:
    data = codec.encode(speech_like(4), "flac" if form == "flac" else "wav")
    error = reason(data[: int(len(data) * share)])
    assert error.what == "truncated"
    assert "4.00 s promised" in error.why


def test_a_truncated_m4a_is_not_shortened(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "clip.m4a"), "w", format="ipod", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("aac", rate=16_000, layout="mono")
        samples_T = speech_like(20).astype(np.float32) / 32768
        for start in range(0, len(samples_T) - 1024, 1024):
            frame = av.AudioFrame.from_ndarray(samples_T[None, start : start + 1024], "fltp", "mono")
            frame.sample_rate = 16_000
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    data = (tmp_path / "clip.m4a").read_bytes()
    assert 19.8 < len(codec.decode(data).samples_T) / 16_000 < 20.2
    assert data.index(b"moov") < data.index(b"mdat")
    assert reason(data[: len(data) // 2]).what == "truncated"


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_an_ogg_that_ends_in_the_middle_of_a_page_is_truncated(subtype: str) -> None:
    data = in_a_file(speech_like(6).astype(np.float32) / 32768, form="OGG", subtype=subtype)
    assert len(codec.decode(data + b"TAG" + bytes(125)).samples_T) == 6 * 16_000
    last = data.rfind(b"OggS")
    for end in (last + 10, last + 27, last + 40, len(data) - 1):
        assert reason(data[:end]).what == "truncated"
    if subtype == "OPUS":
        whole_pages = data[:last]  # none is marked as the last, as in what telephones record
        assert 16_000 < len(codec.decode(whole_pages).samples_T) < 6 * 16_000


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_an_mp3_with_fewer_frames_than_its_header_states_is_truncated(share: float) -> None:
    data = in_a_file(speech_like(6).astype(np.float32) / 32768, form="MP3", subtype="MPEG_LAYER_III")
    assert len(codec.decode(data).samples_T) == 6 * 16_000
    error = reason(data[: int(len(data) * share)])
    assert error.what == "truncated"
    assert "6.00 s promised" in error.why


def with_total(flac: bytes, total: int) -> bytes:
    return flac[:21] + bytes([flac[21] & 0xF0 | total >> 32]) + (total & 0xFFFFFFFF).to_bytes(4, "big") + flac[26:]


@pytest.mark.parametrize("total", [1000, 16_000, 0])
def test_a_flac_whose_header_declares_too_little_is_read_to_its_end(total: int) -> None:
    samples_T = speech_like(4)
    data = with_total(codec.encode(samples_T, "flac"), total)
    np.testing.assert_array_equal(codec.decode(data).samples_T, samples_T)


def test_a_flac_whose_header_declares_too_much_is_truncated() -> None:
    data = with_total(codec.encode(speech_like(4), "flac"), 2**36 - 1)
    assert reason(data).what == "truncated"


def test_a_flac_that_goes_bad_in_the_middle_is_not_shortened() -> None:
    data = bytearray(codec.encode(speech_like(4), "flac"))
    middle = len(data) // 2
    data[middle : middle + 2000] = bytes(2000)
    assert reason(bytes(data)).what in {"truncated", "damaged"}


WHOLE = speech_like(1.5)
FLAC = codec.encode(WHOLE, "flac")


@given(st.lists(st.tuples(st.integers(0, len(FLAC) - 1), st.integers(0, 7)), max_size=4), st.integers(0, len(FLAC)))
@example([(86, 0), (27670, 0)], 16634)  # a frame is lost, and one that follows the end stands in for it
@settings(max_examples=300, deadline=None)
def test_the_fast_decoder_of_plain_flac_gives_all_of_it_or_nothing(flips: list[tuple[int, int]], end: int) -> None:
    data = bytearray(FLAC)
    for position, bit in flips:
        data[position] ^= 1 << bit
    for damaged in (bytes(data), bytes(data[:end]), bytes(data) + FLAC[end:]):
        audio = codec._plain_flac(damaged)
        assert audio is None or np.array_equal(audio.samples_T, WHOLE)


def test_the_fast_decoder_does_not_stop_where_frames_of_another_flac_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    second_flac = codec.encode(speech_like(6, seed=1), "flac")
    joined = [FLAC + second_flac[start:] for start in range(0, len(second_flac), 499)]
    fast = [codec._plain_flac(data) for data in joined]
    monkeypatch.setattr(codec, "_plain_flac", lambda *_, **__: None)
    for data, audio in zip(joined, fast, strict=True):
        assert audio is None or outcome(data) == f"{len(audio.samples_T)} samples"
    assert any(audio is None for audio in fast)


def test_a_plain_flac_is_decoded_by_the_fast_decoder() -> None:
    assert codec._plain_flac(FLAC) is not None
    assert codec._plain_flac(FLAC, max_s=1) is None
    assert codec._plain_flac(FLAC, channel=1) is None
    assert codec._plain_flac(in_a_file(WHOLE, 8_000, "FLAC")) is None
    assert codec._plain_flac(in_a_file(WHOLE, form="FLAC", subtype="PCM_24")) is None
    assert codec._plain_flac(in_a_file(np.stack([WHOLE, WHOLE], axis=1), form="FLAC")) is None


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFF000])
def test_a_wav_from_a_pipe_promises_nothing_and_is_read_to_its_end(size: int) -> None:
    samples_T = speech_like(2)
    data = bytearray(codec.encode(samples_T, "wav"))
    struct.pack_into("<I", data, 40, size)
    np.testing.assert_array_equal(codec.decode(bytes(data)).samples_T, samples_T)


@pytest.mark.parametrize("size", [0, 16_000])
def test_a_wav_whose_header_claims_too_little_is_not_shortened(size: int) -> None:
    data = bytearray(codec.encode(speech_like(2), "wav"))
    struct.pack_into("<I", data, 40, size)
    assert outcome(bytes(data)) in {"32000 samples", "damaged"}


def test_chunks_behind_the_data_of_a_wav_are_no_damage() -> None:
    samples_T = speech_like(1)
    data = codec.encode(samples_T, "wav") + b"LIST" + struct.pack("<I", 40_000) + bytes(40_000)
    np.testing.assert_array_equal(codec.decode(data).samples_T, samples_T)


def test_a_decompression_bomb_is_a_reason_and_takes_no_memory() -> None:
    quiet_T = np.zeros(100 * 48_000, np.int16)
    quiet_T[0] = 1
    data = in_a_file(quiet_T, 48_000, "FLAC")
    assert len(data) < 100_000
    assert reason(data, max_s=10).what == "too long"
    assert reason(in_a_file(quiet_T, 48_000), max_s=10).what == "too long"


def test_the_cap_is_on_what_is_decoded_and_not_on_what_is_claimed() -> None:
    assert len(codec.decode(codec.encode(speech_like(2), "flac"), max_s=2).samples_T) == 32_000
    assert reason(codec.encode(speech_like(2.1), "flac"), max_s=2).what == "too long"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_infinite_samples_are_a_reason(bad: float) -> None:
    samples_T = speech_like(1).astype(np.float32) / 32768
    samples_T[5000] = bad
    assert reason(in_a_file(samples_T, subtype="FLOAT")).what == "not finite"


def test_nothing_silence_and_text_are_reasons() -> None:
    assert reason(b"").what == "not audio"
    assert reason(b"Dear diary, today I listened to nothing at all.\n" * 20).what == "not audio"
    assert reason(codec.encode(np.zeros(16_000, np.int16), "flac")).what == "silent"
    assert reason(codec.encode(np.zeros(0, np.int16), "wav")).what == "no audio"


@pytest.mark.parametrize("rate_hz", [1, 1_092_676])
def test_impossible_rates_are_a_reason(rate_hz: int) -> None:
    data = bytearray(codec.encode(speech_like(1), "wav"))
    struct.pack_into("<I", data, 24, rate_hz)
    assert reason(bytes(data)).what == "impossible rate"


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_mutated_bytes_are_audio_or_a_reason(drawn: st.DataObject) -> None:
    data = bytearray(drawn.draw(st.sampled_from(SEEDS)))
    for _ in range(drawn.draw(st.integers(1, 12))):
        position = min(len(data) - 1, drawn.draw(st.one_of(st.integers(0, 63), st.integers(0, len(data) - 1))))
        data[position] = drawn.draw(st.integers(0, 255))
    del data[drawn.draw(st.integers(len(data) // 2, len(data))) :]
    assert outcome(bytes(data), max_s=60)


SEEDS = [
    codec.encode(speech_like(0.5), "flac"),
    codec.encode(speech_like(0.5), "wav"),
    in_a_file(speech_like(0.5), form="OGG", subtype="VORBIS"),
    in_a_file(speech_like(0.5), form="MP3", subtype="MPEG_LAYER_III"),
]


def test_small_files_go_by_in_hundreds_a_second(shared_data: Callable[[str], Path]) -> None:
    files = [path.read_bytes() for path in sorted((shared_data("fsdd") / "audio").iterdir())[:500]]
    start = time.process_time()
    for data in files:
        codec.decode(data)
    assert len(files) / (time.process_time() - start) > 300  # 2,000 on an idle core


FLAC_FORMS = [(44_100, 2, "PCM_16"), (48_000, 1, "PCM_24"), (8_000, 1, "PCM_16"), (22_050, 1, "PCM_S8")]


@pytest.mark.parametrize(("rate_hz", "channels", "subtype"), FLAC_FORMS)
@pytest.mark.parametrize("num_samples", [100, codec._BLOCK, codec._BLOCK + 1])
def test_dr_flac_gives_what_libsndfile_gives(
    rate_hz: int, channels: int, subtype: str, num_samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples_TC = np.random.default_rng(0).normal(0, 0.3, (num_samples, channels))
    data = in_a_file(samples_TC, rate_hz, "FLAC", subtype)
    fast = codec.decode(data)
    read: list[bytes] = []
    decode = codec._decode_with_libsndfile
    monkeypatch.setattr(codec, "_decode_with_libsndfile", lambda data, mono: (read.append(data), decode(data, mono))[1])
    assert codec.decode(data).gain_db is None
    assert not read
    monkeypatch.setattr(codec, "_decode_with_dr_flac", lambda *_: codec._UNREADABLE)
    slow = codec.decode(data)
    assert read
    np.testing.assert_array_equal(fast.samples_T, slow.samples_T)
    assert replace(fast, samples_T=WHOLE) == replace(slow, samples_T=WHOLE)


@pytest.mark.parametrize("decoder", ["dr_flac", "libsndfile", "FFmpeg"])
@pytest.mark.parametrize(("rate_hz", "channels", "subtype"), FLAC_FORMS)
def test_a_flac_with_a_flipped_bit_is_refused_or_has_the_same_samples(
    rate_hz: int, channels: int, subtype: str, decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if decoder != "dr_flac":
        monkeypatch.setattr(codec, "_decode_with_dr_flac", lambda *_: codec._UNREADABLE)
    if decoder == "FFmpeg":
        monkeypatch.setattr(codec, "_decode_with_libsndfile", codec._decode_with_ffmpeg)
    samples_TC = np.stack([speech_like(0.5, rate_hz, seed) for seed in range(channels)], axis=1)
    whole = in_a_file(samples_TC, rate_hz, "FLAC", subtype)
    expected_T = codec.decode(whole).samples_T
    random = np.random.default_rng(0)
    refused = 0
    for _ in range(15):
        data = bytearray(whole)
        data[random.integers(42, len(data))] ^= 1 << int(random.integers(8))
        try:
            assert np.array_equal(codec.decode(bytes(data)).samples_T, expected_T)
        except DataError:
            refused += 1
    assert refused >= 10


def test_a_flipped_bit_in_the_rate_of_a_flac_is_a_reason() -> None:
    whole = in_a_file(speech_like(0.5, 44_100), 44_100, "FLAC")
    for at, bit in ((18, 5), (18, 7), (19, 0), (19, 6), (20, 4), (20, 7)):
        data = bytearray(whole)
        data[at] ^= 1 << bit
        assert reason(bytes(data)).why


def test_a_flac_whose_encoder_knew_no_md5_is_read() -> None:
    whole = in_a_file(speech_like(0.5, 44_100), 44_100, "FLAC")
    assert codec.decode(whole[:26] + bytes(16) + whole[42:]).samples_T.any()
    assert "MD5" in reason(whole[:26] + bytes(15) + b"\1" + whole[42:]).why
