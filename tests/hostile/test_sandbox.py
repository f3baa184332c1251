"""A hostile audio file reads no other file, reaches no network, and its decoder answers in a fixed form."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest

from voxstill.audio import codec, sandbox
from voxstill.audio.decoder import Decoder
from voxstill.core.errors import DataError

SECOND_T = np.random.default_rng(0).integers(-9000, 9000, 16_000).astype(np.int16)


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    with Decoder(30, 1024) as child_decoder:
        yield child_decoder


@pytest.mark.parametrize(
    "content",
    [
        "ffconcat version 1.0\nfile secret.wav\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nsecret.wav\n#EXT-X-ENDLIST\n",
        "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio {port} RTP/AVP 0\r\n",
    ],
    ids=["concat", "hls", "sdp"],
)
def test_a_file_that_names_another_one_or_a_port_is_not_audio(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret.wav").write_bytes(codec.encode(SECOND_T, "wav"))
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        data = content.format(port=free.getsockname()[1]).encode()
        with pytest.raises(DataError, match="not audio"):  # and not that the port is taken
            codec.decode(data)
        with Decoder(30, 1024) as decoder, pytest.raises(DataError, match="not audio"):
            decoder.decode(data)


def test_every_format_on_the_list_is_one_of_ffmpeg() -> None:
    assert set(sandbox.FFMPEG_OPTIONS["format_whitelist"].split(",")) <= av.formats_available


def test_a_confined_process_opens_and_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    attempts = {
        "open": "os.open('secret', os.O_RDONLY)",
        "create": "os.open('new', os.O_CREAT | os.O_WRONLY)",
        "remove": "os.unlink('secret')",
        "rename": "os.rename('secret', 'stolen')",
        "list": "os.listdir('.')",
        "socket": "socket.socket()",
        "connected": "socket.create_connection(('127.0.0.1', 1))",
        "fork": "os.fork()",
        "exec": "os.execv('/bin/true', ['true'])",
        "kill": "os.kill(os.getppid(), 0)",
    }
    code = (
        "import json, os, socket\nfrom voxstill.audio import sandbox\n"
        f"attempts = {attempts!r}\nallowed = []\nif not sandbox.confine():\n"
        "    attempts = {name: attempts[name] for name in ('open', 'create', 'list', 'socket', 'connected')}\n"
        "for name, code in attempts.items():\n"
        "    try:\n        exec(code)\n        allowed.append(name)\n    except OSError:\n        pass\n"
        "os.write(1, json.dumps(allowed).encode())\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=False)
    assert json.loads(ended.stdout) == []
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_a_confined_process_may_end_itself() -> None:
    """As a library does that finds its memory broken."""
    code = "import os, signal\nfrom voxstill.audio import sandbox\nsandbox.confine()\n"
    for ending, number in (("os.abort()", signal.SIGABRT), ("signal.raise_signal(signal.SIGSEGV)", signal.SIGSEGV)):
        ended = subprocess.run([sys.executable, "-c", code + ending], capture_output=True, check=False)
        assert ended.returncode == -number


@pytest.mark.parametrize(
    ("answer", "num_samples"),
    [
        (b"\x80\x04K\x01.", 0),  # pickled
        (b"{", 0),
        (b"[]", 0),
        (b'{"error": ["SystemExit", "", "", ""]}', 0),
        (b'{"error": 1}', 0),
        (b'{"path": "/"}', 4),
        (b"{}", 2**40),
        (b"", 0),
    ],
)
def test_an_answer_in_another_form_is_a_crash_of_the_decoder(answer: bytes, num_samples: int) -> None:
    def serve(connection: socket.socket) -> None:
        with connection:
            connection.recv(1 << 20)
            connection.sendall(
                struct.pack("<qq", len(answer), 2 * num_samples) + answer + bytes(2 * min(num_samples, 4))
            )
            with contextlib.suppress(ConnectionError):
                connection.recv(1 << 20)

    class HijackedDecoder(Decoder):
        def _connected(self) -> socket.socket:
            super()._connected().close()
            self._socket, other_end = socket.socketpair()
            threading.Thread(target=serve, args=[other_end], daemon=True).start()
            return self._socket

    with HijackedDecoder(30, 1024) as decoder, pytest.raises(DataError, match="decoding crashed"):
        decoder.decode(codec.encode(SECOND_T, "flac"))


def test_the_words_of_an_error_are_those_of_this_process(decoder: Decoder) -> None:
    silence = codec.encode(np.zeros(16_000, np.int16), "flac")
    with pytest.raises(codec.SilentError) as here:
        codec.decode(silence)
    with pytest.raises(codec.SilentError) as there:
        decoder.decode(silence)
    assert str(here.value) == str(there.value)
