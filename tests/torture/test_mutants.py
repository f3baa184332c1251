"""However an audio file is damaged, decoding gives audio or a reason: the parent lives on and stays small."""

from __future__ import annotations

import io
import random
import resource
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import av
import numpy as np
import pytest
import soundfile

from voxstill.audio.decoder import Decoder
from voxstill.core.errors import DataError

pytestmark = pytest.mark.slow
LIMIT_S, LIMIT_MB, PARENT_MB = 10.0, 512, 256
RATE_HZ = 24_000


def noisy_tones() -> np.ndarray[Any, Any]:
    time_T = np.arange(RATE_HZ) / RATE_HZ
    pure_T = 0.3 * np.sin(2 * np.pi * 300 * time_T) + 0.2 * np.sin(2 * np.pi * 1700 * time_T)
    return (pure_T + np.random.default_rng(0).normal(0, 0.02, RATE_HZ)).astype(np.float32)


def by_libsndfile(form: str, subtype: str) -> bytes:
    sink = io.BytesIO()
    soundfile.write(sink, np.stack([noisy_tones()] * 2, axis=1), RATE_HZ, format=form, subtype=subtype)
    return sink.getvalue()


def by_ffmpeg(form: str, codec: str, *, video: bool = False) -> bytes:
    sink = io.BytesIO()
    with av.open(sink, "w", format=form) as container:
        audio = container.add_stream(codec, rate=48_000 if codec == "libopus" else RATE_HZ, layout="mono")
        if video:
            pictures: Any = container.add_stream("mpeg4", rate=10, width=64, height=48, pix_fmt="yuv420p")
            for shade in range(10):
                picture = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 20 * shade, np.uint8), format="rgb24")
                container.mux(pictures.encode(picture))
            container.mux(pictures.encode(None))
        frame = av.AudioFrame.from_ndarray((noisy_tones()[None] * 32767).astype(np.int16), format="s16", layout="mono")
        frame.sample_rate, frame.pts = RATE_HZ, 0
        resampler = av.AudioResampler(audio.format, audio.layout, audio.rate, audio.codec_context.frame_size or None)
        for packet in [*resampler.resample(frame), *resampler.resample(None)]:
            container.mux(audio.encode(packet))
        container.mux(audio.encode(None))
    return sink.getvalue()


FORMATS: dict[str, Callable[[], bytes]] = {
    "wav, 16 bits": lambda: by_libsndfile("WAV", "PCM_16"),
    "wav, float": lambda: by_libsndfile("WAV", "FLOAT"),
    "wav, A-law": lambda: by_libsndfile("WAV", "ALAW"),
    "flac": lambda: by_libsndfile("FLAC", "PCM_16"),
    "mp3": lambda: by_libsndfile("MP3", "MPEG_LAYER_III"),
    "ogg, vorbis": lambda: by_libsndfile("OGG", "VORBIS"),
    "ogg, opus": lambda: by_libsndfile("OGG", "OPUS"),
    "aiff": lambda: by_libsndfile("AIFF", "PCM_24"),
    "m4a, aac": lambda: by_ffmpeg("ipod", "aac"),
    "webm, opus": lambda: by_ffmpeg("webm", "libopus"),
    "mp4 with pictures": lambda: by_ffmpeg("mp4", "aac", video=True),
}


def mutant(intact: bytes, other: bytes, chance: random.Random) -> bytes:
    """`intact` with bits flipped, numbers in its header changed, an end cut off, or a stretch put elsewhere."""
    data = bytearray(intact)
    kind = chance.choice(["bits", "bits", "header", "cut", "splice", "graft", "holes"])
    if kind == "bits":
        for _ in range(2 ** chance.randint(0, 8)):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif kind == "header":
        for _ in range(chance.randint(1, 6)):
            size = chance.choice([1, 2, 4, 8])
            value = chance.choice([0, 1, 2 ** (8 * size) - 1, 2 ** (8 * size - 1), chance.randrange(2 ** (8 * size))])
            at = chance.randrange(min(len(data), 400))
            data[at : at + size] = value.to_bytes(size, chance.choice(["little", "big"]))
    elif kind == "cut":
        del data[chance.randrange(len(data)) :]
    elif kind == "splice":
        start, end = sorted(chance.randrange(len(data)) for _ in range(2))
        at = chance.randrange(len(data))
        data[at:at] = data[start:end]
    elif kind == "graft":  # the head of one format on the body of another
        data[chance.randrange(len(data)) :] = other[chance.randrange(len(other)) :]
    else:
        for _ in range(chance.randint(1, 4)):
            start = chance.randrange(len(data))
            data[start : start + chance.randint(1, 3000)] = b""
    return bytes(data)


def outcome(decoder: Decoder, data: bytes) -> str:
    try:
        audio = decoder.decode(data)
    except DataError as error:
        return error.what
    assert audio.samples_T.dtype == np.int16
    assert audio.samples_T.any()
    return "audio"


def test_a_mutated_file_is_audio_or_a_reason_and_the_parent_stays_small(torture: Any) -> None:
    total = torture.count(short=1100, full=100_000)
    intact = {name: make() for name, make in FORMATS.items()}
    outcomes: Counter[str] = Counter()
    slowest_s = 0.0
    with Decoder(LIMIT_S, LIMIT_MB) as decoder:
        assert {outcome(decoder, data) for data in intact.values()} == {"audio"}
        before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        for number in range(total):
            chance = random.Random(number)
            name = list(intact)[number % len(intact)]
            start = time.monotonic()
            what = outcome(decoder, mutant(intact[name], intact[chance.choice(list(intact))], chance))
            slowest_s = max(slowest_s, time.monotonic() - start)
            outcomes[what] += 1
    grown_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024 - before_mb
    assert "" not in outcomes
    assert slowest_s < 2 * LIMIT_S + 60, "a decoder and its second attempt"
    assert grown_mb < PARENT_MB
    assert outcomes["decoding hung"] < total / 1000
    listed = ", ".join(f"{count:,} {what}" for what, count in outcomes.most_common())
    torture.tell("mutated audio", f"{total:,} files: {listed}; slowest {slowest_s:.1f} s; parent grew by {grown_mb} MB")
