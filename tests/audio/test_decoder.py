"""The isolated decoder: equal to the one in this process, and never the end of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from voxstill.audio import codec
from voxstill.audio.decoder import Decoder
from voxstill.core.errors import DataError, VoxstillError
from waiting import until

RANDOM = np.random.default_rng(0)
SECOND_T = RANDOM.integers(-9000, 9000, 16_000).astype(np.int16)
INTACT = codec.encode(SECOND_T, "flac")


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    with Decoder(30, 1024) as child_decoder:
        yield child_decoder


@pytest.fixture(scope="module")
def long_file() -> bytes:
    """Half an hour: a second or so of decoding, and 58 MB of samples."""
    return codec.encode(np.tile(SECOND_T, 1800), "flac")


def test_an_audio_file_is_decoded_as_in_this_process(decoder: Decoder) -> None:
    expected, actual = codec.decode(INTACT), decoder.decode(INTACT)
    assert np.array_equal(actual.samples_T, expected.samples_T)
    assert (actual.codec, actual.rate_hz, actual.num_channels) == (
        expected.codec,
        expected.rate_hz,
        expected.num_channels,
    )
    with pytest.raises(DataError, match="no such channel"):
        decoder.decode(INTACT, channel=1)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, len(INTACT) - 1), st.integers(0, 255)), max_size=8), st.integers(0, len(INTACT))
)
def test_whatever_is_in_a_file_the_answer_is_that_of_this_process(
    decoder: Decoder, changes: list[tuple[int, int]], length: int
) -> None:
    data = bytearray(INTACT)
    for position, value in changes:
        data[position] = value
    data = data[:length]
    try:
        expected: object = codec.decode(bytes(data)).samples_T.tolist()
    except DataError as error:
        expected = (error.what, error.why)
    try:
        outcome: object = decoder.decode(bytes(data)).samples_T.tolist()
    except DataError as error:
        outcome = (error.what, error.why)
    assert outcome == expected


def test_a_file_that_takes_too_long_is_an_error_and_the_next_one_is_decoded() -> None:
    with Decoder(2, 1024) as decoder:
        decoder.decode(INTACT)
        assert decoder._child is not None
        decoder._child.send_signal(signal.SIGSTOP)
        with pytest.raises(DataError, match="decoding hung") as caught:
            decoder.decode(INTACT)
        assert caught.value.why == "no end within 2 s"
        assert len(decoder.decode(INTACT).samples_T) == 16_000


def test_a_file_that_takes_too_much_memory_is_an_error_and_the_next_one_is_decoded(long_file: bytes) -> None:
    with Decoder(60, 60) as decoder:
        with pytest.raises(DataError, match=r"too much memory|crashed"):
            decoder.decode(long_file)
        assert len(decoder.decode(INTACT).samples_T) == 16_000


@pytest.mark.parametrize(("deaths", "survives"), [(1, True), (2, False)])
def test_one_crash_is_retried_and_a_second_is_an_error(long_file: bytes, deaths: int, survives: bool) -> None:
    def shoot() -> None:
        shot: set[int] = set()
        while len(shot) < deaths and not has_ended.wait(0.001):
            child, connection = decoder._child, decoder._socket
            # its time limit is that of a file: it has started, and is sent one
            if child and connection and connection.gettimeout() == 60.5 and child.pid not in shot:
                child.send_signal(signal.SIGSEGV)
                shot.add(child.pid)

    gun, has_ended = threading.Thread(target=shoot), threading.Event()
    with Decoder(60.5, 1024) as decoder:
        gun.start()
        if survives:
            assert len(decoder.decode(long_file).samples_T) == 1800 * 16_000
        else:
            with pytest.raises(DataError, match="decoding crashed") as caught:
                decoder.decode(long_file)
            assert "SIGSEGV" in caught.value.why
        has_ended.set()
        gun.join()
        assert len(decoder.decode(INTACT).samples_T) == 16_000


def test_the_child_does_not_outlive_its_parent_even_in_the_middle_of_a_file(tmp_path: Path, long_file: bytes) -> None:
    (tmp_path / "long.flac").write_bytes(long_file)
    code = (
        "import sys; from pathlib import Path; from voxstill.audio.decoder import Decoder\n"
        "d = Decoder(60, 1024)\n"
        "d._connected(); print(d._child.pid, flush=True)\n"
        "d.decode(Path(sys.argv[1]).read_bytes())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "long.flac")], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    time.sleep(0.1)
    parent.kill()
    parent.wait()
    until(lambda: not Path(f"/proc/{child}").exists())


def test_a_child_that_was_started_ahead_decodes() -> None:
    with Decoder(60, 1024) as decoder:
        decoder.start()
        child = decoder._child
        decoder.start()
        assert len(decoder.decode(INTACT).samples_T) == 16_000
        assert decoder._child is child is not None
    decoder.start()
    decoder.close()  # before it is ready
    assert len(decoder.decode(INTACT).samples_T) == 16_000
    decoder.close()


def test_a_child_that_cannot_start_is_an_error_and_not_a_reason_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(VoxstillError, match="cannot start"):
        Decoder(5, 1024).decode(INTACT)


def test_a_child_without_a_library_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "av.py").write_text("raise ImportError('libavcodec.so: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(VoxstillError, match="cannot start") as raised:
        Decoder(5, 1024).decode(INTACT)
    assert raised.value.why == "ImportError: libavcodec.so: cannot open shared object file"


def test_what_a_c_library_writes_of_a_bad_file_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with Decoder(30, 1024) as child_decoder, pytest.raises(DataError):
        child_decoder.decode(b"\xff\xfb\x90\x64" + bytes(2000))  # of which mpg123 has three lines to say
    assert capfd.readouterr() == ("", "")


def test_a_decoder_process_starts_without_the_configuration() -> None:
    code = "import sys, voxstill.audio.decoder; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_another_thread_decodes_can_be_interrupted_and_is_not_tried_again() -> None:
    with Decoder(60, 1024) as decoder:
        decoder.decode(INTACT)
        child, outcome = decoder._child, list[DataError]()
        assert child is not None
        child.send_signal(signal.SIGSTOP)

        def decode() -> None:
            with pytest.raises(DataError, match="decoding crashed") as caught:
                decoder.decode(INTACT)
            outcome.append(caught.value)

        thread = threading.Thread(target=decode)
        thread.start()
        time.sleep(0.1)
        decoder.interrupt()
        thread.join(10)
        assert len(outcome) == 1
        assert decoder._child is None
        assert len(decoder.decode(INTACT).samples_T) == 16_000


def test_a_child_that_has_ended_is_replaced_and_costs_no_attempt() -> None:
    with Decoder(60, 1024) as decoder:
        thread = threading.Thread(target=decoder._connected)  # the child ends with it
        thread.start()
        thread.join()
        child = decoder._child
        assert child is not None
        until(lambda: child.poll() is not None)
        decoder.start()
        assert decoder._child is not child
        assert len(decoder.decode(INTACT).samples_T) == 16_000
