"""The teacher `openai`: any server with OpenAI's API for audio, such as OpenAI's own, vLLM's or a gateway.

The protocol is that of https://platform.openai.com/docs/api-reference: `audio/transcriptions`, or `chat/completions`
with the clip as `input_audio`.
"""

from __future__ import annotations

import base64
import json
import logging
import math
import time
import urllib.request
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict
from urllib.parse import urlsplit

from voxstill.audio import codec
from voxstill.core import world
from voxstill.core.config import Section, option
from voxstill.core.errors import ConfigError, TeacherError
from voxstill.core.metrics.figures import ModelFigures
from voxstill.core.records import Word
from voxstill.teachers.teacher import MANIFEST, Clip, Transcription, language_of
from voxstill.teachers.vllm_figures import ServerStats

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

CONNECT_S = 10.0
BACKOFF_S, LONGEST_BACKOFF_S = 0.5, 30.0
RETRIED_STATUSES = (408, 409, 425, 429, *range(500, 600))
"""HTTP statuses that are retried: what they say may pass."""
REFUSED_STATUSES = (401, 402, 403, 404, 405)
"""HTTP statuses that no clip can cause: the key, the bill, the address or the model is wrong."""
STATS_INTERVAL_S, STATS_TIMEOUT_S = 5.0, 2.0
"""How often the metrics of the server are read, and how long that may take."""
MAX_UNANSWERED = 8
"""After so many unanswered clips in a row the server is taken for down."""


_File = tuple[str, bytes, str]
"""Name, content and type of a file in a form."""


class _Body(TypedDict, total=False):
    """The body of a request, as `urllib3` takes it: JSON, or the fields of a form."""

    json: Mapping[str, object]
    fields: Sequence[tuple[str, str | _File]]


class OpenAIOptions(Section):
    """Options of the server, of its requests, and of retries."""

    base_url: str = option()
    """Address up to the version: `https://api.openai.com/v1`, `http://127.0.0.1:8000/v1`."""
    model: str = option()
    """Name of the model, as the server calls it."""
    api_key_env: str | None = option(None)
    """Name of the environment variable that holds the key, on every machine that labels; unset sends none."""
    mode: Literal["transcriptions", "chat"] = option("transcriptions")
    """`transcriptions` is for recognisers; `chat` is for chat models with audio input, with `prompt`."""
    prompt: str | None = option(None)
    """What a chat model is asked to do, or words that a recogniser is to expect."""
    language: str | None = option(MANIFEST, first_default=None)
    """Language of the audio (`en`), for `transcriptions`; `manifest` takes that of each utterance, where Whisper knows
    it, and null lets the server detect it."""
    response_format: Literal["json", "verbose_json"] = option("json")
    """Of `transcriptions`: `verbose_json` has the language, and the confidence of Whisper models."""
    timestamp_granularities: list[Literal["word", "segment"]] = option([])
    """Of `verbose_json`: `word` asks for word times."""
    logprobs: bool = option(False)
    """Ask for the log-probability of each token; not every server and model has them."""
    temperature: float = option(0.0, ge=0, le=2)
    """0 takes the most likely token each time."""
    top_p: float | None = option(None, unit="probability", gt=0, le=1)
    """Nucleus sampling: tokens are sampled from the likeliest with this total probability."""
    max_tokens: int | None = option(None, unit="tokens", ge=1)
    """Longest answer; an answer cut there finishes as `length`, where the server says so."""
    seed: int | None = option(None, ge=0)
    """Asks for the same answer each time."""
    concurrency: int = option(16, unit="requests", ge=1, le=1024, pace=True)
    """Requests under way at once, from each teacher."""
    timeout_s: float = option(60.0, unit="s", gt=0, le=86_400, pace=True)
    """A server that has not given its whole answer after so long is asked again."""
    retries: int = option(4, unit="tries", ge=0, le=1000, pace=True)
    """Further tries after a time-out, a 429 or a 5xx, with growing pauses, or as long as the server's Retry-After."""


