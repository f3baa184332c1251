"""`WS /v1/realtime?intent=transcription`: live audio in, words out, with the events of OpenAI's API."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from starlette.websockets import WebSocket, WebSocketDisconnect

from voxstill.core.config import Config
from voxstill.core.monitor import log
from voxstill.core.records import NO_AUDIO, Hypothesis, Word
from voxstill.serving import answers
from voxstill.serving.answers import TranscribedUtterance
from voxstill.serving.errors import RequestError
from voxstill.serving.models import Models
from voxstill.serving.session import SessionOptions
from voxstill.serving.transcriptions import hints_for
from voxstill.serving.versions import Hints, StreamedPart, Version
from voxstill.streaming.events import Event, Extent, SegmentDone, SegmentPart, SpeechStarted, SpeechStopped, WordsAdded
from voxstill.streaming.live import LiveTranscription
from voxstill.streaming.part_streams import PartStreams
from voxstill.streaming.pcm_stream import PcmStream

PROTOCOL = "realtime"
GOING_AWAY = 1012
"""The code with which sessions are closed when the server stops: service restart."""
_AT_ONCE_S = 1
"""Audio that is resampled and searched for speech at once, while no other client is served: some milliseconds."""
_MOST_PARTS_WAITING = 4
"""Parts of segments that may wait to be transcribed before no more audio is read."""


class RealtimeSession:
    """One WebSocket: it reads audio, and transcribes it at the same time."""

    def __init__(self, websocket: WebSocket, cfg: Config, models: Models, closing: asyncio.Event) -> None:
        self._websocket, self._cfg, self._models, self._closing = websocket, cfg, models, closing
        default_model = websocket.query_params.get("model") or (models.names[0] if len(models.names) == 1 else None)
        self._options = SessionOptions(segment=cfg.segment, model=default_model)
        self._pcm = PcmStream(self._options.rate_hz)
        self._live = LiveTranscription(cfg.segment, cfg.serve.partial_every_ms)
        self._changed = asyncio.Event()
        self._answered = asyncio.Event()
        self._items: dict[int, str] = {}
        self._has_text: set[int] = set()
        self._last_item: str | None = None
        self._versions: dict[int, tuple[Version, ExitStack]] = {}
        self._streams: tuple[Version, PartStreams] | None = None

    async def run(self) -> None:
        """Serve the client until it leaves or the server stops."""
        offered = self._websocket.scope.get("subprotocols", ())
        await self._websocket.accept(subprotocol=PROTOCOL if PROTOCOL in offered else None)
        tasks = [asyncio.create_task(work()) for work in (self._read, self._transcribe, self._wait_for_end)]
        try:
            await self._send("session.created", session=self._options.to_dict())
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for _, stack in self._versions.values():
                stack.close()
        for error in results:
            gone = isinstance(error, WebSocketDisconnect | asyncio.CancelledError | None)
            if isinstance(error, BaseException) and not gone and self._websocket.client_state.name == "CONNECTED":
                log.error("serve: a realtime session has failed", exc_info=error)

    async def _read(self) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            event_id = None
            try:
                event = _event(message.get("text"))
                event_id = event.get("event_id")
                await self._handle(event)
            except RequestError as error:
                details = error.to_dict() | {"event_id": event_id if isinstance(event_id, str) else None}
                await self._send("error", error=details)

    async def _handle(self, event: Mapping[str, object]) -> None:
        kind = event.get("type")
        if kind == "input_audio_buffer.append":
            await self._append(event.get("audio"))
        elif kind == "input_audio_buffer.commit":
            await self._commit()
        elif kind == "input_audio_buffer.clear":
            segment = self._live.segment_open
            self._pcm.flush()
            self._live.clear()
            if segment is not None and segment in self._versions:
                self._versions.pop(segment)[1].close()
            await self._send("input_audio_buffer.cleared")
        elif kind == "session.update":
            await self._update(event.get("session"))
        else:
            raise RequestError(400, f"unknown event `{str(kind)[:60]}` in a transcription session", param="type")

    async def _append(self, audio: object) -> None:
        try:
            data = base64.b64decode(audio if isinstance(audio, str) else "!", validate=True)
        except (binascii.Error, ValueError):
            raise RequestError(400, "`audio` must be base64", param="audio") from None
        num_bytes = 2 * self._options.rate_hz * _AT_ONCE_S
        for start in range(0, len(data), num_bytes):
            version = self._version_of(self._live.segment_open)
            self._live.partial_every_ms = version.stream_ms or self._cfg.serve.partial_every_ms
            self._live.segment = self._options.segment.at_most(version.max_duration_ms)
            await self._tell(self._live.feed(self._pcm.feed(data[start : start + num_bytes])))
            self._changed.set()
            await asyncio.sleep(0)  # others are served, too
            while self._live.num_waiting > _MOST_PARTS_WAITING:  # the client sends faster than it is transcribed
                self._answered.clear()
                await self._answered.wait()

    async def _commit(self) -> None:
        await self._tell(self._live.feed(self._pcm.flush()))
        segment = self._live.segment_open
        if segment is None:
            raise RequestError(400, "there is no speech to commit", code="input_audio_buffer_commit_empty")
        self._live.commit()
        await self._committed(segment)
        self._changed.set()

    async def _update(self, session: object) -> None:
        options = self._options.updated(session)
        if options.model is not None:
            with self._models.request(options.model) as version:
                hints_for(version, options.language, options.keywords)
        if options.rate_hz != self._options.rate_hz:
            self._pcm = PcmStream(options.rate_hz)
        self._options = options
        self._live.endpointing = options.endpointing
        await self._send("session.updated", session=options.to_dict())

    async def _transcribe(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            while (part := self._live.next_part()) is not None:
                await self._transcribe_part(part)
                self._answered.set()

    async def _transcribe_part(self, part: SegmentPart) -> None:
        """Transcribe a part, and tell the client; while the server is overloaded only whole parts."""
        streamed = None
        try:
            version = self._version_of(part.segment)
            if part.extent is Extent.SO_FAR and version.queued_s > self._cfg.serve.max_queue_s:
                self._live.skip(part)
                return
            hints = hints_for(version, self._options.language, self._options.keywords)
            streamed = self._streamed(part, version, hints)
            hypothesis = await self._models.transcribe(version, part.samples_T, hints, streamed)
        except RequestError as error:  # a model or hint that was there when the session was updated
            hypothesis = Hypothesis(id="", text="", error=error.message, finish="failed")
        except Exception as error:
            log.exception("serve: an utterance has failed")
            hypothesis = Hypothesis(id="", text="", error=f"the server has failed: {type(error).__name__}")
        await self._tell(self._live.answer(part, hypothesis, stays=streamed is not None))

    def _streamed(self, part: SegmentPart, version: Version, hints: Hints) -> StreamedPart | None:
        """The stream of a part; None where it is transcribed as an utterance, as with a beam, which keywords need."""
        if version.stream_ms is None or hints.phrases:
            return None
        if self._streams is None or self._streams[0] is not version:
            self._streams = version, PartStreams(version.open_stream)
        return StreamedPart(stream=self._streams[1].of(part), is_last=part.is_whole)

    def _version_of(self, segment: int | None) -> Version:
        """The version that transcribes a segment from its first part to its last; RequestError without a model."""
        if segment is not None and segment in self._versions:
            return self._versions[segment][0]
        if self._options.model is None:
            names = ", ".join(f"`{name}`" for name in self._models.names)
            raise RequestError(400, f"the session has no model; the models are {names}", param="model")
        with ExitStack() as stack:
            version = stack.enter_context(self._models.request(self._options.model))
            if segment is not None:
                self._versions[segment] = version, stack.pop_all()
            return version

    async def _tell(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, SpeechStarted):
                item = self._item(event.segment)
                await self._send("input_audio_buffer.speech_started", item_id=item, audio_start_ms=event.start_ms)
            elif isinstance(event, SpeechStopped):
                item = self._item(event.segment)
                await self._send("input_audio_buffer.speech_stopped", item_id=item, audio_end_ms=event.end_ms)
                await self._committed(event.segment)
            elif isinstance(event, WordsAdded):
                delta = " ".join(word.text for word in event.words)
                if delta and event.segment in self._has_text:
                    delta = f" {delta}"
                if delta:
                    self._has_text.add(event.segment)
                times = {"words": _with_times(event.words), "interim": _with_times(event.interim)}
                await self._send_of(event.segment, "delta", delta=delta, **times)
            else:
                await self._done(event)

    async def _done(self, done: SegmentDone) -> None:
        version, stack = self._versions.pop(done.segment, (None, ExitStack()))
        stack.close()
        self._has_text.discard(done.segment)
        if done.error is not None and done.error != NO_AUDIO:
            error = {"type": "server_error", "code": None, "message": done.error, "param": None}
            await self._send_of(done.segment, "failed", error=error)
        else:
            duration_ms = done.end_ms - done.start_ms
            logprobs = [
                entry
                for hypothesis in done.hypotheses
                for entry in answers.logprobs([TranscribedUtterance(span_ms=(0, duration_ms), hypothesis=hypothesis)])
            ]
            await self._send_of(
                done.segment,
                "completed",
                transcript=done.text,
                usage={"type": "duration", "seconds": duration_ms / 1000},
                words=_with_times(done.words),
                version=None if version is None else version.name,
                **({"logprobs": logprobs} if self._options.logprobs else {}),
            )
        self._items.pop(done.segment, None)

    async def _committed(self, segment: int) -> None:
        item, previous = self._item(segment), self._last_item
        self._last_item = item
        await self._send("input_audio_buffer.committed", item_id=item, previous_item_id=previous)
        content = [{"type": "input_audio", "transcript": None}]
        message = {"id": item, "type": "message", "role": "user", "status": "completed", "content": content}
        await self._send("conversation.item.added", item=message, previous_item_id=previous)

    async def _wait_for_end(self) -> None:
        """When the server stops, transcribe what was said so far, and close the session."""
        await self._closing.wait()
        self._live.commit()
        self._changed.set()
        while self._live.is_unfinished:
            self._answered.clear()
            await self._answered.wait()
        with contextlib.suppress(RuntimeError):
            await self._websocket.close(GOING_AWAY, "the server is stopping")

    def _item(self, segment: int) -> str:
        return self._items.setdefault(segment, f"item_{uuid.uuid4().hex[:20]}")

    async def _send_of(self, segment: int, kind: str, **fields: object) -> None:
        event = f"conversation.item.input_audio_transcription.{kind}"
        await self._send(event, item_id=self._item(segment), content_index=0, **fields)

    async def _send(self, kind: str, **fields: object) -> None:
        event = {"type": kind, "event_id": f"event_{uuid.uuid4().hex[:20]}", **fields}
        await self._websocket.send_text(json.dumps(event))


def _event(text: object) -> Mapping[str, object]:
    try:
        event = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict):
        raise RequestError(400, "an event must be a JSON object with a `type`")
    return event


def _with_times(words: Sequence[Word]) -> list[Mapping[str, object]]:
    """Words with times in seconds from the start of the session."""
    return [{"word": word.text, "start": word.start_ms / 1000, "end": word.end_ms / 1000} for word in words]
