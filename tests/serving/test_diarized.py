"""The official client gets text with speakers from a server that has a diarization engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.audio import TranscriptionDiarized

from diarization_models import command_of_halves
from serving_process import ServerProcess, serving, wav_of

FIRST, SECOND = "du mi ko", "ko ba du"


@pytest.fixture(scope="module")
def diarizing(tone_student: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose engine gives each half of a recording to a speaker."""
    folder = tmp_path_factory.mktemp("diarizing")
    with serving(folder, [f"tone={tone_student}"], command_of_halves(folder)) as process:
        yield process


@pytest.fixture(scope="module")
def client(diarizing: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{diarizing.url}/v1", api_key=diarizing.key, max_retries=0)


def diarized(client: openai.OpenAI, *texts: str, **fields: Any) -> Any:
    file = ("a.wav", wav_of(*(texts or (FIRST, SECOND))))
    return client.audio.transcriptions.create(
        **{"model": "tone", "file": file, "response_format": "diarized_json"} | fields
    )


def test_segments_have_speakers_and_times(client: openai.OpenAI) -> None:
    answer = diarized(client)
    assert isinstance(answer, TranscriptionDiarized)
    assert [(one.speaker, one.text, one.start, one.end) for one in answer.segments] == [
        ("A", FIRST, 0.0, 1.2),
        ("B", SECOND, 1.2, 2.4),
    ]
    assert (answer.text, answer.duration, answer.task) == (f"{FIRST} {SECOND}", 2.4, "transcribe")
    assert len({one.id for one in answer.segments}) == 2
    assert {one.type for one in answer.segments} == {"transcript.text.segment"}
    assert answer.usage is not None


def test_a_stream_sends_a_segment_after_its_delta(client: openai.OpenAI) -> None:
    events = list(diarized(client, stream=True))
    segments = [event for event in events if event.type == "transcript.text.segment"]
    deltas = [event for event in events if event.type == "transcript.text.delta"]
    assert [event.type for event in events[:2]] == ["transcript.text.delta", "transcript.text.segment"]
    assert (len(events), events[-1].type) == (5, "transcript.text.done")
    assert [(one.speaker, one.text) for one in segments] == [("A", FIRST), ("B", SECOND)]
    assert [delta.segment_id for delta in deltas] == [segment.id for segment in segments]
    assert "".join(delta.delta for delta in deltas) == events[-1].text == f"{FIRST} {SECOND}"


def test_other_formats_are_not_diarized(client: openai.OpenAI) -> None:
    assert diarized(client, "mi ba", response_format="json").text == "mi ba"


def test_a_recording_that_cannot_be_diarized_says_why(client: openai.OpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match=r"cannot be diarized.*too short for this program"):
        diarized(client, "mi ba")
    with pytest.raises(openai.UnprocessableEntityError):
        diarized(client, "mi ba", stream=True)


def test_a_doubt_is_a_header(client: openai.OpenAI) -> None:
    answer = client.audio.transcriptions.with_raw_response.create(
        model="tone", file=("a.wav", wav_of(FIRST, SECOND)), response_format="diarized_json"
    )
    assert "doubtful speakers" in answer.headers["x-voxstill-warning"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"include": ["logprobs"]}, "needs `response_format` to be `json`"),
        ({"timestamp_granularities": ["word"]}, "needs `response_format` to be `verbose_json`"),
        ({"known_speaker_names": ["ann"]}, "named A, B and so on"),
    ],
)
def test_what_cannot_be_is_a_400_that_says_so(client: openai.OpenAI, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        diarized(client, **fields)


def test_requests_side_by_side_are_all_answered(diarizing: ServerProcess) -> None:
    async def ask() -> list[list[tuple[str, str]]]:
        async with openai.AsyncOpenAI(
            base_url=f"{diarizing.url}/v1", api_key=diarizing.key, max_retries=0, timeout=240
        ) as client:
            answers = await asyncio.gather(*(diarized(client, FIRST, word) for word in ("ko ba du", "ba du ko") * 4))
            return [[(one.speaker, one.text) for one in answer.segments] for answer in answers]

    assert asyncio.run(ask()) == [[("A", FIRST), ("B", word)] for word in ("ko ba du", "ba du ko") * 4]


@pytest.mark.usefixtures("embedded_weights")
def test_speech_in_which_the_engine_finds_nobody_is_of_an_unknown_speaker(tone_student: Path, tmp_path: Path) -> None:
    with serving(tmp_path, [f"tone={tone_student}"], "diarize=embedded") as process:
        client = openai.OpenAI(base_url=f"{process.url}/v1", api_key=process.key, max_retries=0)
        [segment] = diarized(client, FIRST).segments
        assert (segment.speaker, segment.text) == ("unknown", FIRST)
        assert process.stop() == 0
