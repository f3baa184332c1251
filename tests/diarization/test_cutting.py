"""Spans are cut where another speaker begins."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from voxstill.diarization.cutting import cut_at_turns, longest
from voxstill.diarization.turns import Turn, numbered

TURNS = st.lists(
    st.tuples(st.integers(0, 90), st.integers(1, 40), st.sampled_from("abc")).map(
        lambda turn: (turn[0], turn[0] + turn[1], turn[2])
    ),
    max_size=8,
).map(numbered)


@given(TURNS, st.integers(0, 50), st.integers(1, 60), st.integers(1, 20))
def test_pieces_are_the_whole_span_and_not_too_short(turns: list[Turn], start: int, length: int, min_ms: int) -> None:
    span = (start, start + length)
    pieces = cut_at_turns(turns, span, min_ms)
    edges = [edge for piece, _ in pieces for edge in piece]
    assert edges == sorted(edges)
    assert (edges[0], edges[-1]) == span
    assert edges[1:-1:2] == edges[2::2]
    assert all(end - begin >= min(min_ms, length) for (begin, end), _ in pieces)
    assert all(one[1] != other[1] for one, other in pairwise(pieces))


def turns_of(*spans: tuple[int, int, int]) -> list[Turn]:
    return [Turn(start_ms=start, end_ms=end, speaker=speaker) for start, end, speaker in spans]


def test_a_cut_is_in_the_middle_of_a_pause_or_an_overlap() -> None:
    turns = turns_of((0, 1_000, 1), (1_400, 3_000, 2), (2_800, 4_000, 1))
    assert cut_at_turns(turns, (0, 4_000), 50) == [((0, 1_200), 1), ((1_200, 2_900), 2), ((2_900, 4_000), 1)]
    assert cut_at_turns(turns, (500, 900), 50) == [((500, 900), 1)]
    assert cut_at_turns([], (0, 900), 50) == [((0, 900), None)]


def test_a_turn_within_anothers_cuts_nothing() -> None:
    assert cut_at_turns(turns_of((0, 4_000, 1), (1_000, 1_400, 2)), (0, 4_000), 50) == [((0, 4_000), 1)]
    assert longest(turns_of((0, 4_000, 1), (1_000, 1_400, 2)), (1_000, 1_400)) == 1
