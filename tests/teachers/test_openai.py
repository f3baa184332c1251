"""A real server on loopback that speaks the protocol, with all the moods that servers have."""

from __future__ import annotations

import base64
import email.message
import email.parser
import email.policy
import io
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from voxstill import engine
from voxstill.audio import codec, read_utterances
from voxstill.core import config
from voxstill.core.errors import ConfigError, TeacherError
from voxstill.core.metrics.steps import StepMeter
from voxstill.core.records import Label, Utterance, UtteranceInfo
from voxstill.labelling import label
from voxstill.storage import tables
from voxstill.storage.store import Store
from voxstill.teachers import registry
from voxstill.teachers.teacher import Clip
from waiting import until

Answer = tuple[int, dict[str, str], Any]
Mood = Callable[[int, int], Answer | None]
"""Which clip, and how often it was asked before; None answers as it should."""


@dataclass
class Asked:
    """One request as it arrived."""

    number: int
    path: str
    headers: email.message.Message
    fields: dict[str, Any]
    at_s: float


@dataclass
class Server:
    """Says of each clip its number: the first sample."""

    url: str = ""
    mood: Mood = lambda *_: None
    body: Callable[[int], Any] = lambda number: {"text": f" clip {number} "}
    asked: list[Asked] = field(default_factory=list)
    times: Counter[int] = field(default_factory=Counter)
    most: int = 0
    now: int = 0
    metrics: str | None = None
    metrics_asked: list[email.message.Message] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def form(headers: email.message.Message, data: bytes) -> tuple[dict[str, Any], bytes]:
    """The fields and the file of a multipart request."""
    head = f"Content-Type: {headers['Content-Type']}\r\n\r\n".encode()
    fields: dict[str, Any] = {}
    audio = b""
    for part in email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + data).iter_parts():
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if part.get_filename():
            audio = content
        else:
            fields.setdefault(name, []).append(content.decode())
    return fields, audio


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            state.metrics_asked.append(self.headers)
            page = (state.metrics or "").encode()
            self.send_response(200 if self.path == "/metrics" and page else 404)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path.endswith("chat/completions"):
                fields = json.loads(data)
                audio = base64.b64decode(fields["messages"][0]["content"][1]["input_audio"].pop("data"))
            else:
                fields, audio = form(self.headers, data)
            samples_T, rate_hz = soundfile.read(io.BytesIO(audio), dtype="int16")
            assert rate_hz == 16_000
            number = int(samples_T[0])
            with state.lock:
                before, state.times[number] = state.times[number], state.times[number] + 1
                state.asked.append(Asked(number, self.path, self.headers, fields, time.monotonic()))
                state.now += 1
                state.most = max(state.most, state.now)
            status, headers, body = state.mood(number, before) or (200, {}, state.body(number))
            with state.lock:
                state.now -= 1
            sent = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_: Any) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        request_queue_size = 128

        def handle_error(self, *_: Any) -> None:  # a client that hung up
            pass

    served = Quiet(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{served.server_port}/v1"
    thread = threading.Thread(target=served.serve_forever, args=(0.05,))
    thread.start()
    yield state
    served.shutdown()
    thread.join()
    served.server_close()


def clip(number: int) -> Clip:
    samples_T = np.full(1600, number, np.int16)
    return Clip(utterance=Utterance(id=f"u{number}", recording_id="r", uri="", end_ms=100), samples_T=samples_T)


@pytest.fixture
def opened(server: Server) -> Iterator[Callable[..., Any]]:
    teachers = []

    def make(**options: Any) -> Any:
        teacher = registry.create(config.Teacher(name="openai", **({"base_url": server.url, "model": "m"} | options)))
        teacher.load()
        teachers.append(teacher)
        return teacher

    yield make
    for teacher in teachers:
        teacher.close()


def busy(number: int, before: int) -> Answer | None:
    """Every seventh clip is turned away once, every eleventh fails once, and every 50th is slow."""
    if number % 7 == 0 and before == 0:
        return 429, {"Retry-After": "0"}, {"error": {"message": "slow down"}}
    if number % 11 == 0 and before == 0:
        return 500, {}, "<html>oops</html>"
    if number % 50 == 0:
        time.sleep(0.2)
    return None


def test_a_thousand_clips_come_back_in_order_from_a_server_that_fails_now_and_then(
    server: Server, opened: Callable[..., Any]
) -> None:
    server.mood = busy
    results = opened(concurrency=8).transcribe_batch([clip(i) for i in range(1000)])
    assert [result.text for result in results] == [f"clip {i}" for i in range(1000)]
    assert {result.error for result in results} == {None}
    assert 1 < server.most <= 8
    assert all(server.times[i] == 1 + (i % 7 == 0 or i % 11 == 0) for i in range(1000))


def test_fields_that_a_server_does_not_send_are_absent(opened: Callable[..., Any]) -> None:
    (result,) = opened().transcribe_batch([clip(3)])
    assert (result.mean_logprob, result.language, result.words, result.num_tokens, result.finish) == (
        None,
        None,
        (),
        0,
        "stop",
    )


def test_a_poisonous_clip_is_one_row_with_the_message_of_the_server(server: Server, opened: Callable[..., Any]) -> None:
    answers: dict[int, Answer] = {
        1: (400, {}, {"error": {"message": "Audio file is\ntoo short"}}),
        3: (500, {}, {"error": {"message": "CUDA error"}}),
        5: (200, {}, "<html>hello</html>"),
        6: (200, {}, {"txt": "hello"}),
        7: (415, {}, ["what is this"]),
    }
    server.mood = lambda number, _: answers.get(number)
    results = opened(retries=1).transcribe_batch([clip(i) for i in range(9)])
    assert [i for i, result in enumerate(results) if result.error] == [1, 3, 5, 6, 7]
    assert all(result.finish == "failed" for result in results if result.error)
    assert results[1].error == "the server answered 400: Audio file is too short"
    assert results[3].error == "the server answered 500: CUDA error"
    assert results[5].error == "not a response of this protocol: <html>hello</html>"
    assert (server.times[1], server.times[3]) == (1, 2)


@pytest.mark.parametrize(
    "body",
    [
        *(
            "",
            "<html>log in</html>",
            '{"text": "cut sho',
            {"error": {"code": 503}},
            {"object": "error", "message": "dead"},
        ),
        *({"detail": "slow down"}, {"id": "job", "status": "queued"}),
    ],
)
def test_a_fault_of_the_server_with_status_200_is_no_answer(
    body: object, server: Server, opened: Callable[..., Any]
) -> None:
    server.mood = lambda number, _: (200, {}, body) if number == 1 else None
    results = opened().transcribe_batch([clip(i) for i in range(3)])
    assert [result.is_transient for result in results] == [False, True, False]


@pytest.mark.parametrize("fault", [{"finish_reason": "error"}, {"error": {"code": 502}}])
def test_the_half_answer_of_a_chat_that_a_gateway_broke_off_is_none(
    fault: dict[str, object], server: Server, opened: Callable[..., Any]
) -> None:
    server.mood = lambda *_: (200, {}, {"choices": [{"message": {"content": "half of"}, **fault}]})
    [result] = opened(mode="chat", prompt="Write it down.").transcribe_batch([clip(1)])
    assert (result.text, result.is_transient) == ("", True)


def test_a_slow_answer_is_asked_for_again_and_a_clip_that_is_never_answered_is_a_row(
    server: Server, opened: Callable[..., Any]
) -> None:
    def slow(number: int, before: int) -> None:
        time.sleep(4.0 if number == 2 or (number == 1 and before == 0) else 0)

    server.mood = slow
    results = opened(timeout_s=2.0, retries=1).transcribe_batch([clip(i) for i in range(4)])
    assert [result.text for result in results] == ["clip 0", "clip 1", "", "clip 3"]
    assert "timed out" in (results[2].error or "")


def test_the_pause_that_a_server_asks_for_is_kept(server: Server, opened: Callable[..., Any]) -> None:
    server.mood = lambda _, before: (503, {"Retry-After": "1"}, {}) if before == 0 else None
    (result,) = opened().transcribe_batch([clip(1)])
    assert result.error is None
    first, second = (request.at_s for request in server.asked)
    assert second - first >= 1.0


def test_everything_that_is_asked_for_is_in_the_request(server: Server, opened: Callable[..., Any]) -> None:
    opened(
        prompt="Names: Åsa",
        language="sv",
        response_format="verbose_json",
        timestamp_granularities=["word"],
        logprobs=True,
        seed=7,
        max_tokens=50,
        top_p=0.9,
    ).transcribe_batch([clip(1)])
    (request,) = server.asked
    assert request.path == "/v1/audio/transcriptions"
    assert "Authorization" not in request.headers
    assert request.fields == {
        "model": ["m"],
        "prompt": ["Names: Åsa"],
        "language": ["sv"],
        "response_format": ["verbose_json"],
        "timestamp_granularities[]": ["word"],
        "include[]": ["logprobs"],
        "temperature": ["0.0"],
        "top_p": ["0.9"],
        "seed": ["7"],
        "max_completion_tokens": ["50"],
    }


def test_the_language_of_the_manifest_is_asked_for_clip_by_clip(server: Server, opened: Callable[..., Any]) -> None:
    names = ("pt-BR", "german", None, "und")
    clips = [
        Clip(utterance=replace(clip(i).utterance, info=UtteranceInfo(language=name)), samples_T=clip(i).samples_T)
        for i, name in enumerate(names)
    ]
    opened().transcribe_batch(clips)
    asked = {request.number: request.fields.get("language") for request in server.asked}
    assert asked == {0: ["pt"], 1: ["de"], 2: None, 3: None}
    server.asked.clear()
    opened(language="sv").transcribe_batch(clips)
    assert [request.fields["language"] for request in server.asked] == [["sv"]] * len(clips)


def test_confidence_words_and_language_are_read(server: Server, opened: Callable[..., Any]) -> None:
    server.body = lambda _: {
        "text": "one two three",
        "language": "english",
        "segments": [{"avg_logprob": -0.1, "tokens": [1, 2, 3]}, {"avg_logprob": -0.5, "tokens": [4]}],
        "words": [{"word": " one", "start": 0.01, "end": 0.2}, {"word": "two", "start": 0.2, "end": 0.3125}],
    }
    (result,) = opened(response_format="verbose_json").transcribe_batch([clip(1)])
    assert (result.language, result.num_tokens) == ("en", 4)
    assert result.mean_logprob == pytest.approx(-0.2)
    assert [(word.text, word.start_ms, word.end_ms) for word in result.words] == [("one", 10, 200), ("two", 200, 312)]
    server.body = lambda _: {"text": "a b", "logprobs": [{"token": "a", "logprob": -1.0}, {"token": "b", "logprob": 0}]}
    (result,) = opened(logprobs=True).transcribe_batch([clip(1)])
    assert (result.mean_logprob, result.num_tokens) == (-0.5, 2)


def test_a_chat_model_is_asked_with_the_audio(server: Server, opened: Callable[..., Any]) -> None:
    def choice(number: int) -> Any:
        tokens = {"content": [{"logprob": -0.2}, {"logprob": -0.4}]}
        return {"choices": [{"message": {"content": f" {number}\n"}, "finish_reason": "length", "logprobs": tokens}]}

    server.body = choice
    server.mood = lambda number, _: (
        (200, {}, {"choices": [{"finish_reason": "content_filter", "message": {"content": None}}]})
        if number == 9
        else None
    )
    results = opened(mode="chat", prompt="Write it down.", logprobs=True, max_tokens=9).transcribe_batch(
        [clip(4), clip(9)]
    )
    assert (results[0].text, results[0].num_tokens, results[0].finish) == ("4", 2, "length")
    assert results[0].mean_logprob == pytest.approx(-0.3)
    assert "blocked" in (results[1].error or "")
    request = server.asked[0]
    assert request.path == "/v1/chat/completions"
    assert request.fields == {
        "model": "m",
        "temperature": 0.0,
        "max_tokens": 9,
        "logprobs": True,
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Write it down."},
                    {"type": "input_audio", "input_audio": {"format": "wav"}},
                ],
            }
        ],
    }


