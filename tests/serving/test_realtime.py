"""Live transcription over a WebSocket, with the official client and without."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import soxr
import websockets.exceptions
from websockets.sync.client import ClientConnection, connect

from serving_process import ServerProcess, samples_of, serving
from tones import TEXTS
from voxstill.synthesis.voices import SpeechJob, synthesize

TRANSCRIPTION = "conversation.item.input_audio_transcription"
MANUAL = {"turn_detection": None, "transcription": {"model": "tone"}}


def pcm_of(*texts: str, rate_hz: int = 24_000) -> bytes:
    """Tones as PCM."""
    resampled_T = soxr.resample(samples_of(*texts).astype(np.float32), 16_000, rate_hz)
    return bytes(resampled_T.clip(-32_768, 32_767).astype("<i2").tobytes())


def open_session(server: ServerProcess, query: str = "intent=transcription") -> ClientConnection:
    url = f"{server.url.replace('http', 'ws')}/v1/realtime?{query}"
    return connect(url, additional_headers={"Authorization": f"Bearer {server.key}"})


def send(client: ClientConnection, kind: str, **fields: Any) -> None:
    client.send(json.dumps({"type": kind, **fields}))


def update(client: ClientConnection, inputs: dict[str, Any], **fields: Any) -> None:
    send(client, "session.update", session={"type": "transcription", "audio": {"input": inputs}, **fields})


def append(client: ClientConnection, data: bytes) -> None:
    for start in range(0, len(data), 9601):  # an odd number of bytes
        send(client, "input_audio_buffer.append", audio=base64.b64encode(data[start : start + 9601]).decode())


def receive(client: ClientConnection, until: str) -> list[dict[str, Any]]:
    """All events up to one of this type."""
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] != until:
        events.append(json.loads(client.recv(120)))
    return events


def test_the_official_client_gets_words_and_the_final_text(server: ServerProcess) -> None:
    async def talk() -> list[Any]:
        events = []
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0) as client:
            query = {"intent": "transcription"}
            async with client.realtime.connect(model="tone", extra_query=query) as connection:
                session: Any = {"type": "transcription", "audio": {"input": MANUAL}}
                await connection.session.update(session=session)
                data = pcm_of(TEXTS[0], TEXTS[2])
                for start in range(0, len(data), 4800):
                    audio = base64.b64encode(data[start : start + 4800]).decode()
                    await connection.input_audio_buffer.append(audio=audio)
                    await asyncio.sleep(0.05)
                await connection.input_audio_buffer.commit()
                async for event in connection:
                    events.append(event)
                    if event.type == f"{TRANSCRIPTION}.completed":
                        return events
        return events

    events = asyncio.run(talk())
    kinds = [event.type for event in events]
    assert kinds[:2] == ["session.created", "session.updated"]
    assert {"input_audio_buffer.committed", "conversation.item.added"} <= set(kinds)
    deltas = [event for event in events if event.type == f"{TRANSCRIPTION}.delta"]
    text = f"{TEXTS[0]} {TEXTS[2]}"
    assert len(deltas) >= 1
    assert "".join(event.delta for event in deltas).split() == text.split()
    assert events[-1].transcript == text
    assert events[-1].usage.seconds == pytest.approx(len(samples_of(TEXTS[0], TEXTS[2])) / 16_000, abs=0.01)


@pytest.mark.parametrize("rate_hz", [16_000, 48_000])
def test_other_rates_are_resampled_and_words_have_times(server: ServerProcess, rate_hz: int) -> None:
    with open_session(server) as client:
        update(client, MANUAL | {"format": {"type": "audio/pcm", "rate": rate_hz}})
        append(client, pcm_of(TEXTS[2], rate_hz=rate_hz))
        send(client, "input_audio_buffer.commit")
        done = receive(client, f"{TRANSCRIPTION}.completed")[-1]
        assert [word["word"] for word in done["words"]] == TEXTS[2].split()
        assert done["words"][0]["start"] == pytest.approx(0.12, abs=0.1)
        append(client, pcm_of("ba", rate_hz=rate_hz))
        send(client, "input_audio_buffer.commit")
        events = receive(client, f"{TRANSCRIPTION}.completed")
        committed = next(event for event in events if event["type"] == "input_audio_buffer.committed")
        assert (events[-1]["transcript"], committed["previous_item_id"]) == ("ba", done["item_id"])
        assert events[-1]["words"][0]["start"] > 1.5  # from the start of the session
        assert events[-1]["version"] == "v1"


def test_speech_is_found_by_the_vad(server: ServerProcess) -> None:
    [speech_T] = synthesize([SpeechJob(text="turn on the lights", voice="en-us+f2")])
    noise_T = np.random.default_rng(0).normal(0, 5, 24_000).astype(np.int16)
    with open_session(server, "model=tone") as client:
        include = f"{TRANSCRIPTION.removeprefix('conversation.')}.logprobs"
        update(client, {"format": {"type": "audio/pcm", "rate": 16_000}}, include=[include])
        append(client, np.concatenate([noise_T, speech_T, noise_T]).astype("<i2").tobytes())
        events = receive(client, f"{TRANSCRIPTION}.completed")
    events = [event for event in events if not event["type"].startswith("session.")]
    started, stopped = (
        next(event for event in events if event["type"] == f"input_audio_buffer.speech_{name}")
        for name in ("started", "stopped")
    )
    assert 1000 < started["audio_start_ms"] < stopped["audio_end_ms"] < 3000 + len(speech_T) // 16
    assert len({event.get("item_id", event.get("item", {}).get("id")) for event in events}) == 1


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"type": "response.create"}, "unknown event `response.create`"),
        ({"type": "session.update", "session": {"type": "realtime"}}, "must be `transcription`"),
        ({"type": "session.update", "session": {"voice": "ash"}}, "has no field `voice`"),
        ({"type": "input_audio_buffer.append", "audio": "%"}, "must be base64"),
        ({"type": "input_audio_buffer.append"}, "must be base64"),
        ({"type": "input_audio_buffer.commit"}, "no speech to commit"),
        ({"type": "session.update", "session": {"include": [{}]}}, "may hold"),
        ([], "must be a JSON object"),
    ],
)
def test_an_event_that_cannot_be_is_an_error_and_the_session_goes_on(
    server: ServerProcess, event: Any, message: str
) -> None:
    with open_session(server) as client:
        client.send(json.dumps(event | {"event_id": "mine"} if isinstance(event, dict) else event))
        error = receive(client, "error")[-1]["error"]
        assert message in error["message"]
        assert error["event_id"] == ("mine" if isinstance(event, dict) else None)
        update(client, MANUAL)
        assert receive(client, "session.updated")[-1]["session"]["audio"]["input"]["turn_detection"] is None


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"format": {"type": "audio/pcmu"}}, "must be `audio/pcm`"),
        ({"format": {"type": "audio/pcm", "rate": 4000}}, "must be from 8000 to 48000"),
        ({"turn_detection": {"type": "semantic_vad"}}, "must be `server_vad`"),
        ({"turn_detection": {"type": "server_vad", "threshold": "high"}}, "must be a number"),
        ({"noise_reduction": {"type": "near_field"}}, "noise reduction is not supported"),
        ({"transcription": {"model": "other"}}, "unknown model `other`"),
        ({"transcription": {"prompt": "names"}}, "`prompt` is not supported"),
        ({"transcription": {"keywords": "ba"}}, "are lists"),
        ({"transcription": {"delay": "low"}}, "`delay` is not supported"),
        ({"transcription": {"languages": ["en", "de"]}}, "may hold one language"),
        ({"turn_detection": {"type": "server_vad", "bogus": 1}}, "has no field `bogus`"),
    ],
)
def test_options_that_cannot_be_are_an_error_and_change_nothing(
    server: ServerProcess, inputs: dict[str, Any], message: str
) -> None:
    with open_session(server) as client:
        update(client, inputs)
        assert message in receive(client, "error")[-1]["error"]["message"]
        update(client, {"transcription": {"keywords": ["ba du"], "language": "en"}})
        session = receive(client, "session.updated")[-1]["session"]["audio"]["input"]
        assert (session["format"]["rate"], session["transcription"]["keywords"]) == (24_000, ["ba du"])


def test_what_is_cleared_is_not_transcribed(server: ServerProcess) -> None:
    with open_session(server) as client:
        update(client, MANUAL)
        append(client, pcm_of(TEXTS[2]))
        send(client, "input_audio_buffer.clear")
        receive(client, "input_audio_buffer.cleared")
        append(client, pcm_of("ba"))
        send(client, "input_audio_buffer.commit")
        assert receive(client, f"{TRANSCRIPTION}.completed")[-1]["transcript"] == "ba"


def test_the_end_of_the_server_transcribes_what_was_said(tone_student: Path, tmp_path: Path) -> None:
    with serving(tmp_path, [f"tone={tone_student}"], "serve.grace_s=0") as server, open_session(server) as client:
        update(client, MANUAL)
        append(client, pcm_of(TEXTS[0]))
        send(client, "nothing")
        receive(client, "error")  # all audio before it was read
        os.kill(server.process.pid or 0, signal.SIGTERM)
        assert receive(client, f"{TRANSCRIPTION}.completed")[-1]["transcript"] == TEXTS[0]
        with pytest.raises(websockets.exceptions.ConnectionClosed) as closed:
            receive(client, "nothing")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        server.process.join(120)
        assert server.process.exitcode == 0


def test_others_are_answered_while_one_client_sends_minutes_at_once(server: ServerProcess) -> None:
    with open_session(server) as client:
        update(client, MANUAL)
        receive(client, "session.updated")
        audio = base64.b64encode(bytes(2 * 24_000 * 180)).decode()
        client.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
        waits_s = []
        for _ in range(20):
            start_s = time.monotonic()
            assert server.get("/health", None)[0] == 200
            waits_s.append(time.monotonic() - start_s)
        client.send(json.dumps({"type": "input_audio_buffer.clear"}))
        receive(client, "input_audio_buffer.cleared")
    assert max(waits_s) < 0.5  # all of it at once takes more than a second
