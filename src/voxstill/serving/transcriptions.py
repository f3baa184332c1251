"""`POST /v1/audio/transcriptions`: decode, cut, transcribe in batches with other requests, answer or stream."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from voxstill.audio import vad
from voxstill.core.config import Config
from voxstill.core.monitor import log
from voxstill.core.records import Hypothesis
from voxstill.serving import answers
from voxstill.serving.answers import TranscribedUtterance
from voxstill.serving.diarization import SpeakerSpans, UploadDiarizer
from voxstill.serving.errors import RequestError
from voxstill.serving.forms import TranscriptionForm, read_form
from voxstill.serving.models import Models
from voxstill.serving.receiving import limited, too_large
from voxstill.serving.uploads import REQUEST_MS, DecodedUpload, UploadDecoder
from voxstill.serving.versions import Hints, Version

_MOST_FIELDS, _MOST_FIELD_BYTES = 4096, 1 << 16
_QUICK_S = 0.5
"""An answer that takes longer is given up where its client leaves."""


class Transcriptions:
    """The endpoint, with what it needs of the server."""

    def __init__(self, cfg: Config, models: Models, decoder: UploadDecoder, diarizer: UploadDiarizer | None) -> None:
        self._cfg, self._models, self._decoder, self._diarizer = cfg, models, decoder, diarizer

    async def __call__(self, request: Request) -> Response:
        """Answer one request; RequestError where it is refused."""
        self._refuse_overload(self._models.least_queued, 0.0)  # before the audio is read, which costs most of the time
        async with AsyncExitStack() as stack:
            form_data = await self._form(request)
            stack.push_async_callback(form_data.close)
            form = read_form(form_data, self._cfg.segment, diarizes=self._diarizer is not None)
            return await _while_connected(request, self._answer(request, form))

    async def _answer(self, request: Request, form: TranscriptionForm) -> Response:
        """Decode the file of a form, and transcribe it."""
        async with AsyncExitStack() as stack:
            version = stack.enter_context(self._models.request(form.model))
            request.state.model, request.state.version = version.model, version.name
            hints = hints_for(version, form.language, form.keywords)
            self._refuse_overload(version, 0.0)
            segment = form.segment.at_most(version.max_duration_ms)
            upload = await stack.enter_async_context(self._decoder.decode(form.file, segment))
            diarizer = self._diarizer if form.response_format == "diarized_json" else None
            diarizing_s = 0.0 if diarizer is None else diarizer.waiting_s
            self._refuse_overload(version, min(upload.duration_ms, REQUEST_MS) / 1000, diarizing_s)
            speakers = SpeakerSpans([(span_ms, None) for span_ms in upload.spans_ms])
            if diarizer is not None:
                speakers = await diarizer.diarize(upload)
            headers = {"x-voxstill-version": version.name}
            if warning := "; ".join(filter(None, (upload.warning, speakers.warning))):
                headers["x-voxstill-warning"] = warning.encode("ascii", "backslashreplace").decode()
            utterances = self._utterances(version, upload, speakers, hints)
            if form.stream:
                stack.push_async_callback(utterances.aclose)
                events = _events(form, utterances, upload.duration_ms)
                return _EventStream(events, headers, stack.pop_all())
            done = [utterance async for utterance in utterances]
            if form.response_format in ("json", "verbose_json", "diarized_json"):
                return JSONResponse(answers.as_json(form, done, upload.duration_ms), headers=headers)
            media_type = "text/vtt" if form.response_format == "vtt" else "text/plain"
            return PlainTextResponse(
                answers.plain(form, done, upload.duration_ms), headers=headers, media_type=media_type
            )

    async def _form(self, request: Request) -> FormData:
        most_mb = self._cfg.serve.max_upload_mb
        length = request.headers.get("content-length", "")
        if length.isascii() and length.isdigit() and int(length) > most_mb * 10**6:
            raise too_large(most_mb)
        if not request.headers.get("content-type", "").startswith("multipart/form-data"):
            raise RequestError(400, "the request must be a form: multipart/form-data")
        body = Request(request.scope, limited(request.receive, most_mb))
        try:
            return await body.form(max_files=2, max_fields=_MOST_FIELDS, max_part_size=_MOST_FIELD_BYTES)
        except HTTPException as error:
            raise RequestError(400, f"the form cannot be read: {error.detail}") from None
        except ClientDisconnect:
            raise RequestError(400, "the client has disconnected") from None

    def _refuse_overload(self, version: Version, more_s: float, diarizing_s: float = 0.0) -> None:
        """RequestError where too much audio waits for a decoder, the diarization engine and this version.

        One that is idle takes any.
        """
        queued_s = version.queued_s + self._decoder.waiting_s + diarizing_s
        if queued_s and queued_s + more_s > self._cfg.serve.max_queue_s:
            message = f"{queued_s:.0f} s of audio wait, and at most {self._cfg.serve.max_queue_s:g} s may"
            raise RequestError(429, message, code="rate_limit_exceeded", retry_s=version.wait_s)

    async def _utterances(
        self, version: Version, upload: DecodedUpload, speakers: SpeakerSpans, hints: Hints
    ) -> AsyncGenerator[TranscribedUtterance, None]:
        """The utterances of a recording in order, some of them transcribed ahead; RequestError where one fails."""
        ahead: deque[tuple[vad.Span, str | None, asyncio.Task[Hypothesis]]] = deque()
        waiting = deque(speakers.spans)
        ahead_ms = 0
        try:
            while waiting or ahead:
                while waiting and (not ahead or ahead_ms + _length_ms(waiting[0][0]) <= REQUEST_MS):
                    span_ms, speaker = waiting.popleft()
                    ahead_ms += _length_ms(span_ms)
                    transcription = self._models.transcribe(version, upload.utterance(span_ms), hints)
                    ahead.append((span_ms, speaker, asyncio.create_task(transcription)))
                span_ms, speaker, task = ahead.popleft()
                hypothesis = await task
                ahead_ms -= _length_ms(span_ms)
                if hypothesis.failure is not None:
                    raise RequestError(422, f"an utterance cannot be transcribed: {hypothesis.failure}", param="file")
                yield TranscribedUtterance(span_ms=span_ms, hypothesis=hypothesis, speaker=speaker)
        finally:
            for *_, task in ahead:
                task.cancel()


def _length_ms(span_ms: vad.Span) -> int:
    return span_ms[1] - span_ms[0]


def hints_for(version: Version, language: str | None, keywords: tuple[str, ...]) -> Hints:
    """What a version is told of the audio; RequestError where it cannot take it."""
    if keywords and not version.takes_phrases:
        message = f"`keywords[]` is not supported: `{version.model}` cannot boost phrases"
        raise RequestError(400, message, param="keywords")
    if not version.languages:
        return Hints(phrases=keywords)
    if language is not None and language not in version.languages:
        raise RequestError(400, f"`{version.model}` does not support the language `{language[:20]}`", param="language")
    return Hints(language=language, phrases=keywords)


async def _while_connected(request: Request, answer: Coroutine[Any, Any, Response]) -> Response:
    """The answer; where the client leaves before, it is given up: nobody would read it. Most are quicker than that."""
    answering = asyncio.create_task(answer)
    tasks: list[asyncio.Task[Any]] = [answering]
    try:
        await asyncio.wait(tasks, timeout=_QUICK_S)
        if not answering.done():
            tasks.append(asyncio.create_task(_until_left(request)))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise RequestError(400, "the client has disconnected")
        return answering.result()
    finally:
        if unfinished := [task for task in tasks if not task.done()]:
            for task in unfinished:
                task.cancel()
            await asyncio.wait(unfinished)


async def _until_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _EventStream(StreamingResponse):
    """Server-sent events; what they need is closed when the last one is sent, or the client has disconnected."""

    def __init__(self, events: AsyncIterator[str], headers: Mapping[str, str], resources: AsyncExitStack) -> None:
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._resources = resources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._resources:
            await super().__call__(scope, receive, send)


async def _events(
    form: TranscriptionForm, utterances: AsyncIterator[TranscribedUtterance], duration_ms: int
) -> AsyncIterator[str]:
    """Server-sent events: a delta for each utterance, its segment where speakers are asked for, and the whole text."""
    done: list[TranscribedUtterance] = []
    numbers = itertools.count()
    try:
        async for utterance in utterances:
            text = utterance.hypothesis.text
            if text:
                delta = f" {text}" if answers.full_text(done) else text
                for event in _utterance_events(form, utterance, delta, next(numbers)):
                    yield _event(event)
            done.append(utterance)
    except Exception as error:
        if not isinstance(error, RequestError):
            log.exception("serve: a stream has failed")
            error = RequestError(500, "the server has failed")
        yield _event({"error": error.to_dict()})
        return
    num_tokens = sum(len(utterance.hypothesis.token_ids) for utterance in done)
    usage = {
        "type": "tokens",
        "input_tokens": duration_ms // 100,
        "output_tokens": num_tokens,
        "total_tokens": duration_ms // 100 + num_tokens,
    }
    extra = {"logprobs": answers.logprobs(done)} if form.logprobs else {}
    yield _event({"type": "transcript.text.done", "text": answers.full_text(done), "usage": usage, **extra})
    yield "data: [DONE]\n\n"


def _utterance_events(
    form: TranscriptionForm, utterance: TranscribedUtterance, delta: str, number: int
) -> Iterator[Mapping[str, object]]:
    event = {"type": "transcript.text.delta", "delta": delta}
    if form.response_format == "diarized_json":
        segment = answers.diarized_segment(number, utterance)
        yield event | {"segment_id": segment["id"]}
        yield segment
    else:
        yield event | ({"logprobs": answers.logprobs([utterance])} if form.logprobs else {})


def _event(content: Mapping[str, object]) -> str:
    return f"data: {json.dumps(content)}\n\n"
