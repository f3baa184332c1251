"""A client of the WebSocket of `voxstill serve`."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

import numpy as np
from numpy.typing import NDArray

from voxstill.core import world
from voxstill.core.errors import ConfigError, StorageError, first_line
from voxstill.core.monitor import log
from voxstill.core.records import RATE_HZ, Word
from voxstill.pipeline.live_results import LiveSegment, LiveWords, ShowSegment, ShowWords
from voxstill.pipeline.serve import check_packages

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

API_KEY = "VOXSTILL_API_KEY"
"""The variable of the environment that holds the key for the server."""
_TRANSCRIPTION = "conversation.item.input_audio_transcription."
_ANSWER_S = 300.0
"""The server may take so long for the last words."""


def transcribe_by_server(url: str, blocks: Iterator[NDArray[np.int16]], words: ShowWords, segment: ShowSegment) -> None:
    """Send blocks of samples at 16 kHz to a server, and show what it answers, as `pipeline/listen.py:listen` does.

    ConfigError if no server answers or it refuses, StorageError if the connection is lost.
    """
    check_packages()
    from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
    from websockets.sync.client import connect

    key = world.environment().get(API_KEY, "").strip()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        connection = connect(_address(url), additional_headers=headers)
    except (OSError, ValueError, InvalidHandshake, InvalidURI) as error:
        raise ConfigError(
            f"no server responds at {url}",
            code="live-server",
            why=first_line(error),
            fix=f"check the address, and {API_KEY} where the server needs a key",
        ) from None
    with connection:
        try:
            _Session(connection, words, segment).run(blocks)
        except (ConnectionClosed, TimeoutError, ValueError) as error:  # it ends, is silent, or speaks no JSON
            raise StorageError(
                f"the connection to {url} was lost",
                code="live-server",
                why=first_line(error),
                fix="run the command again",
            ) from None


class _Session:
    """One live transcription by the server."""

    def __init__(self, connection: ClientConnection, words: ShowWords, segment: ShowSegment) -> None:
        self._connection, self._words, self._segment = connection, words, segment
        self._numbers: dict[str, int] = {}
        self._open: set[str] = set()
        self._stopped: set[str] = set()  # items that a pause has ended
        self._is_committed = False

    def run(self, blocks: Iterator[NDArray[np.int16]]) -> None:
        """Send all blocks, and return when the last segment is transcribed."""
        audio = {"input": {"format": {"type": "audio/pcm", "rate": RATE_HZ}}}
        self._send("session.update", session={"type": "transcription", "audio": audio})
        try:
            for block_T in blocks:
                data = base64.b64encode(block_T.astype("<i2").tobytes()).decode()
                self._send("input_audio_buffer.append", audio=data)
                self._receive_waiting()
        except KeyboardInterrupt:
            log.info("listen: interrupted")
        self._send("input_audio_buffer.commit", event_id="last")
        while self._open or not self._is_committed:
            self._take(json.loads(self._connection.recv(_ANSWER_S)))

    def _receive_waiting(self) -> None:
        while True:
            try:
                message = self._connection.recv(0)
            except TimeoutError:
                return
            self._take(json.loads(message))

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, item = event["type"], event.get("item_id", "")
        if kind == "error":
            error = event["error"]
            if error.get("event_id") != "last":
                raise ConfigError(
                    "the server refuses the audio",
                    code="live-server",
                    why=error["message"],
                    fix="see its documentation",
                )
            self._is_committed = True  # nothing was being spoken
        elif kind == "input_audio_buffer.committed":
            self._open.add(item)
            self._is_committed = self._is_committed or item not in self._stopped
        elif kind == "input_audio_buffer.speech_stopped":
            self._stopped.add(item)
        elif kind == f"{_TRANSCRIPTION}delta":
            words, interim = _words(event["words"]), _words(event.get("interim", ()))
            self._words(LiveWords(segment=self._number(item), words=words, interim=interim))
        elif kind in (f"{_TRANSCRIPTION}completed", f"{_TRANSCRIPTION}failed"):
            self._open.discard(item)
            self._segment(_segment(self._number(item), event))

    def _number(self, item: str) -> int:
        return self._numbers.setdefault(item, len(self._numbers))

    def _send(self, kind: str, **fields: object) -> None:
        self._connection.send(json.dumps({"type": kind, **fields}))


def _segment(number: int, event: Mapping[str, Any]) -> LiveSegment:
    words = _words(event.get("words", ()))
    return LiveSegment(
        segment=number,
        start_ms=words[0].start_ms if words else 0,
        end_ms=words[-1].end_ms if words else 0,
        text=event.get("transcript", ""),
        words=words,
        error=event["error"]["message"] if "error" in event else None,
    )


def _words(entries: Sequence[Mapping[str, Any]]) -> tuple[Word, ...]:
    return tuple(
        Word(text=entry["word"], start_ms=round(entry["start"] * 1000), end_ms=round(entry["end"] * 1000))
        for entry in entries
    )


def _address(url: str) -> str:
    """The WebSocket of a server whose address is `http://host:port`, with `?model=NAME` where it has several."""
    parts = urlsplit(url)
    query = {"intent": "transcription"} | {name: values[-1] for name, values in parse_qs(parts.query).items()}
    path = parts.path.rstrip("/").removesuffix("/realtime").removesuffix("/v1") + "/v1/realtime"
    return urlunsplit((parts.scheme.replace("http", "ws"), parts.netloc, path, urlencode(query), ""))