def test_the_key_comes_from_a_variable_and_is_never_repeated(
    server: Server, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TeacherError, match="cannot be used") as caught:
        opened(api_key_env="MY_KEY")
    monkeypatch.setenv("MY_KEY", "sk-verysecret\n")
    server.mood = lambda number, _: (400 if number else 401, {}, {"error": {"message": "no such key: sk-verysecret"}})
    teacher = opened(api_key_env="MY_KEY")
    (result,) = teacher.transcribe_batch([clip(1)])
    assert server.asked[0].headers["Authorization"] == "Bearer sk-verysecret"
    assert result.error == "the server answered 400: no such key: ***"
    with pytest.raises(TeacherError) as caught:
        teacher.transcribe_batch([clip(0)])
    assert "sk-very" not in str(caught.value)
    assert "401" in caught.value.why
    for wrong in ({"api_key_env": "sk-verysecret"}, {"base_url": "http://me:sk-verysecret@there/v1"}):
        with pytest.raises(ConfigError) as refused:
            opened(**wrong)
        assert "sk-very" not in str(refused.value)


def test_a_chat_without_a_prompt_and_an_address_that_is_none_are_refused(opened: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"teacher\.prompt"):
        opened(mode="chat")
    with pytest.raises(ConfigError, match=r"teacher\.base_url"):
        opened(base_url="localhost:8000/v1")


