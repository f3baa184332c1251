"""When the words of a text are said in its audio: forced alignment of one utterance with a CTC model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voxstill.core.records import Word
from voxstill.text.normalize import basic


@dataclass(frozen=True, slots=True)
class AlignedText:
    """How well a text fits its audio, and the times of its words.

    `logprob` is the log-probability of a token, None if the model cannot write the text or has too few frames for
    it; `words` are those between its spaces, empty if they were not asked for or have no alignment.
    """

    logprob: float | None = None
    words: tuple[Word, ...] = ()


def word_times(
    log_probs_FV: NDArray[np.float32],
    text: str,
    encode: Callable[[str], Sequence[int]],
    blank_id: int,
    delimiter_id: int | None,
    frame_ms: int,
) -> tuple[Word, ...]:
    """The words of a text with their times on the most likely path; empty if it does not fit into the frames.

    `encode` returns the tokens of a word, none where it cannot be written. Such a word, as a number in digits, has the
    time between its neighbours and a frame of each, so that no cut falls beside it; a dash that nobody says has none.
    """
    from voxstill.decoding import forced_alignment  # compiled code, which only needs who asks for times

    words = text.split()
    tokens = [encode(word) for word in words]
    line: list[int] = []
    first_of: dict[int, int] = {}
    """The first token of each word that has any."""
    for number, ids in enumerate(tokens):
        if ids:
            line += [delimiter_id] if line and delimiter_id is not None else []
            first_of[number] = len(line)
            line += ids
    if not line or len(log_probs_FV) < forced_alignment.min_frames([line]):
        return ()
    aligned = forced_alignment.align(log_probs_FV, [line], blank_id)
    if aligned.start_U[0] < 0:
        return ()
    num_frames = len(log_probs_FV)
    spans = {
        number: (int(aligned.start_U[first]), int(aligned.end_U[first + len(tokens[number]) - 1]))
        for number, first in first_of.items()
    }
    starts_after = [num_frames] * len(words)
    """The first frame of the next word that has tokens."""
    for number in range(len(words) - 2, -1, -1):
        starts_after[number] = spans[number + 1][0] if number + 1 in spans else starts_after[number + 1]
    timed, end_before = [], 0
    for number, word in enumerate(words):
        if number in spans:
            start, end_before = spans[number]
            end = end_before
        elif basic(word):
            start, end = max(end_before - 1, 0), min(starts_after[number] + 1, num_frames)
        else:
            start = end = end_before
        timed.append(Word(text=word, start_ms=start * frame_ms, end_ms=end * frame_ms))
    return tuple(timed)
