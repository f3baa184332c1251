"""Word error rates of meetings with speaker attribution: cpWER, and tcpWER, which also needs the times to match.

The hypothesis has speaker labels of its own. They are mapped one to one to those of the reference so that errors are
fewest; all words of a speaker without a partner are errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from voxstill.core.records import ErrorCounts
from voxstill.scoring import words
from voxstill.scoring.speakers import assignment
from voxstill.text.transcripts import TranscriptSegment

_NEVER = np.iinfo(np.int64).max // 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingErrors:
    """The errors of one session, and its speaker mapping, hypothesis -> reference."""

    counts: ErrorCounts
    mapping: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _SpeakerWords:
    """All words of one speaker in order, with start and end of each in milliseconds."""

    words: list[str]
    times_W2: NDArray[np.float64]


def cpwer(reference: Sequence[TranscriptSegment], hypothesis: Sequence[TranscriptSegment]) -> MeetingErrors:
    """cpWER: concatenated minimum-permutation word errors of one session; segments are ordered by their start.

    Watanabe et al., CHiME-6 2020, section 5.3. Speakers are named in every row; texts are compared as they stand.
    """
    return _with_best_mapping(reference, hypothesis, lambda ref, hyp: words.count(ref.words, hyp.words))


def tcpwer(
    reference: Sequence[TranscriptSegment], hypothesis: Sequence[TranscriptSegment], collar_ms: int
) -> MeetingErrors:
    """tcpWER: as cpWER, but only words that overlap in time are aligned.

    The time of a segment is divided over its words by their lengths in letters. A word of the hypothesis is at the
    middle of its part, plus or minus the collar. Von Neumann et al., MeetEval, CHiME-7 2023. Every row has its times.
    """
    return _with_best_mapping(reference, hypothesis, lambda ref, hyp: _count_in_time(ref, hyp, collar_ms))


def _with_best_mapping(
    reference: Sequence[TranscriptSegment],
    hypothesis: Sequence[TranscriptSegment],
    count: Callable[[_SpeakerWords, _SpeakerWords], ErrorCounts],
) -> MeetingErrors:
    reference_speakers, hypothesis_speakers = _by_speaker(reference), _by_speaker(hypothesis)
    size = max(len(reference_speakers), len(hypothesis_speakers))
    no_words = _SpeakerWords([], np.zeros((0, 2)))
    reference_names = [*reference_speakers, *[""] * (size - len(reference_speakers))]
    hypothesis_names = [*hypothesis_speakers, *[""] * (size - len(hypothesis_speakers))]
    counts = [
        [
            count(reference_speakers.get(ref, no_words), hypothesis_speakers.get(hyp, no_words))
            for hyp in hypothesis_names
        ]
        for ref in reference_names
    ]
    errors = [[pair_counts.errors for pair_counts in row] for row in counts]
    gain_RH = -np.array(errors, dtype=np.int64).reshape(size, size)
    pairs = assignment(gain_RH)
    return MeetingErrors(
        counts=ErrorCounts.sum(counts[r][h] for r, h in pairs),
        mapping={
            hypothesis_names[h]: reference_names[r]
            for r, h in pairs
            if r < len(reference_speakers) and h < len(hypothesis_speakers)
        },
    )


def _by_speaker(rows: Sequence[TranscriptSegment]) -> dict[str, _SpeakerWords]:
    rows_of_speaker: dict[str, list[TranscriptSegment]] = {}
    for row in sorted(rows, key=lambda row: row.start_ms or 0):
        rows_of_speaker.setdefault(row.speaker or "", []).append(row)
    return {
        speaker: _SpeakerWords(
            [word for row in speaker_rows for word in row.text.split()],
            np.array([time for row in speaker_rows for time in _times(row)], dtype=np.float64).reshape(-1, 2),
        )
        for speaker, speaker_rows in rows_of_speaker.items()
    }


def _times(row: TranscriptSegment) -> list[tuple[float, float]]:
    """Divide the row's time over its words by their lengths in letters; start and end of each in milliseconds."""
    ends = [0, *accumulate(len(word) for word in row.text.split())]
    start_ms, length_ms = row.start_ms or 0, (row.end_ms or 0) - (row.start_ms or 0)
    edges = [start_ms + length_ms * end / max(ends[-1], 1) for end in ends]
    return list(pairwise(edges))


def _count_in_time(reference: _SpeakerWords, hypothesis: _SpeakerWords, collar_ms: int) -> ErrorCounts:
    """Edit distance as `words.count`, but only words that overlap in time are aligned; row by row."""
    middle_H = hypothesis.times_W2.mean(1) if hypothesis.words else np.zeros(0)
    edit = len(reference.words) + len(hypothesis.words) + 1
    ids: dict[str, int] = {}
    hypothesis_H = np.array([ids.setdefault(word, len(ids)) for word in hypothesis.words], dtype=np.int64)
    insertions_H = np.arange(len(hypothesis.words) + 1) * edit
    cost_H = insertions_H.copy()
    for word, (start_ms, end_ms) in zip(reference.words, reference.times_W2, strict=True):
        overlaps_H = (start_ms < middle_H + collar_ms) & (end_ms > middle_H - collar_ms)
        pair_H = np.where(hypothesis_H == ids.get(word, -1), 0, edit + 1)
        next_H = cost_H + edit
        np.minimum(next_H[1:], cost_H[:-1] + np.where(overlaps_H, pair_H, _NEVER), out=next_H[1:])
        cost_H = np.minimum.accumulate(next_H - insertions_H) + insertions_H  # insertions
    return words.split(int(cost_H[-1]), edit, len(reference.words), len(hypothesis.words))
