"""Spans of speech are cut where another speaker begins."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from voxstill.audio import vad
from voxstill.diarization.turns import Turn

Piece = tuple[vad.Span, int | None]
"""A piece of a span and the number of its speaker, None without speech."""


def longest(turns: Sequence[Turn], span: vad.Span) -> int | None:
    """The speaker with most time in a span; None without speech."""
    time_ms: dict[int, int] = {}
    for turn in turns:
        shared_ms = min(turn.end_ms, span[1]) - max(turn.start_ms, span[0])
        if shared_ms > 0:
            time_ms[turn.speaker] = time_ms.get(turn.speaker, 0) + shared_ms
    return max(time_ms, key=lambda speaker: (time_ms[speaker], -speaker), default=None)


def cut_at_turns(turns: Sequence[Turn], span: vad.Span, min_ms: int) -> list[Piece]:
    """Cut a span where another speaker begins: in the middle of the pause, or of the overlap, between two turns.

    A turn within another's is passed over, for no cut gives it audio of its own. A piece shorter than `min_ms` stays
    with the one before it.
    """
    start_ms, end_ms = span
    line = [turn for turn in _leading(turns) if turn.end_ms > start_ms and turn.start_ms < end_ms]
    cuts = [
        max(start_ms, min(end_ms, (left.end_ms + right.start_ms) // 2))
        for left, right in itertools.pairwise(line)
        if left.speaker != right.speaker
    ]
    pieces: list[Piece] = []
    begin_ms = start_ms
    for cut_ms in [*cuts, end_ms]:
        if cut_ms - begin_ms < min_ms and pieces:
            (first_ms, _), speaker = pieces[-1]
            pieces[-1] = ((first_ms, cut_ms), speaker)
        elif cut_ms - begin_ms >= min_ms or cut_ms == end_ms:
            speaker = longest(turns, (begin_ms, cut_ms))
            if pieces and pieces[-1][1] == speaker:
                pieces[-1] = ((pieces[-1][0][0], cut_ms), speaker)
            else:
                pieces.append(((begin_ms, cut_ms), speaker))
        else:
            continue  # too short at the start: it is a part of what follows
        begin_ms = cut_ms
    return pieces


def _leading(turns: Sequence[Turn]) -> Iterator[Turn]:
    """The turns in order, without those that end before an earlier one does."""
    latest_ms = -1
    for turn in turns:
        if turn.end_ms > latest_ms:
            latest_ms = turn.end_ms
            yield turn