class OpenAITeacher:
    """Sends one request per clip, many at a time."""

    Options: ClassVar[type[Section]] = OpenAIOptions
    reads_texts: ClassVar[bool] = False
    calls_at_once: ClassVar[int] = 2

    def __init__(self, options: OpenAIOptions) -> None:
        self.options = options
        self._url = f"{options.base_url.rstrip('/')}/" + (
            "chat/completions" if options.mode == "chat" else "audio/transcriptions"
        )
        self._key = ""
        parts = urlsplit(options.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.password or parts.query:
            raise ConfigError(
                "`teacher.base_url` is not the address of a server",
                code="option-value",
                why="it must begin with http:// or https:// and contain no key and no query",
                fix="give an address like http://127.0.0.1:8000/v1; put the key into an environment variable "
                "(teacher.api_key_env)",
            )
        if options.api_key_env is not None and not options.api_key_env.isidentifier():
            raise ConfigError(  # which does not repeat it: it may be the key
                "`teacher.api_key_env` is not the name of an environment variable",
                code="option-value",
                why="the key itself must not be in a configuration",
                fix="put the key into an environment variable, and the name of the variable here",
            )
        if options.mode == "chat" and not options.prompt:
            raise ConfigError(
                "`teacher.prompt` is not set",
                code="option-missing",
                why="a chat model needs an instruction for the audio",
                fix="set it to a prompt such as: Transcribe the speech. Answer with the words only.",
            )

    def revision(self) -> str:
        """The name of the model, as a server reports no more. Its address and the options are in the recipe."""
        return self.options.model

    def load(self) -> None:
        """Set up the connection pool; sends nothing. TeacherError where there is no key."""
        import urllib3

        from voxstill.teachers import limited_http

        headers = {"Accept-Encoding": "identity"}  # a compressed answer may be of any size
        if self.options.api_key_env is not None:
            self._key = world.environment().get(self.options.api_key_env, "").strip()
            if not self._key:
                raise TeacherError(
                    f"the server of `{self.options.model}` cannot be used",
                    code="teacher-server",
                    why="the environment variable of `teacher.api_key_env` is not set on this machine",
                    fix="export it with the key, where the command runs and on every machine of the cluster",
                )
            headers["Authorization"] = f"Bearer {self._key}"
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # it logs each retry
        retry = urllib3.Retry(
            self.options.retries,
            status_forcelist=RETRIED_STATUSES,
            allowed_methods=None,
            backoff_factor=BACKOFF_S,
            backoff_jitter=BACKOFF_S,
            backoff_max=LONGEST_BACKOFF_S,
            retry_after_max=int(self.options.timeout_s),
            raise_on_status=False,
        )
        settings: dict[str, Any] = {
            "headers": headers,
            "maxsize": self.options.concurrency,
            "retries": retry,
            "timeout": urllib3.Timeout(connect=min(CONNECT_S, self.options.timeout_s), read=self.options.timeout_s),
        }
        proxy = _proxy(self._url)
        manager = urllib3.ProxyManager(proxy, **settings) if proxy else urllib3.PoolManager(**settings)
        self._http = limited_http.limited(manager)
        self._threads = ThreadPoolExecutor(self.options.concurrency, thread_name_prefix="ask")
        self._unanswered: deque[bool] = deque(maxlen=MAX_UNANSWERED)
        parts = urlsplit(self.options.base_url)
        self._server = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._stats = ServerStats(self._server)
        self._stats_thread = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        self._figures: ModelFigures | None = None
        self._next_stats_s = 0.0

    def transcribe_batch(self, clips: Sequence[Clip]) -> list[Transcription]:
        """Transcribe clips in parallel; one result per clip, in order. TeacherError where the server is down."""
        now_s = time.monotonic()
        if now_s >= self._next_stats_s:  # while the server works on them
            self._next_stats_s = now_s + STATS_INTERVAL_S
            self._stats_thread.submit(self._read_stats)
        return list(self._threads.map(self._transcribe, clips))

    def figures(self) -> ModelFigures | None:
        """What the server showed of itself, where it is one of vLLM; None of others."""
        return self._figures

    def _read_stats(self) -> None:
        """Read the metrics of the server, without the key; one that has none of vLLM's is not asked again."""
        from urllib3 import exceptions

        from voxstill.teachers.limited_http import AnswerTooLargeError

        try:
            response = self._http.request(
                "GET", f"{self._server}/metrics", headers={}, redirect=False, retries=False, timeout=STATS_TIMEOUT_S
            )
            self._figures = self._stats.read(_text(response)) if response.status == 200 else None
        except exceptions.HTTPError:  # it has too much to do: the next time
            return
        except (AnswerTooLargeError, ValueError):
            self._figures = None
        if self._figures is None:
            self._next_stats_s = math.inf

    def close(self) -> None:
        """Close the connections."""
        self._stats_thread.shutdown(wait=False, cancel_futures=True)
        self._threads.shutdown(cancel_futures=True)
        self._http.clear()

    def _transcribe(self, clip: Clip) -> Transcription:
        from urllib3 import exceptions

        from voxstill.teachers.limited_http import MAX_BYTES, AnswerTooLargeError

        if not len(clip.samples_T):
            return Transcription(finish="failed", error="no audio")
        body = self._request(clip)
        try:
            response = self._http.request("POST", self._url, redirect=False, decode_content=False, **body)
        except AnswerTooLargeError:
            self._unanswered.append(False)
            return Transcription(finish="failed", error=f"the answer of the server is larger than {MAX_BYTES:,} bytes")
        except (exceptions.HTTPError, ValueError) as error:  # ValueError of a number in a header
            reason = getattr(error, "reason", error)
            message = self._redact(f"{type(reason).__name__}: {reason}")
            if isinstance(reason, exceptions.NewConnectionError | exceptions.ConnectTimeoutError | exceptions.SSLError):
                raise self._unavailable(message) from None
            return self._unanswered_clip(message)
        if response.status in RETRIED_STATUSES:
            return self._unanswered_clip(self._error_message(response))
        if 300 <= response.status < 400 or response.status in REFUSED_STATUSES:
            raise self._unavailable(self._error_message(response))
        if response.status >= 300:
            self._unanswered.append(False)
            return Transcription(finish="failed", error=self._error_message(response))
        text = response.data.strip()
        if not text or text.startswith(b"<") or (text.startswith(b"{") and not text.endswith(b"}")):
            # nothing, the page of a proxy, or an incomplete response
            return self._unanswered_clip(f"not a response of this protocol: {self._redact(_text(response))}")
        try:
            body = response.json()
            if _is_of_server(body, "choices" if self.options.mode == "chat" else "text"):
                return self._unanswered_clip(self._error_message(response))
            answer = _parse_chat(body) if self.options.mode == "chat" else _parse_transcription(body)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
            reason = f"not a response of this protocol: {self._redact(_text(response))}"
            answer = Transcription(finish="failed", error=reason)
        self._unanswered.append(False)
        return answer

    def _request(self, clip: Clip) -> _Body:
        o = self.options
        wav = codec.encode(clip.samples_T, "wav")
        common = {"model": o.model, "temperature": o.temperature, "top_p": o.top_p, "seed": o.seed}
        if o.mode == "chat":
            audio = {"data": base64.b64encode(wav).decode(), "format": "wav"}
            content = [{"type": "text", "text": o.prompt}, {"type": "input_audio", "input_audio": audio}]
            parameters = common | {
                "messages": [{"role": "user", "content": content}],
                "max_tokens": o.max_tokens,
                "logprobs": o.logprobs or None,
            }
            return {"json": {name: value for name, value in parameters.items() if value is not None}}
        form = common | {
            "response_format": o.response_format,
            "language": language_of(clip, o.language, _languages(), o.model),
            "prompt": o.prompt,
            "max_completion_tokens": o.max_tokens,
        }
        fields: list[tuple[str, str | _File]] = [
            (name, str(value)) for name, value in form.items() if value is not None
        ]
        fields += [("timestamp_granularities[]", granularity) for granularity in o.timestamp_granularities]
        fields += [("include[]", "logprobs")] * o.logprobs
        return {"fields": [*fields, ("file", ("clip.wav", wav, "audio/wav"))]}

    def _unanswered_clip(self, reason: str) -> Transcription:
        """The result of a clip without a response; TeacherError after `MAX_UNANSWERED` of them in a row."""
        self._unanswered.append(True)
        if sum(self._unanswered) == MAX_UNANSWERED:
            raise self._unavailable(
                f"the last {MAX_UNANSWERED} requests got no response, {self.options.retries} retries each: {reason}"
            )
        return Transcription(finish="failed", error=reason, is_transient=True)

    def _unavailable(self, reason: str) -> TeacherError:
        return TeacherError(
            f"the server at {self.options.base_url} does not respond for `{self.options.model}`",
            code="teacher-server",
            why=reason,
            fix="check teacher.base_url, teacher.model and the key; the same command resumes where this one stopped",
        )

    def _error_message(self, response: BaseHTTPResponse) -> str:
        """Error message of a response, in one line."""
        text = _text(response)
        try:
            body = json.loads(text)
            error = body.get("error", body)
            text = error.get("message", text) if isinstance(error, dict) else str(error)
        except (ValueError, AttributeError, RecursionError):
            pass
        return self._redact(f"the server answered {response.status}: {text}")

    def _redact(self, text: str) -> str:
        """Shorten to one line without the key, which a server may repeat."""
        return " ".join((text.replace(self._key, "***") if self._key else text).split())[:300]


def _text(response: BaseHTTPResponse) -> str:
    return response.data.decode(errors="replace")


def _proxy(url: str) -> str | None:
    """Proxy of the environment for the address, None for none."""
    parts = urlsplit(url)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return urllib.request.getproxies().get(parts.scheme)


def _is_of_server(body: Mapping[str, Any], key: str) -> bool:
    """Whether an answer is an error of a server or gateway: one of the clip has another status."""
    if key not in body or body.get("error") or body.get("object") == "error":
        return True
    choices = body["choices"] if key == "choices" else ()
    return any(choice.get("error") or choice.get("finish_reason") == "error" for choice in choices)


def _parse_transcription(body: Mapping[str, Any]) -> Transcription:
    """Parse a response of `audio/transcriptions`, `json` or `verbose_json`."""
    text = body["text"].strip()
    token_logprobs = [float(token["logprob"]) for token in body.get("logprobs") or ()]
    segments = [
        (float(segment["avg_logprob"]), len(segment.get("tokens") or ()) or 1)
        for segment in body.get("segments") or ()
        if segment.get("avg_logprob") is not None
    ]
    usage = body.get("usage") or {}
    num_tokens = len(token_logprobs) or sum(num for _, num in segments) or int(usage.get("output_tokens") or 0)
    mean_logprob = sum(token_logprobs) / len(token_logprobs) if token_logprobs else None
    if mean_logprob is None and segments:
        mean_logprob = sum(mean * num for mean, num in segments) / num_tokens
    words = tuple(
        Word(text=word["word"].strip(), start_ms=round(word["start"] * 1000), end_ms=round(word["end"] * 1000))
        for word in body.get("words") or ()
    )
    language = body.get("language")
    return Transcription(
        text=text,
        language=_language_code(language) if language else None,
        mean_logprob=mean_logprob,
        num_tokens=num_tokens,
        words=words,
    )


def _parse_chat(body: Mapping[str, Any]) -> Transcription:
    """Parse a response of `chat/completions`."""
    choice = body["choices"][0]
    if choice.get("finish_reason") == "content_filter":
        return Transcription(finish="failed", error="the content filter of the server blocked the answer")
    token_logprobs = [float(token["logprob"]) for token in (choice.get("logprobs") or {}).get("content") or ()]
    return Transcription(
        text=choice["message"]["content"].strip(),
        mean_logprob=sum(token_logprobs) / len(token_logprobs) if token_logprobs else None,
        num_tokens=len(token_logprobs) or int((body.get("usage") or {}).get("completion_tokens") or 0),
        finish="length" if choice.get("finish_reason") == "length" else "stop",
    )


def _languages() -> Collection[str]:
    """Codes that servers know: those of Whisper."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    return tuple(LANGUAGES)


def _language_code(language: str) -> str:
    """Language code of a language name: OpenAI's own server returns `english`, others `en`."""
    from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

    return str(TO_LANGUAGE_CODE.get(language.lower(), language))
