"""Live transcription: segments are those of the speech, words are added once, and chunks make no difference."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings
from numpy.typing import NDArray

from voxstill.audio import vad
from voxstill.core import pcm
from voxstill.core.config import Segment
from voxstill.core.records import Hypothesis, Word
from voxstill.streaming.agreement import Agreement
from voxstill.streaming.events import Event, Extent, SegmentDone, SpeechStarted, SpeechStopped, WordsAdded
from voxstill.streaming.live import LiveTranscription
from voxstill.streaming.pcm_stream import PcmStream
from voxstill.synthesis.voices import SpeechJob, synthesize

SEGMENT = Segment()


@pytest.fixture(scope="module")
def speech() -> NDArray[np.int16]:
    """Two sentences with a second of faint noise before, between and behind them."""
    jobs = [SpeechJob(text=text, voice="en-us+f2") for text in ("turn on the lights", "call me in the kitchen")]
    noise_T = np.random.default_rng(0).normal(0, 5, pcm.ms_to_samples(1000)).astype(np.int16)
    parts = [noise_T]
    for samples_T in synthesize(jobs):
        parts += [samples_T, noise_T]
    return np.concatenate(parts)


def words_of(*texts: str) -> list[Word]:
    return [Word(text=text, start_ms=100 * i, end_ms=100 * i + 90) for i, text in enumerate(texts)]


def listen(live: LiveTranscription, samples_T: NDArray[np.int16], chunk: int) -> list[Event]:
    """All events of samples that come in chunks; what is heard is one word for each second of audio."""
    events: list[Event] = []

    def transcribe() -> None:
        while (part := live.next_part()) is not None:
            names = [f"w{second}" for second in range(1 + len(part.samples_T) // 16_000)]
            events.extend(live.answer(part, Hypothesis(id="h", text=" ".join(names), words=tuple(words_of(*names)))))

    for start in range(0, len(samples_T), chunk):
        events += live.feed(samples_T[start : start + chunk])
        transcribe()
    live.commit()
    transcribe()
    return events


def test_two_sentences_are_two_segments_with_their_pauses(speech: NDArray[np.int16]) -> None:
    events = listen(LiveTranscription(SEGMENT, 480), speech, 1600)
    starts = [event.start_ms for event in events if isinstance(event, SpeechStarted)]
    stops = [event.end_ms for event in events if isinstance(event, SpeechStopped)]
    spans = vad.speech_segments(vad.speech_probs(speech), SEGMENT, pcm.samples_to_ms(len(speech)))
    assert list(zip(starts, stops, strict=True)) == spans
    done = [event for event in events if isinstance(event, SegmentDone)]
    assert [(event.segment, event.start_ms, event.end_ms) for event in done] == [
        (number, *span) for number, span in enumerate(spans)
    ]
    assert all(event.words[0].start_ms == event.start_ms for event in done)


@settings(max_examples=20)
@example(chunk=16_896)
@given(chunk=st.integers(100, 20_000))
def test_chunks_make_no_difference_to_segments(speech: NDArray[np.int16], chunk: int) -> None:
    def segments(num: int) -> Sequence[Event]:
        events = listen(LiveTranscription(SEGMENT, 480), speech, num)
        kept = [event for event in events if not isinstance(event, WordsAdded)]
        return sorted(kept, key=lambda event: event.segment)  # a long chunk may begin a segment before one is done

    assert segments(chunk) == segments(512)


@settings(max_examples=30)
@given(st.lists(st.lists(st.sampled_from("abc"), max_size=6), max_size=8))
def test_words_that_are_agreed_on_stay_and_come_once(texts: list[list[str]]) -> None:
    agreement, added = Agreement(), list[str]()
    for first, second, text in zip([[], [], *texts], [[], *texts], texts, strict=False):
        new = [word.text for word in agreement.add(words_of(*text))]
        start, end = len(added), len(added) + len(new)
        assert new == text[start:end] == second[start:end] == first[start:end]
        added += new
        assert [word.text for word in agreement.words] == added
        assert [word.text for word in agreement.interim] == text[len(added) :]


def test_words_are_interim_until_three_hypotheses_agree_and_the_end_leaves_none(speech: NDArray[np.int16]) -> None:
    live = LiveTranscription(SEGMENT, 240, endpointing=False)
    events = list[Event]()
    for start, text in enumerate(("one", "one two", "one two", "one two", "one two")):
        live.feed(speech[4000 * start : 4000 * (start + 1)])
        part = live.next_part()
        assert part is not None
        events += live.answer(part, Hypothesis(id="h", text=text, words=tuple(words_of(*text.split()))))
    live.commit()
    part = live.next_part()
    assert part is not None
    *added, done = live.answer(part, Hypothesis(id="h", text="one two", words=tuple(words_of("one", "two"))))
    assert isinstance(done, SegmentDone)

    def texts(words: Sequence[Word]) -> str:
        return " ".join(word.text for word in words)

    assert [(texts(e.words), texts(e.interim)) for e in events + added if isinstance(e, WordsAdded)] == [
        ("", "one"),
        ("", "one two"),
        ("one", "two"),
        ("two", ""),
    ]


@pytest.mark.parametrize("block", [100, 1600, 16_000])
@pytest.mark.parametrize("endpointing", [True, False])
def test_no_part_is_longer_than_the_longest_utterance(speech: NDArray[np.int16], block: int, endpointing: bool) -> None:
    live, parts = LiveTranscription(Segment(max_ms=1000), 100, endpointing=endpointing), list[int]()
    for start in range(0, len(speech), block):
        live.feed(speech[start : start + block])
        if start + block >= len(speech):
            live.commit()
        while (part := live.next_part()) is not None:
            parts.append(len(part.samples_T))
            live.answer(part, Hypothesis(id="h", text=""))
    assert max(parts) <= pcm.ms_to_samples(1000)


def test_the_segment_is_transcribed_again_as_it_grows_and_once_as_a_whole(speech: NDArray[np.int16]) -> None:
    live = LiveTranscription(SEGMENT, 240, endpointing=False)
    lengths, extents = [], []
    for start in range(0, 16_000, 800):
        assert live.feed(speech[start : start + 800]) == []
        if (part := live.next_part()) is not None:
            lengths.append(len(part.samples_T))
            extents.append(part.extent)
            assert live.next_part() is None  # until it is answered
            live.answer(part, Hypothesis(id="h", text=""))
    assert set(extents) == {Extent.SO_FAR}
    assert lengths == [4000, 8000, 12_000, 16_000]
    live.commit()
    last = live.next_part()
    assert last is not None
    assert (last.extent, len(last.samples_T), last.start_ms) == (Extent.LAST, 16_000, 0)
    assert live.is_unfinished
    [done] = live.answer(last, Hypothesis(id="h", text="", error="broken", finish="failed"))
    assert isinstance(done, SegmentDone)
    assert (done.text, done.error, live.is_unfinished) == ("", "broken", False)


def test_speech_without_a_pause_is_divided_and_no_sample_is_lost(speech: NDArray[np.int16]) -> None:
    voiced_T = np.concatenate([speech[16_000:30_000]] * 8)
    live = LiveTranscription(Segment(max_ms=2000), 10_000, endpointing=False)
    parts = []
    for start in range(0, len(voiced_T), 3000):
        live.feed(voiced_T[start : start + 3000])
    live.commit()
    while (part := live.next_part()) is not None:
        parts.append(part)
        events = live.answer(part, Hypothesis(id="h", text="a", words=tuple(words_of("a"))))
    assert [part.extent for part in parts] == [Extent.PART] * (len(parts) - 1) + [Extent.LAST]
    assert len(parts) >= len(voiced_T) // 32_000
    assert all(len(part.samples_T) <= 32_000 for part in parts)
    np.testing.assert_array_equal(np.concatenate([part.samples_T for part in parts]), voiced_T)
    done = events[-1]
    assert isinstance(done, SegmentDone)
    assert done.text == " ".join("a" * len(parts))
    assert [word.start_ms for word in done.words] == [part.start_ms for part in parts]


def test_what_is_cleared_is_forgotten(speech: NDArray[np.int16]) -> None:
    live = LiveTranscription(SEGMENT, 240, endpointing=False)
    live.feed(speech[:16_000])
    part = live.next_part()
    assert part is not None
    live.clear()
    assert not live.is_unfinished
    assert live.answer(part, Hypothesis(id="h", text="late", words=tuple(words_of("late")))) == []
    live.feed(speech[16_000:32_000])
    live.commit()
    last = live.next_part()
    assert last is not None
    assert (last.start_ms, len(last.samples_T)) == (1000, 16_000)


def test_memory_does_not_grow_in_silence() -> None:
    live = LiveTranscription(SEGMENT, 480)
    noise_T = np.random.default_rng(0).normal(0, 5, 16_000).astype(np.int16)
    for _ in range(20):
        assert live.feed(noise_T) == []
    assert len(live._audio_T) < 4000
    assert (live.end_ms, live.next_part()) == (20_000, None)


@settings(max_examples=20, deadline=None)
@given(rate_hz=st.sampled_from([8000, 16_000, 24_000, 44_100, 48_000]), piece=st.integers(1, 5000))
def test_pcm_in_pieces_is_that_of_the_whole(rate_hz: int, piece: int) -> None:
    samples_T = np.random.default_rng(1).normal(0, 3000, rate_hz // 4).astype("<i2")
    data, stream = samples_T.tobytes(), PcmStream(rate_hz)
    whole = PcmStream(rate_hz)
    expected_T = np.concatenate([whole.feed(data), whole.flush()])
    pieces = [stream.feed(data[start : start + piece]) for start in range(0, len(data), piece)]
    np.testing.assert_array_equal(np.concatenate([*pieces, stream.flush()]), expected_T)
    assert abs(len(expected_T) - 4000) <= 2
