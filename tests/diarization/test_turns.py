"""Turns: ordered, numbered as speakers begin, and with their overlaps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxstill.diarization.turns import Turn, doubt, numbered

SPANS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 60), st.sampled_from("abc")).map(
        lambda span: (min(span[0], span[1]), max(span[0], span[1]), span[2])
    ),
    max_size=8,
)


def covered(spans: list[tuple[int, int, str]]) -> set[tuple[int, str]]:
    return {(time, name) for start, end, name in spans for time in range(start, end)}


@given(SPANS)
def test_no_time_of_a_speaker_is_lost_or_added(spans: list[tuple[int, int, str]]) -> None:
    turns = numbered(spans)
    names = {turn.speaker: {name for time, name in covered(spans) if time == turn.start_ms} for turn in turns}
    times = {(time, turn.speaker) for turn in turns for time in range(turn.start_ms, turn.end_ms)}
    assert len(times) == len(covered(spans))
    assert {time for time, _ in times} == {time for time, _ in covered(spans)}
    assert all(names.values())


@given(SPANS)
def test_speakers_are_numbered_in_the_order_in_which_they_begin(spans: list[tuple[int, int, str]]) -> None:
    turns = numbered(spans)
    assert [turn.start_ms for turn in turns] == sorted(turn.start_ms for turn in turns)
    assert list(dict.fromkeys(turn.speaker for turn in turns)) == list(range(1, len({t.speaker for t in turns}) + 1))


@given(SPANS)
def test_a_turn_overlaps_where_another_shares_time_with_it(spans: list[tuple[int, int, str]]) -> None:
    turns = numbered(spans)
    for turn in turns:
        others = [other for other in turns if other is not turn]
        assert turn.overlap == any(other.start_ms < turn.end_ms and turn.start_ms < other.end_ms for other in others)


def test_turns_of_one_speaker_that_touch_are_one() -> None:
    assert numbered([(0, 10, "a"), (10, 20, "a"), (25, 30, "a")]) == [
        Turn(start_ms=0, end_ms=20, speaker=1),
        Turn(start_ms=25, end_ms=30, speaker=1),
    ]


def test_little_speech_of_several_speakers_is_doubtful() -> None:
    turns = [Turn(start_ms=i * 7_000, end_ms=(i + 1) * 7_000, speaker=1 + i % 4) for i in range(4)]
    assert doubt(turns) == (
        "doubtful speakers: 4 speakers in 28 s of speech, and speakers can only be distinguished from 15 s each"
    )
    assert doubt([]) is None
    assert doubt([Turn(start_ms=0, end_ms=20_000, speaker=1), Turn(start_ms=20_000, end_ms=40_000, speaker=2)]) is None


@pytest.mark.parametrize(("turn_ms", "is_doubtful"), [(1_000, True), (1_600, True), (1_800, False), (4_000, False)])
def test_speakers_that_change_after_a_second_are_doubtful(turn_ms: int, is_doubtful: bool) -> None:
    """A pause within the speech of one ends a turn, and is no change of speaker."""
    half_ms = turn_ms // 2
    turns = [
        Turn(start_ms=i * turn_ms + start_ms, end_ms=i * turn_ms + end_ms, speaker=1 + i % 2)
        for i in range(100)
        for start_ms, end_ms in ((0, half_ms), (half_ms, turn_ms))
    ]
    expected = (
        f"doubtful speakers: they change after {turn_ms / 1000:.1f} s of speech on average, "
        "and speakers can only be distinguished in turns of 1.7 s or more"
    )
    assert doubt(turns) == (expected if is_doubtful else None)
    assert doubt([replace(turn, speaker=1) for turn in turns]) is None


def test_one_speaker_in_half_a_minute_may_be_several_and_a_clip_is_no_conversation() -> None:
    assert doubt([Turn(start_ms=0, end_ms=22_000, speaker=1)]) == (
        "doubtful speakers: one speaker in 22 s of speech, and speakers can only be distinguished from 15 s each"
    )
    assert doubt([Turn(start_ms=0, end_ms=5_000, speaker=1)]) is None
    assert doubt([Turn(start_ms=0, end_ms=60_000, speaker=1)]) is None
