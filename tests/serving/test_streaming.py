"""A served streaming student: its words come at once and stay, alone and beside other streams, also while it stops."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from websockets.sync.client import ClientConnection, connect

from serving_process import ServerProcess, samples_of, serving, wav_of
from tones import TEXTS

TRANSCRIPTION = "conversation.item.input_audio_transcription"
LONG = (TEXTS[2], TEXTS[3], TEXTS[0])


@pytest.fixture(scope="module")
def both(
    streaming_tone_student: Path, exported_streaming_tone_student: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server with the student in torch and with the exported one."""
    models = [f"torch={streaming_tone_student}", f"onnx={exported_streaming_tone_student}"]
    with serving(tmp_path_factory.mktemp("server"), models) as process:
        yield process


def session(server: ServerProcess, model: str, **transcription: Any) -> ClientConnection:
    """A session that ends a segment where it is told to."""
    url = f"{server.url.replace('http', 'ws')}/v1/realtime?intent=transcription"
    client = connect(url, additional_headers={"Authorization": f"Bearer {server.key}"})
    inputs = {
        "format": {"type": "audio/pcm", "rate": 16_000},
        "turn_detection": None,
        "transcription": {"model": model, **transcription},
    }
    send(client, "session.update", session={"type": "transcription", "audio": {"input": inputs}})
    return client


def send(client: ClientConnection, kind: str, **fields: Any) -> None:
    client.send(json.dumps({"type": kind, **fields}))


def speak_to(client: ClientConnection, *texts: str, pace: float = 0.0) -> list[dict[str, Any]]:
    """All events of a segment, whose audio is sent in blocks of 100 ms."""
    data = samples_of(*texts).astype("<i2").tobytes()
    for start in range(0, len(data), 3200):
        send(client, "input_audio_buffer.append", audio=base64.b64encode(data[start : start + 3200]).decode())
        time.sleep(pace)
    send(client, "input_audio_buffer.commit")
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] != f"{TRANSCRIPTION}.completed":
        events.append(json.loads(client.recv(60)))
        assert events[-1]["type"] != "error", events[-1]
    return events


@pytest.mark.parametrize("model", ["torch", "onnx"])
def test_words_come_while_they_are_spoken_and_stay(both: ServerProcess, model: str) -> None:
    with session(both, model) as client:
        for texts in (LONG, LONG[:1]):
            events = speak_to(client, *texts, pace=0.03)
            kinds = [event["type"] for event in events]
            deltas = [event["delta"] for event in events if event["type"] == f"{TRANSCRIPTION}.delta"]
            first = kinds.index(f"{TRANSCRIPTION}.delta")
            assert first < kinds.index("input_audio_buffer.committed")
            assert "".join(deltas) == events[-1]["transcript"]


def test_the_words_are_those_of_the_recording(both: ServerProcess) -> None:
    client = openai.OpenAI(base_url=f"{both.url}/v1", api_key=both.key, max_retries=0)
    for text in TEXTS:
        uploads = {
            model: client.audio.transcriptions.create(model=model, file=("a.wav", wav_of(text))).text
            for model in ("torch", "onnx")
        }
        assert uploads == {"torch": text, "onnx": text}
        with session(both, "onnx") as live:
            assert speak_to(live, text)[-1]["transcript"] == text


def test_streams_side_by_side_do_not_hear_one_another(both: ServerProcess) -> None:
    def talk(number: int) -> tuple[str, str]:
        texts = [TEXTS[(number + i) % 4] for i in range(3)]
        with session(both, ("torch", "onnx")[number % 2]) as client:
            together = speak_to(client, *texts, pace=0.01)[-1]["transcript"]
        with session(both, ("torch", "onnx")[number % 2]) as client:
            return together, speak_to(client, *texts)[-1]["transcript"]

    with ThreadPoolExecutor(8) as threads:
        for together, later in threads.map(talk, range(8)):
            assert together == later != ""


def test_with_a_beam_live_texts_are_those_of_the_search_too(
    both: ServerProcess, exported_streaming_tone_student: Path, tmp_path: Path
) -> None:
    with session(both, "onnx") as live:
        greedy = speak_to(live, *LONG)[-1]["transcript"]
    boost = "decode={beam: 8, boost: [du], boost_weight: 30}"
    with serving(tmp_path, [f"onnx={exported_streaming_tone_student}"], boost) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0)
        text = client.audio.transcriptions.create(model="onnx", file=("a.wav", wav_of(*LONG))).text
        assert text != greedy
        with session(server, "onnx") as live:
            assert speak_to(live, *LONG)[-1]["transcript"] == text
        assert server.log.read_text().count("does not write while it listens, as `decode.beam` is 8") == 1


def test_with_keywords_it_is_heard_as_any_student(both: ServerProcess) -> None:
    with session(both, "onnx", keywords=["mi mi"]) as client:
        assert speak_to(client, TEXTS[0])[-1]["transcript"]


def test_what_is_cleared_leaves_nothing_behind(both: ServerProcess) -> None:
    with session(both, "onnx") as client:
        data = samples_of(*LONG).astype("<i2").tobytes()
        for start in range(0, len(data), 3200):
            send(client, "input_audio_buffer.append", audio=base64.b64encode(data[start : start + 3200]).decode())
        send(client, "input_audio_buffer.clear")
        assert speak_to(client, TEXTS[1])[-1]["transcript"] == TEXTS[1]
