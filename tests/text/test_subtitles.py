from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from voxstill.core.records import Word
from voxstill.text.subtitles import Cue, cues, srt, vtt

spoken = st.lists(
    st.builds(
        lambda text, start, length: Word(text=text, start_ms=start, end_ms=start + length),
        st.text(alphabet="abc<>&é-", min_size=1, max_size=12),
        st.integers(0, 30_000),
        st.integers(0, 2000),
    ),
    max_size=30,
)


def words(text: str, each_ms: int = 300, gap_ms: int = 50) -> list[Word]:
    step = each_ms + gap_ms
    return [Word(text=w, start_ms=i * step, end_ms=i * step + each_ms) for i, w in enumerate(text.split())]


@given(spoken)
def test_cues_are_sorted_do_not_overlap_and_hold_every_word_once(words: list[Word]) -> None:
    result = cues(words)
    assert all(cue.start_ms < cue.end_ms for cue in result)
    assert all(before.end_ms <= after.start_ms for before, after in pairwise(result))
    assert sorted(word for cue in result for word in cue.text.split()) == sorted(word.text for word in words)


@given(spoken, st.integers(5, 60))
def test_only_a_single_long_word_makes_a_cue_too_long(words: list[Word], max_chars: int) -> None:
    assert all(len(cue.text) <= max_chars or " " not in cue.text for cue in cues(words, max_chars=max_chars))


def test_a_cue_ends_at_a_pause_at_its_length_and_at_its_time() -> None:
    assert [cue.text for cue in cues(words("one two three", gap_ms=700))] == ["one", "two", "three"]
    assert [cue.text for cue in cues(words("one two three"), max_chars=7)] == ["one two", "three"]
    assert [cue.text for cue in cues(words("one two three"), max_ms=700)] == ["one two", "three"]
    assert cues([]) == []


def test_subrip_is_written_to_the_letter() -> None:
    two = [Cue(start_ms=0, end_ms=1500, text="hello"), Cue(start_ms=3_661_002, end_ms=3_662_000, text="a < b")]
    assert srt(two) == "1\n00:00:00,000 --> 00:00:01,500\nhello\n\n2\n01:01:01,002 --> 01:01:02,000\na < b\n\n"


def test_webvtt_is_written_to_the_letter() -> None:
    single_cue = [Cue(start_ms=61_001, end_ms=62_000, text="a --> b & c")]
    assert vtt(single_cue) == "WEBVTT\n\n00:01:01.001 --> 00:01:02.000\na --&gt; b &amp; c\n\n"
    assert vtt([]) == "WEBVTT\n\n"
