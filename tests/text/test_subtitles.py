"""Subtitles that people can read: the limits hold for any words, and breaks are where they are expected."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.core.records import Word
from voxstill.text import subtitles
from voxstill.text.subtitles import Cue, cues, srt, vtt

TEXTS = st.text(alphabet="abc<>&é-.,?你", min_size=1, max_size=14)
RANDOM_WORDS = st.lists(
    st.builds(
        lambda text, start, length: Word(text=text, start_ms=start, end_ms=start + length),
        st.one_of(TEXTS, st.text(alphabet="ab c", min_size=1, max_size=200)),
        st.integers(0, 30_000),
        st.integers(0, 20_000),
    ),
    max_size=40,
)


@st.composite
def speech(draw: st.DrawFn) -> list[Word]:
    """Words as they are spoken: one after the other, at most eight a second, with pauses."""
    spoken: list[Word] = []
    at_ms = draw(st.integers(0, 3000))
    for text in draw(st.lists(TEXTS, max_size=60)):
        at_ms += draw(st.sampled_from([0, 0, 20, 80, 300, 900, 2500]))
        end_ms = at_ms + draw(st.integers(120, 900))
        spoken.append(Word(text=text, start_ms=at_ms, end_ms=end_ms))
        at_ms = end_ms
    return spoken


def words(text: str, length_ms: int = 300, gap_ms: int = 50) -> list[Word]:
    step = length_ms + gap_ms
    return [Word(text=w, start_ms=i * step, end_ms=i * step + length_ms) for i, w in enumerate(text.split())]


@settings(deadline=None)
@given(st.one_of(RANDOM_WORDS, speech()))
def test_the_limits_hold_and_no_word_is_lost(spoken: list[Word]) -> None:
    result = cues(spoken)
    in_order = sorted(spoken, key=lambda word: (word.start_ms, word.end_ms))
    assert "".join("".join(cue.text.split()) for cue in result) == "".join("".join(w.text.split()) for w in in_order)
    for cue in result:
        assert 1000 <= cue.end_ms - cue.start_ms <= 7000
        lines = cue.text.split("\n")
        assert 1 <= len(lines) <= 2
        assert all(0 < len(line) <= 42 and line == line.strip() for line in lines)
    for before, after in pairwise(result):
        gap_ms = after.start_ms - before.end_ms
        assert gap_ms == 0 or gap_ms >= subtitles.SHORTEST_GAP_MS
        assert gap_ms == 0 or gap_ms >= 500 or after.start_ms - before.start_ms > 7000


@settings(deadline=None)
@given(st.one_of(RANDOM_WORDS, speech()), st.integers(0, 2000))
def test_no_cue_ends_after_the_audio(spoken: list[Word], rest_ms: int) -> None:
    duration_ms = max((word.end_ms for word in spoken), default=0) + rest_ms
    result, unlimited = cues(spoken, duration_ms), cues(spoken)
    assert [cue.text for cue in result] == [cue.text for cue in unlimited]
    for cue in result:
        assert 0 <= cue.start_ms <= cue.end_ms <= duration_ms
    for before, after in pairwise(result):
        assert before.end_ms <= after.start_ms
    if all(cue.end_ms <= duration_ms for cue in unlimited):
        assert result == unlimited


def test_the_long_text_of_short_audio_ends_with_it() -> None:
    text = " ".join(["ba du ko mi"] * 20)
    result = cues([Word(text=text, start_ms=0, end_ms=1384)], 1384)
    assert len(result) > 2
    assert result[-1].end_ms == 1384
    assert all(cue.start_ms < cue.end_ms for cue in result)


@settings(deadline=None)
@given(speech())
def test_words_of_speech_stay_whole_and_none_is_shown_long_before_it_is_spoken(spoken: list[Word]) -> None:
    result = cues(spoken)
    assert [word for cue in result for word in cue.text.split()] == [word.text for word in spoken]
    rest = iter(spoken)
    for cue in result:
        group = [next(rest) for _ in cue.text.split()]
        assert cue.start_ms >= group[0].start_ms
        assert group[-1].end_ms - group[0].start_ms <= 7000
        assert all(two.start_ms - one.end_ms < 1500 for one, two in pairwise(group))


def test_a_cue_ends_at_a_sentence_before_a_pause_and_when_it_is_full() -> None:
    two = "We came home late in the evening. The lights were off and nobody was there."
    assert [cue.text for cue in cues(words(two))] == [
        "We came home late in the evening.",
        "The lights were off and nobody was there.",
    ]
    spaced = [*words("one two three"), *(Word(text=w, start_ms=t, end_ms=t + 300) for w, t in (("four", 3000),))]
    assert [cue.text for cue in cues(spaced)] == ["one two three", "four"]
    assert len(cues(words("word " * 40))) > 1
    assert cues([]) == []


def test_lines_are_divided_at_a_clause_and_are_of_like_length() -> None:
    [cue] = cues(words("when it was dark outside, nobody dared to open any window", 80, 20))
    assert cue.text.split("\n") == ["when it was dark outside,", "nobody dared to open any window"]
    [cue] = cues(words("ten small words of text and ten more small words here", 80, 20))
    assert max(map(len, cue.text.split("\n"))) - min(map(len, cue.text.split("\n"))) <= 6


def test_short_sentences_do_not_flash() -> None:
    """Three answers in a second and a half are two cues at most, and the screen is not empty between them."""
    spoken = words("Yes. No. Yes. No. Perhaps.", 250, 50)
    result = cues(spoken)
    assert result[0].start_ms == 0
    assert all(cue.end_ms - cue.start_ms >= 1000 for cue in result)
    assert len(result) <= 2


def test_a_text_without_word_times_is_divided_in_its_time() -> None:
    result = cues([Word(text="ten words that have one time " * 8, start_ms=1000, end_ms=21_000)])
    assert len(result) >= 3
    assert result[0].start_ms == 1000
    assert abs(result[-1].end_ms - 21_000) <= 1000
    middle = result[len(result) // 2]
    share = len("".join(cue.text for cue in result[: len(result) // 2])) / len("".join(cue.text for cue in result))
    assert abs(middle.start_ms - (1000 + 20_000 * share)) < 1500


def test_an_hour_is_divided_in_seconds() -> None:
    text = "and so it went on, day after day. " * 1200
    assert 900 < len(cues(words(text))) < 3000


def test_subrip_is_written_to_the_letter() -> None:
    two = [Cue(start_ms=0, end_ms=1500, text="hello"), Cue(start_ms=3_661_002, end_ms=3_662_000, text="a < b\nc")]
    assert srt(two) == "1\n00:00:00,000 --> 00:00:01,500\nhello\n\n2\n01:01:01,002 --> 01:01:02,000\na < b\nc\n\n"


def test_webvtt_is_written_to_the_letter() -> None:
    single_cue = [Cue(start_ms=61_001, end_ms=62_000, text="a --> b & c")]
    assert vtt(single_cue) == "WEBVTT\n\n00:01:01.001 --> 00:01:02.000\na --&gt; b &amp; c\n\n"
    assert vtt([]) == "WEBVTT\n\n"
