"""The official client of OpenAI's API gets from the server what the API promises."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import openai
import pytest

from serving_process import ServerProcess, wav_of
from tones import TEXTS, speak
from voxstill.core import config
from voxstill.core.records import Utterance
from voxstill.teachers import registry
from voxstill.teachers.teacher import Clip

TEXT = TEXTS[2]


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0)


def transcribe(client: openai.OpenAI, text: str = TEXT, **fields: Any) -> Any:
    return client.audio.transcriptions.create(**{"model": "tone", "file": ("a.wav", wav_of(text))} | fields)


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tone"]
    assert client.models.retrieve("tone").id == "tone"
    with pytest.raises(openai.NotFoundError, match="unknown model `other`"):
        client.models.retrieve("other")


def test_json_has_the_text_and_the_duration(client: openai.OpenAI) -> None:
    answer = transcribe(client)
    assert (answer.text, answer.usage.seconds) == (TEXT, 1.56)


def test_every_answer_names_its_version_and_has_an_id(client: openai.OpenAI) -> None:
    answers = [
        client.audio.transcriptions.with_raw_response.create(model="tone", file=("a.wav", wav_of(TEXT)))
        for _ in range(2)
    ]
    assert [answer.headers["x-voxstill-version"] for answer in answers] == ["v1", "v1"]
    assert len({answer.headers["x-request-id"] for answer in answers}) == 2


def test_text_and_subtitles_are_plain(client: openai.OpenAI) -> None:
    assert transcribe(client, response_format="text") == f"{TEXT}\n"
    assert transcribe(client, response_format="srt").startswith("1\n00:00:00,120 --> 00:00:01,")
    assert transcribe(client, response_format="vtt").startswith("WEBVTT\n\n00:00:00.120 --> ")


def test_verbose_json_has_words_and_segments_with_times(client: openai.OpenAI) -> None:
    answer = transcribe(
        client, response_format="verbose_json", timestamp_granularities=["word", "segment"], language="en"
    )
    assert [word.word for word in answer.words] == TEXT.split()
    assert all(before.end <= after.start for before, after in zip(answer.words, answer.words[1:], strict=False))
    assert [segment.text for segment in answer.segments] == [TEXT]
    assert (answer.language, answer.duration, len(answer.segments[0].tokens)) == ("en", 1.56, 4)
    assert -1 < answer.segments[0].avg_logprob < 0


def test_granularities_choose_what_is_there(client: openai.OpenAI) -> None:
    words = transcribe(client, response_format="verbose_json", timestamp_granularities=["word"])
    assert (len(words.words), words.segments) == (4, None)
    segments = transcribe(client, response_format="verbose_json")
    assert (segments.words, len(segments.segments)) == (None, 1)


def test_logprobs_are_of_words(client: openai.OpenAI) -> None:
    answer = transcribe(client, include=["logprobs"])
    assert "".join(entry.token for entry in answer.logprobs) == TEXT
    assert all(-1 < entry.logprob <= 0 for entry in answer.logprobs)


def test_a_stream_sends_deltas_and_the_whole_text(client: openai.OpenAI) -> None:
    events = list(transcribe(client, stream=True, include=["logprobs"]))
    assert [event.type for event in events] == ["transcript.text.delta", "transcript.text.done"]
    assert "".join(event.delta for event in events[:-1]) == events[-1].text == TEXT
    assert events[-1].usage.total_tokens > 0


def test_keywords_are_listened_for(client: openai.OpenAI) -> None:
    assert transcribe(client, keywords=["ba du", "ko"]).text == TEXT


def test_a_vad_of_the_client_cuts_the_recording(client: openai.OpenAI) -> None:
    """Silero takes no tone for speech, so there is nothing to transcribe."""
    strategy: Any = {"type": "server_vad", "threshold": 0.9, "prefix_padding_ms": 50, "silence_duration_ms": 200}
    assert transcribe(client, chunking_strategy=strategy).text == ""
    assert transcribe(client, chunking_strategy="auto").text == TEXT


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_format": "diarized_json"}, "start it with `--set diarize=embedded`"),
        ({"response_format": "yaml"}, "may be json, text, srt, vtt, verbose_json, diarized_json"),
        ({"prompt": "Names: Ba"}, "`keywords\\[\\]`"),
        ({"temperature": 0.5}, "`temperature` must be 0"),
        ({"known_speaker_names": ["ann"]}, "named A, B and so on"),
        ({"timestamp_granularities": ["word"]}, "needs `response_format` to be `verbose_json`"),
        ({"include": ["logprobs"], "response_format": "text"}, "needs `response_format` to be `json`"),
        ({"stream": True, "response_format": "srt"}, "use `json`, `text` or `diarized_json`"),
        ({"chunking_strategy": {"type": "server_vad", "threshold": 2}}, "between 0 and 1"),
        ({"chunking_strategy": {"type": "semantic"}}, "`auto` or an object"),
        ({"extra_body": {"beam_size": 5}}, "unknown field `beam_size`"),
        ({"keywords": ["x" * 201]}, "at most 200 characters"),
        ({"keywords": [f"{number:0200d}" for number in range(101)]}, "together are texts of at most 20000"),
        ({"languages": ["en", "de"]}, "may hold one language"),
        ({"file": ("a.wav", b"")}, "cannot be read"),
        ({"file": ("a.wav", b"no audio at all")}, "the audio cannot be read: not audio"),
    ],
)
def test_what_cannot_be_is_a_400_that_says_so(client: openai.OpenAI, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        list(transcribe(client, **fields))
    assert isinstance(caught.value.body, dict)
    assert set(caught.value.body) == {"message", "type", "param", "code"}


def test_an_unknown_model_is_a_404(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="unknown model `other`; the models are `tone`"):
        transcribe(client, model="other")


def test_the_asynchronous_client_is_served_in_batches(server: ServerProcess) -> None:
    # a long upload before says nothing of how long the ones that wait are
    long = openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0)
    assert transcribe(long, file=("a.wav", wav_of(*[TEXT] * 60)))

    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0) as client:
            jobs = [
                client.audio.transcriptions.create(model="tone", file=("a.wav", wav_of(TEXTS[i % 4])))
                for i in range(24)
            ]
            return [answer.text for answer in await asyncio.gather(*jobs)]

    assert asyncio.run(ask()) == [TEXTS[i % 4] for i in range(24)]


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl at hand")
def test_curl_is_answered(server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav_of(TEXT))
    command = ["curl", "--silent", "--show-error", f"{server.url}/v1/audio/transcriptions"]
    command += ["--header", f"Authorization: Bearer {server.key}"]
    command += ["--form", f"file=@{tmp_path}/a.wav", "--form", "model=tone"]
    answer = subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert json.loads(answer.stdout)["text"] == TEXT


def test_the_teacher_openai_labels_with_the_server(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_SERVER", server.key)
    kind = registry.find("openai")
    tree = {
        "base_url": f"{server.url}/v1",
        "model": "tone",
        "api_key_env": "KEY_OF_SERVER",
        "response_format": "verbose_json",
        "timestamp_granularities": ["word"],
        "retries": 0,
    }
    teacher = kind(config.validated(kind.Options, tree))
    teacher.load()
    utterance = Utterance(id="u", recording_id="r", uri="u", start_ms=0, end_ms=1560)
    [label] = teacher.transcribe_batch([Clip(utterance=utterance, samples_T=speak(TEXT, 2)[0])])
    teacher.close()
    assert (label.text, [word.text for word in label.words]) == (TEXT, TEXT.split())
