"""One loaded recogniser with a thread of its own: what waits while it computes is its next batches."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import gc
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from voxstill.core import pcm, world
from voxstill.core.errors import VoxstillError
from voxstill.core.records import RATE_HZ, Hypothesis
from voxstill.decoding.loaded import Samples
from voxstill.decoding.recognizer import batches_by_length
from voxstill.decoding.streams import Stream
from voxstill.serving.metrics import ServerMetrics

BATCH_MS = 60_000
"""Most audio transcribed at once, padding included."""
_FIRST_SPEED = 10.0
"""Seconds of audio a second, before anything was measured."""
_SPEED_SHARE = 0.2
"""Weight of the last batch in the mean speed."""
LATELY_S, PROBE_S = 30.0, 5.0
"""A version is ready where it has transcribed so lately, or does when it is asked to, within so long."""


class ServedRecognizer(Protocol):
    """What a version needs of a loaded recogniser; `decoding/recognizer.py:Recognizer` is one."""

    @property
    def languages(self) -> Collection[str]:
        """Codes of the languages that it can be asked for; none where it is of one alone."""
        ...

    @property
    def takes_phrases(self) -> bool:
        """Whether it can listen for phrases."""
        ...

    def transcribe_batch(
        self,
        samples: Sequence[Samples],
        ids: Sequence[str] | None = None,
        languages: Sequence[str | None] | None = None,
        phrases: Sequence[str] = (),
    ) -> list[Hypothesis]:
        """Transcribe utterances; return one Hypothesis per utterance, in order, errors included."""
        ...

    @property
    def max_duration_ms(self) -> int | None:
        """The longest utterance that it takes; None where there is no limit."""
        ...

    @property
    def stream_ms(self) -> int | None:
        """The audio after which `advance` has more words; None where audio is transcribed by utterances alone."""
        ...

    def open_stream(self) -> Stream:
        """Return a stream of a streaming student before its first chunk."""
        ...

    def advance(
        self, streams: Sequence[Stream], samples: Sequence[Samples], is_last: Sequence[bool]
    ) -> list[Hypothesis]:
        """Transcribe what is new of each stream; return one Hypothesis for each, of all of it so far."""
        ...

    def close(self) -> None:
        """Drop the weights."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What a client says of its audio: utterances with equal hints can be in one batch."""

    language: str | None = None
    phrases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedPart:
    """A stream of a streaming student, and whether it has ended."""

    stream: Stream
    is_last: bool


@dataclass(frozen=True, slots=True)
class _Utterance:
    samples_T: Samples
    hints: Hints
    part: StreamedPart | None
    num_new: int
    """Samples that were not transcribed before."""
    future: concurrent.futures.Future[Hypothesis] = field(default_factory=concurrent.futures.Future)


