"""Live transcription of a stream with any recogniser: speech is found by the VAD and transcribed again as it grows.

It does no inference and waits for nothing: `feed` takes samples, `next_part` says what is to be transcribed, and
`answer` takes the hypothesis. Both give events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from voxstill.audio import vad
from voxstill.core import pcm
from voxstill.core.config import Segment
from voxstill.core.records import Hypothesis, Word
from voxstill.streaming.agreement import Agreement
from voxstill.streaming.events import Event, Extent, SegmentDone, SegmentPart, SpeechStarted, SpeechStopped, WordsAdded

_NO_SAMPLES = np.zeros(0, np.int16)


class _Text:
    """What is known of the text of one segment."""

    def __init__(self, start_ms: int) -> None:
        self.start_ms = start_ms
        self.agreement = Agreement()
        self.interim: list[str] = []  # as it was sent last
        self.words: list[Word] = []
        self.hypotheses: list[Hypothesis] = []
        self.error: str | None = None

    def added(self, segment: int, words: Sequence[Word]) -> list[Event]:
        """The event of words that were agreed on, where there are any or the interim words are others."""
        before, self.interim = self.interim, [word.text for word in self.agreement.interim]
        if not words and self.interim == before:
            return []
        return [WordsAdded(segment=segment, words=tuple(words), interim=tuple(self.agreement.interim))]


class LiveTranscription:
    """Segments of speech in a stream of int16 samples at 16 kHz, and their words while they are spoken.

    A segment ends at a pause, as `segment` says, or with `commit`; without `endpointing` with `commit` alone. It is
    transcribed again after each `partial_every_ms`, and words that three hypotheses in a row agree on are added
    (LocalAgreement-3), with those after them as interim; those of a streaming student stay, and are added at once. At
    its end it is transcribed once as a whole. Speech longer than `segment.max_ms` is divided where it is least likely
    to be a word.
    """

    def __init__(self, segment: Segment, partial_every_ms: int, *, endpointing: bool = True) -> None:
        self.segment, self.endpointing = segment, endpointing
        self.partial_every_ms = partial_every_ms
        self._detector = vad.SpeechDetector()
        self._audio_T, self._first = _NO_SAMPLES, 0  # the samples that are kept, and the position of their first
        self._probs: list[float] = []  # of speech in each window since the segment started
        self._detected = self._closed = 0  # how far the VAD is, and the end of the last segment
        self._is_speech = False
        self._speech: tuple[int, int] | None = None  # start and end of the speech since the last pause
        self._open: int | None = None  # the segment that is being spoken
        self._start = 0  # of the part that is not transcribed as a whole yet
        self._num_segments = self._transcribed_to = 0
        self._waiting: deque[SegmentPart] = deque()
        self._texts: dict[int, _Text] = {}
        self._is_transcribing = False

    @property
    def segment_open(self) -> int | None:
        """The segment that is being spoken."""
        return self._open

    @property
    def is_unfinished(self) -> bool:
        """Whether the end of a segment is still to be transcribed or spoken."""
        return bool(self._texts)

    @property
    def num_waiting(self) -> int:
        """Whole parts of segments that wait to be transcribed."""
        return len(self._waiting)

    @property
    def end_ms(self) -> int:
        """How much audio there was."""
        return pcm.samples_to_ms(self._end)

    @property
    def _end(self) -> int:
        return self._first + len(self._audio_T)

    def feed(self, samples_T: NDArray[np.int16]) -> list[Event]:
        """Take the next samples, of any number; return what they started and ended."""
        self._audio_T = np.concatenate([self._audio_T, samples_T])
        events: list[Event] = []
        if not self.endpointing and self._open is None and len(samples_T):
            events += self._begin(self._end - len(samples_T), by_speech=False)
        num_windows = (self._end - self._detected) // vad.WINDOW
        if num_windows:
            start = self._detected - self._first
            windows_WT = self._audio_T[start : start + num_windows * vad.WINDOW].reshape(num_windows, vad.WINDOW)
            for prob in self._detector.probs(windows_WT.astype(np.float32)).tolist():
                events += self._take_window(prob)
        return events

    def commit(self) -> None:
        """End the segment here. Nothing happens where none is being spoken."""
        if self._open is not None:
            self._close(self._end)
        self._speech, self._is_speech = None, False

    def clear(self) -> None:
        """Drop the segment that is being spoken, and its audio."""
        if self._open is not None:
            self._waiting = deque(part for part in self._waiting if part.segment != self._open)
            del self._texts[self._open]
        self._open = self._speech = None
        self._is_speech = False
        self._drop_before(self._end)

    def next_part(self) -> SegmentPart | None:
        """Return what is to be transcribed now; None if nothing is, or where a part has no answer yet.

        Whole parts come first, in order.
        """
        if self._is_transcribing:
            return None
        part = self._waiting.popleft() if self._waiting else self._so_far()
        self._is_transcribing = part is not None
        return part

    def answer(self, part: SegmentPart, hypothesis: Hypothesis, *, stays: bool = False) -> list[Event]:
        """Take the hypothesis of a part; return the words that it adds, and the end of its segment.

        `stays` says that later hypotheses of the segment begin with the words of this one.
        """
        self._is_transcribing = False
        text = self._texts.get(part.segment)
        if text is None:  # cleared meanwhile
            return []
        words = hypothesis.words_within(part.start_ms, part.end_ms)
        if part.extent is Extent.SO_FAR:
            agree = text.agreement.end if stays else text.agreement.add
            return text.added(part.segment, agree(words))
        text.words += words
        text.hypotheses.append(hypothesis)
        text.error = text.error or hypothesis.error
        events = text.added(part.segment, text.agreement.end(words))
        text.agreement = Agreement()
        if part.extent is Extent.LAST:
            del self._texts[part.segment]
            done = SegmentDone(
                segment=part.segment,
                start_ms=text.start_ms,
                end_ms=part.end_ms,
                words=tuple(text.words),
                hypotheses=tuple(text.hypotheses),
                error=text.error,
            )
            events.append(done)
        return events

    def skip(self, part: SegmentPart) -> None:
        """Leave a part of a segment so far without an answer."""
        assert part.extent is Extent.SO_FAR
        self._is_transcribing = False

    def _so_far(self) -> SegmentPart | None:
        """The segment that is being spoken, where enough of it is new."""
        if self._open is None:
            return None
        every, before = pcm.ms_to_samples(self.partial_every_ms), max(self._start, self._transcribed_to)
        if self._end - before < every:
            return None
        self._transcribed_to = before + (self._end - before) // every * every  # samples do not come in blocks of that
        return self._part(self._open, self._end, Extent.SO_FAR)

    def _part(self, segment: int, end: int, extent: Extent) -> SegmentPart:
        return SegmentPart(
            segment=segment,
            start_ms=pcm.samples_to_ms(self._start),
            samples_T=self._audio_T[self._start - self._first : end - self._first].copy(),
            extent=extent,
        )

    def _take_window(self, prob: float) -> list[Event]:
        """Take the probability of speech in the next window; return what it started and ended."""
        cfg, events = self.segment, list[Event]()
        start, end = self._detected, self._detected + vad.WINDOW
        self._detected = end
        self._probs.append(prob)
        self._is_speech = prob >= (cfg.threshold - vad.HYSTERESIS if self._is_speech else cfg.threshold)
        if self._is_speech:
            self._speech = (start if self._speech is None else self._speech[0], end)
        if self._speech is not None and self.endpointing:
            long_enough = self._speech[1] - self._speech[0] >= pcm.ms_to_samples(cfg.min_ms)
            if self._open is None and long_enough:
                padded = self._speech[0] - pcm.ms_to_samples(cfg.pad_ms)
                events += self._begin(max(self._first, self._closed, padded), by_speech=True)
            if end - self._speech[1] >= pcm.ms_to_samples(max(1, cfg.min_silence_ms)):
                events += self._pause(min(self._speech[1] + pcm.ms_to_samples(cfg.pad_ms), end))
        if self._open is None:
            self._probs.clear()
            if self._speech is None:
                self._drop_before(end - pcm.ms_to_samples(cfg.pad_ms))
        elif end - self._start > pcm.ms_to_samples(cfg.max_ms) - vad.WINDOW:  # no part is longer, at any end
            self._divide(self._open)
        return events

    def _begin(self, start: int, *, by_speech: bool) -> list[Event]:
        self._open, self._start, self._transcribed_to = self._num_segments, start, start
        self._num_segments += 1
        self._texts[self._open] = _Text(pcm.samples_to_ms(start))
        return [SpeechStarted(segment=self._open, start_ms=pcm.samples_to_ms(start))] if by_speech else []

    def _pause(self, end: int) -> list[Event]:
        """The speech has ended; so has the segment, unless it was too short to be one."""
        self._speech = None
        if self._open is None:
            return []
        stopped = SpeechStopped(segment=self._open, end_ms=pcm.samples_to_ms(end))
        self._close(end)
        return [stopped]

    def _close(self, end: int) -> None:
        assert self._open is not None
        self._waiting.append(self._part(self._open, end, Extent.LAST))
        self._open, self._closed = None, end
        self._drop_before(end)

    def _divide(self, segment: int) -> None:
        """End a part in the second half, at the window that is least likely to be speech."""
        num_windows = max(1, pcm.ms_to_samples(self.segment.max_ms) // 2 // vad.WINDOW)
        probs = self._probs[-num_windows:]
        after = len(probs) - min(range(len(probs)), key=probs.__getitem__)
        end = self._detected - after * vad.WINDOW + vad.WINDOW // 2
        self._waiting.append(self._part(segment, end, Extent.PART))
        self._start = self._transcribed_to = end
        self._drop_before(end)
        del self._probs[:-num_windows]

    def _drop_before(self, position: int) -> None:
        """Forget samples before a position; those that the VAD has yet to see stay."""
        position = min(position, self._detected)
        if position > self._first:
            self._audio_T = self._audio_T[position - self._first :]
            self._first = position