def test_an_absent_server_is_an_error_within_seconds(opened: Callable[..., Any]) -> None:
    teacher = opened(base_url="http://127.0.0.1:9/v1", retries=2)
    start = time.monotonic()
    with pytest.raises(TeacherError, match="does not respond") as caught:
        teacher.transcribe_batch([clip(i) for i in range(200)])
    assert "refused" in caught.value.why
    assert caught.value.fix
    assert time.monotonic() - start < 30


def test_a_server_that_fails_on_everything_is_no_fault_of_the_clips(server: Server, opened: Callable[..., Any]) -> None:
    server.mood = lambda *_: (503, {}, {"error": "overloaded"})
    with pytest.raises(TeacherError) as caught:
        opened(retries=0).transcribe_batch([clip(i) for i in range(100)])
    assert "503: overloaded" in caught.value.why
    assert len(server.asked) < 40


@pytest.mark.parametrize("name", ["inline", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_server_that_goes_away_ends_the_run_and_the_same_command_goes_on(
    server: Server, tmp_path: Path, name: str
) -> None:
    (tmp_path / "a.wav").write_bytes(codec.encode(np.ones(16_000 * 12, np.int16), "wav"))
    rows = [
        Utterance(
            id=f"u{i:02}", recording_id="r", uri=str(tmp_path / "a.wav"), start_ms=1000 * i, end_ms=1000 * (i + 1)
        )
        for i in range(12)
    ]
    work = Store(str(tmp_path / "work"))
    work.create("utterances/t/0.parquet", tables.to_parquet(rows, Utterance))
    task = label.task(config.Teacher(name="openai", base_url=server.url, model="m", retries=1))  # type: ignore[call-arg]
    cfg = config.Engine(name=name, chunk=4, workers=1, teachers=1)  # type: ignore[arg-type]

    def run() -> dict[str, Any]:
        with StepMeter("label", None, "utterances") as meter:
            return label.label(work, "utterances/t", task, cfg, read_utterances.reading(config.Config()), meter)

    server.mood = lambda *_: (404, {}, {"error": {"message": "no model `m`"}}) if len(server.asked) > 4 else None
    try:
        with pytest.raises(TeacherError, match="does not respond"):
            run()
        labels = list(tables.read(work, task.prefix, Label))
        assert all(row.error is None for row in labels)
        server.mood = lambda *_: None
        figures = run()
    finally:
        engine.shutdown()
    assert (figures.labels, figures.failed, figures.finished) == (12, 0, True)


PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} TOKENS
"""


def test_a_server_of_vllm_shows_what_it_does(
    server: Server, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("voxstill.teachers.openai.STATS_INTERVAL_S", 0.0)
    monkeypatch.setenv("OF_A_TEST", "the-key")
    server.metrics = PAGE.replace("TOKENS", "100.0")
    teacher = opened(api_key_env="OF_A_TEST")
    assert teacher.figures() is None
    teacher.transcribe_batch([clip(1)])
    until(lambda: teacher.figures() is not None)
    first = teacher.figures()
    assert (first.kv_cache_ratio, first.requests_running, first.requests_waiting) == (0.5, 7, 2)
    assert first.tokens_per_second is None
    server.metrics = PAGE.replace("TOKENS", "150.0")
    teacher.transcribe_batch([clip(2)])
    until(lambda: teacher.figures().tokens_per_second)
    assert first.engine == server.url.removesuffix("/v1")
    assert all("Authorization" not in headers for headers in server.metrics_asked)


@pytest.mark.parametrize("page", [None, "# TYPE up gauge\nup 1.0\n", "<html>"])
def test_a_server_without_such_figures_is_asked_once(
    server: Server, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, page: str | None
) -> None:
    monkeypatch.setattr("voxstill.teachers.openai.STATS_INTERVAL_S", 0.0)
    server.metrics = page
    teacher = opened()
    teacher.transcribe_batch([clip(1)])
    until(lambda: teacher._next_stats_s == math.inf)
    teacher.transcribe_batch([clip(2)])
    assert len(server.metrics_asked) == 1
    assert teacher.figures() is None
