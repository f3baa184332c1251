"""Recordings that are decoded ahead come in order, whole or with their error, and never many at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.audio import codec
from voxstill.core.config import Config
from voxstill.core.errors import DataError, VoxstillError
from voxstill.pipeline.audio_input import AudioReader
from voxstill.pipeline.decode_ahead import DecodeAhead, Decoded
from waiting import until

RECORDING_MS = 100


class Recordings:
    """Recordings of equal length by number, of which the odd ones cannot be read; counts those that are open."""

    def __init__(self) -> None:
        self.num_open = self.most_open = self.num_read = 0
        self.interrupted: list[threading.Thread] = []

    @contextmanager
    def read(self, recording: object) -> Iterator[Decoded]:
        self.num_read += 1
        if recording in (1, 3):
            raise DataError(f"no audio in {recording}")
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        try:
            yield Decoded(np.full(16 * RECORDING_MS, recording, np.int16), is_silent=False)
        finally:
            self.num_open -= 1

    def ahead(self, most_ms: int) -> DecodeAhead:
        return DecodeAhead(self.read, self.interrupted.append, most_ms)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=12), st.integers(0, 4 * RECORDING_MS))
def test_every_recording_comes_in_order_and_few_are_decoded_at_once(numbers: list[int], most_ms: int) -> None:
    recordings, came = Recordings(), list[int | str]()
    with recordings.ahead(most_ms) as ahead:
        for number in numbers:
            ahead.add(number)
        for _ in numbers:
            try:
                with ahead.taken() as decoded:
                    came.append(int(decoded.samples_T[0:1][0]))
            except DataError as error:
                came.append(error.what)
    assert came == [f"no audio in {number}" if number in (1, 3) else number for number in numbers]
    assert recordings.num_open == 0
    assert recordings.most_open <= 2 + most_ms // RECORDING_MS  # with the one that is taken, and the one beyond


def test_what_is_left_early_leaves_no_file_open_and_no_thread() -> None:
    recordings = Recordings()
    with recordings.ahead(10 * RECORDING_MS) as ahead:
        for _ in range(5):
            ahead.add(0)
        until(lambda: recordings.num_open == 5)
    until(lambda: recordings.num_open == 0)
    [thread] = recordings.interrupted
    until(lambda: not thread.is_alive())


def test_a_reader_gives_each_recording_as_it_does_alone(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    audio: list[object] = []
    for number in range(20):
        samples_T = random.integers(-9000, 9000, 1600 * (1 + number % 3)).astype(np.int16)
        path = tmp_path / f"{number:02}.flac"
        path.write_bytes(codec.encode(samples_T, "flac") if number % 4 else b"no audio")
        audio.append(samples_T if number % 5 == 1 else path.read_bytes() if number % 5 == 2 else path)
    reader = AudioReader(Config())

    def of(opened: object) -> object:
        try:
            with opened as decoded:  # type: ignore[attr-defined]
                return decoded.samples_T[:].tolist(), decoded.is_silent, decoded.warning
        except VoxstillError as error:
            return error.what

    together = [(name, of(opened)) for name, opened in reader.read_each(iter(audio), ahead_ms=300)]
    assert [outcome for _, outcome in together] == [of(reader.read(recording)) for recording in audio]
    assert [name for name, _ in together[3:5]] == [str(audio[3]), str(audio[4])]


def test_of_recordings_that_are_in_memory_one_is_asked_for_ahead() -> None:
    asked: list[int] = []

    def recordings() -> Iterator[np.ndarray]:
        for number in range(6):
            asked.append(number)
            yield np.full(1600, number, np.int16)

    for number, (_, opened) in enumerate(AudioReader(Config()).read_each(recordings(), ahead_ms=10_000)):
        with opened:
            assert len(asked) <= number + 2
    assert asked == list(range(6))