class Version:
    """A version of a model: a recogniser, its thread, and how many requests it has under way.

    The thread takes all that waits, sorted by length, and transcribes it in batches; what comes meanwhile is taken
    next. So a batch never waits for others, and batches grow with the load.
    """

    def __init__(
        self,
        model: str,
        name: str,
        source: str,
        load_recognizer: Callable[[], ServedRecognizer],
        metrics: ServerMetrics,
    ) -> None:
        self.model, self.name, self.source = model, name, source
        self.num_requests = 0
        self._load_recognizer, self._metrics = load_recognizer, metrics
        self._recognizer: ServedRecognizer
        self._waiting: deque[_Utterance] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._queued = 0  # samples that wait or are being transcribed
        self._speed = _FIRST_SPEED * RATE_HZ  # samples a second
        self._last_s = -math.inf  # when it has transcribed last
        self._probe: concurrent.futures.Future[Hypothesis] | None = None
        self._loaded: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._work, name=f"{model} {name}", daemon=True)

    async def load(self) -> None:
        """Load the recogniser, and return after a first real inference; VoxstillError where there is none."""
        self._thread.start()
        await asyncio.wrap_future(self._loaded)
        self._metrics.in_flight.labels(self.model, self.name).set_function(lambda: self.num_requests)
        self._metrics.queue_s.labels(self.model, self.name).set_function(lambda: self.queued_s)

    @property
    def languages(self) -> Collection[str]:
        """Codes of the languages that it can be asked for; none where it is of one alone."""
        return self._recognizer.languages

    @property
    def takes_phrases(self) -> bool:
        """Whether it can listen for phrases."""
        return self._recognizer.takes_phrases

    @property
    def max_duration_ms(self) -> int | None:
        """The longest utterance that it takes; None where there is no limit."""
        return self._recognizer.max_duration_ms

    @property
    def stream_ms(self) -> int | None:
        """The audio after which a stream has more words; None where audio is transcribed by utterances alone."""
        return self._recognizer.stream_ms

    def open_stream(self) -> Stream:
        """A stream of a streaming student before its first chunk."""
        return self._recognizer.open_stream()

    @property
    def queued_s(self) -> float:
        """Seconds of audio that wait or are being transcribed."""
        return pcm.samples_to_s(self._queued)

    @property
    def wait_s(self) -> int:
        """Whole seconds until what waits now is done, by the speed so far; at least 1 and at most 60."""
        return min(60, max(1, math.ceil(self._queued / self._speed)))

    async def has_transcribed_lately(self) -> bool:
        """Whether it has transcribed something within `LATELY_S`; an idle one is asked to, with a second of noise."""
        if time.monotonic() - self._last_s <= LATELY_S:
            return True
        if self._probe is None or self._probe.done():
            self._probe = self.submit(_noise(), Hints(), is_probe=True)
        with contextlib.suppress(Exception):
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._probe)), PROBE_S)
        return time.monotonic() - self._last_s <= LATELY_S

    async def transcribe(self, samples_T: Samples, hints: Hints, part: StreamedPart | None = None) -> Hypothesis:
        """Transcribe one utterance, or what is new of a stream, together with others that wait."""
        return await asyncio.wrap_future(self.submit(samples_T, hints, part))

    def submit(
        self, samples_T: Samples, hints: Hints, part: StreamedPart | None = None, *, is_probe: bool = False
    ) -> concurrent.futures.Future[Hypothesis]:
        """Let an utterance wait for the thread; return what will have its hypothesis. A probe counts as no audio."""
        num_new = 0 if is_probe else len(samples_T) - (0 if part is None else part.stream.num_samples)
        utterance = _Utterance(samples_T, hints, part, num_new)
        with self._wake:
            self._queued += num_new
            self._waiting.append(utterance)
            self._wake.notify()
        return utterance.future

    async def drain(self) -> None:
        """Return when no request is under way; then close."""
        while self.num_requests:
            await asyncio.sleep(0.02)
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Transcribe what waits, and end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        try:
            self._recognizer = self._load_recognizer()  # in this thread, whose number of CPU threads it sets
            self._warm_up()
        except BaseException as error:
            self._loaded.set_exception(error)
            return
        self._loaded.set_result(None)
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._waiting or self._closing)
                utterances = list(self._waiting)
                self._waiting.clear()
            if not utterances:
                break
            self._advance([utterance for utterance in utterances if utterance.part is not None])
            whole = [utterance for utterance in utterances if utterance.part is None]
            for hints in dict.fromkeys(utterance.hints for utterance in whole):
                self._transcribe([utterance for utterance in whole if utterance.hints == hints], hints)
        self._recognizer.close()
        gc.collect()  # what a recogniser is made of refers to itself
        world.return_freed_memory()

    def _warm_up(self) -> None:
        """Transcribe noise: what is compiled or allocated at the first inference costs no client a second."""
        for phrases in [(), ("warm",)] if self._recognizer.takes_phrases else [()]:
            [hypothesis] = self._recognizer.transcribe_batch([_noise()], phrases=phrases)
            if hypothesis.error is not None:
                raise VoxstillError(
                    f"`{self.source}` does not transcribe",
                    code="model-unloadable",
                    why=hypothesis.error,
                    fix="use another one",
                )
        self._last_s = time.monotonic()

    def _advance(self, utterances: Sequence[_Utterance]) -> None:
        """All streams at once: each has a chunk or two."""
        if utterances:
            self._answer(utterances, self._advanced)

    def _advanced(self, batch: Sequence[_Utterance]) -> list[Hypothesis]:
        parts = [utterance.part for utterance in batch if utterance.part is not None]
        streams, is_last = [part.stream for part in parts], [part.is_last for part in parts]
        return self._recognizer.advance(streams, [utterance.samples_T for utterance in batch], is_last)

    def _transcribe(self, utterances: Sequence[_Utterance], hints: Hints) -> None:
        lengths = [len(utterance.samples_T) for utterance in utterances]
        batches = batches_by_length(lengths, BATCH_MS)
        too_short = sorted(set(range(len(utterances))).difference(*batches))
        for members in (*batches, too_short):
            self._answer([utterances[member] for member in members], functools.partial(self._transcribed, hints))

    def _transcribed(self, hints: Hints, batch: Sequence[_Utterance]) -> list[Hypothesis]:
        samples = [utterance.samples_T for utterance in batch]
        return self._recognizer.transcribe_batch(samples, None, [hints.language] * len(batch), hints.phrases)

    def _answer(
        self, batch: Sequence[_Utterance], transcribe: Callable[[Sequence[_Utterance]], list[Hypothesis]]
    ) -> None:
        """Transcribe those of a batch that are waited for."""
        waited_for = [utterance for utterance in batch if utterance.future.set_running_or_notify_cancel()]
        if waited_for:
            self._answer_all(waited_for, transcribe)
        with self._wake:
            self._queued -= sum(utterance.num_new for utterance in batch)

    def _answer_all(
        self, batch: Sequence[_Utterance], transcribe: Callable[[Sequence[_Utterance]], list[Hypothesis]]
    ) -> None:
        """Give each utterance its hypothesis, or all of them the error that there was."""
        start_s = time.perf_counter()
        try:
            hypotheses = transcribe(batch)
        except Exception as error:
            for utterance in batch:
                utterance.future.set_exception(error)
            return
        self._last_s = time.monotonic()
        for utterance, hypothesis in zip(batch, hypotheses, strict=True):
            utterance.future.set_result(hypothesis)
        num_samples = sum(utterance.num_new for utterance in batch)
        if not num_samples:  # a probe, or parts of streams without anything new
            return
        self._speed += _SPEED_SHARE * (num_samples / max(time.perf_counter() - start_s, 1e-6) - self._speed)
        self._metrics.batch.labels(self.model, self.name).observe(len(batch))
        self._metrics.audio_s.labels(self.model, self.name).inc(pcm.samples_to_s(num_samples))


def _noise() -> Samples:
    """A second of faint noise."""
    return np.random.default_rng(0).normal(0, 300, RATE_HZ).astype(np.int16)
