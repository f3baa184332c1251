"""Audio decoded in blocks: the same samples in constant memory, and what a broken file holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from voxstill.audio import codec, vad
from voxstill.audio.decoder import Decoder
from voxstill.audio.sample_file import SampleFile
from voxstill.core.config import Segment
from voxstill.core.errors import DataError
from voxstill.storage.fetch import open_uri

TONE_T = (8000 * np.sin(np.arange(40_000) / 9)).astype(np.int16)


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    with Decoder(60, 1024) as child_decoder:
        yield child_decoder


def outcome(decode: Callable[[], NDArray[np.int16]]) -> tuple[str, list[int]]:
    """The kind of error or none, and the samples."""
    try:
        return "", decode().tolist()
    except codec.SilentError:
        return "silent", []
    except DataError as error:
        return error.what, []


def test_every_file_gives_the_samples_that_it_gives_at_once_or_what_there_is_with_the_reason(
    decoder: Decoder, shared_data: Callable[[str], Path]
) -> None:
    folder = shared_data("nasty-audio")
    names = [json.loads(line)["file"] for line in (folder / "manifest.jsonl").read_text().splitlines()]
    num_incomplete = 0
    for name in names:
        path = next(folder.rglob(name))
        expected, samples = outcome(lambda path=path: codec.decode(path.read_bytes()).samples_T)
        with open_uri(str(path)) as source, SampleFile() as decoded:
            error = fault = None
            try:
                fault = decoder.decode_blocks(source, decoded)
            except DataError as raised:
                error = raised
            if error is None and fault is None:
                assert expected == ("silent" if decoded.is_silent else ""), name
                assert decoded.is_silent or decoded[:].tolist() == samples, name
            else:
                num_incomplete += fault is not None
                assert expected == (fault or error).what, name  # type: ignore[union-attr]
                assert fault is None or len(decoded) > 0, name
    assert num_incomplete == 3


@pytest.mark.parametrize("gain", ["peak", "rms", "loudness"])
def test_the_level_is_that_of_the_whole_recording(decoder: Decoder, gain: str) -> None:
    data = codec.encode(np.concatenate([TONE_T // 16, TONE_T // 4, TONE_T // 32]), "flac")
    with SampleFile(gain) as decoded:  # type: ignore[arg-type]
        assert decoder.decode_blocks(data, decoded, as_float=decoded.is_float) is None
        decoded.normalize()
        expected_T = codec.decode(data, gain=gain).samples_T  # type: ignore[arg-type]
        assert np.abs(decoded[:].astype(int) - expected_T).max() <= 1


def test_channels_that_cancel_are_replaced_by_the_louder_one(decoder: Decoder, tmp_path: Path) -> None:
    import soundfile

    path = tmp_path / "cancelled.wav"
    soundfile.write(path, np.stack([TONE_T, -TONE_T], axis=1), 16_000)
    with open_uri(str(path)) as source, SampleFile() as decoded:
        assert decoder.decode_blocks(source, decoded) is None
        assert decoded[:].tolist() == codec.decode(path.read_bytes()).samples_T.tolist()


def test_a_long_recording_takes_no_more_memory_than_a_short_one() -> None:
    """Whole, half an hour takes the decoder 58 MB of samples at least twice."""
    data = codec.encode(np.tile(TONE_T, 720), "flac")
    with Decoder(60, 64) as limited, SampleFile() as decoded:
        with pytest.raises(DataError, match=r"too much memory|crashed"):
            limited.decode(data[:-1] + bytes(70 * 2**20))
        assert limited.decode_blocks(data, decoded) is None
        assert len(decoded) == 720 * len(TONE_T)


def test_a_decoder_that_stops_in_the_middle_is_an_error_and_the_next_file_is_decoded(decoder: Decoder) -> None:
    class Full(SampleFile):
        def write(self, samples_T: NDArray[np.int16], /) -> None:
            raise DataError("full")

    data = codec.encode(TONE_T, "flac")
    with Full() as full, pytest.raises(DataError, match="full"):
        decoder.decode_blocks(data, full)
    with SampleFile() as decoded:
        assert decoder.decode_blocks(data, decoded) is None
        assert decoded[:].tolist() == TONE_T.tolist()


def test_segments_of_a_file_of_samples_are_those_of_the_array() -> None:
    random = np.random.default_rng(0)
    samples_T = np.concatenate([TONE_T, random.integers(-40, 40, 90_000).astype(np.int16), TONE_T, TONE_T])
    with SampleFile() as stored:
        for start in range(0, len(samples_T), 7001):
            stored.write(samples_T[start : start + 7001])
        for mode in ("always", "never"):
            cfg = Segment(vad=mode, max_ms=3000)
            assert vad.segment(stored, cfg) == vad.segment(samples_T, cfg)
