"""listen: words of live audio while they are spoken, by a student here or by a server."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from voxstill.core import pcm
from voxstill.core.config import Config
from voxstill.core.monitor import log
from voxstill.core.records import RATE_HZ
from voxstill.core.terminal import one_line
from voxstill.pipeline import recordings
from voxstill.pipeline.audio_input import AudioReader
from voxstill.pipeline.live_results import LiveSegment, LiveWords, ShowSegment, ShowWords
from voxstill.pipeline.transcribe import load_live_recognizer
from voxstill.streaming.events import Event, SegmentDone, WordsAdded
from voxstill.streaming.live import LiveTranscription
from voxstill.streaming.part_streams import PartStreams

BLOCK_MS = 100
"""Audio is read in blocks of this length."""


def listen(
    cfg: Config, target: str, source: str | None, *, paced: bool, words: ShowWords, segment: ShowSegment
) -> None:
    """Transcribe the microphone, or the recording `source`, while it is read; return at its end.

    `target` is a model, or the address of a `voxstill serve`. `paced` reads a recording in real time.
    `words` is called with LiveWords, `segment` with a LiveSegment. DataError if the recording is no audio,
    ConfigError if there is no microphone or no server.
    """
    blocks = _blocks(cfg, source, paced=paced)
    if target.startswith(("http://", "https://", "ws://", "wss://")):
        from voxstill.pipeline.live_client import transcribe_by_server

        transcribe_by_server(target, blocks, words, segment)
        return
    recognizer = load_live_recognizer(cfg, target, threads=cfg.serve.threads)
    stream_ms = recognizer.stream_ms
    segment_options = cfg.segment.at_most(recognizer.max_duration_ms)
    live = LiveTranscription(segment_options, stream_ms or cfg.serve.partial_every_ms)
    streams = PartStreams(recognizer.open_stream)

    def show(events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, WordsAdded):
                words(LiveWords(segment=event.segment, words=event.words, interim=event.interim))
            elif isinstance(event, SegmentDone):
                segment(_segment(event))

    def transcribe() -> None:
        while (part := live.next_part()) is not None:
            if stream_ms is None:
                [hypothesis] = recognizer.transcribe_batch([part.samples_T])
            else:
                [hypothesis] = recognizer.advance([streams.of(part)], [part.samples_T], [part.is_whole])
            show(live.answer(part, hypothesis, stays=stream_ms is not None))

    try:
        for block_T in blocks:
            show(live.feed(block_T))
            transcribe()
    except KeyboardInterrupt:
        log.info("listen: interrupted")
    live.commit()
    transcribe()
    recognizer.close()


def log_words(words: LiveWords) -> None:
    """Log words that were added, for those who read on standard error along; interim words are not lines."""
    if words.words:
        log.info("listen: ... %s", one_line(words.to_text()))


def _segment(done: SegmentDone) -> LiveSegment:
    return LiveSegment(
        segment=done.segment,
        start_ms=done.start_ms,
        end_ms=done.end_ms,
        text=done.text,
        words=done.words,
        error=done.error,
    )


def _blocks(cfg: Config, source: str | None, *, paced: bool) -> Iterator[NDArray[np.int16]]:
    """Blocks of samples at 16 kHz, of the microphone or of a recording."""
    if source is None:
        yield from recordings.microphone(BLOCK_MS)
        return
    num = pcm.ms_to_samples(BLOCK_MS)
    with recordings.readable(source) as path, AudioReader(cfg).read(path) as decoded:
        start_s = time.monotonic()
        for start in range(0, len(decoded.samples_T), num):
            block_T = decoded.samples_T[start : start + num]
            if paced:
                spoken_s = (start + len(block_T)) / RATE_HZ
                time.sleep(max(0.0, start_s + spoken_s - time.monotonic()))
            yield block_T
