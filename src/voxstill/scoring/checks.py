"""Plausibility checks of scores: shifted lines, wrong time units, offsets, empty hypotheses."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from voxstill.core.records import ErrorCounts
from voxstill.scoring import speakers, words
from voxstill.text.rttm import RttmEvent, ScoredRegion

SPACELESS = "the references have no spaces between words, so a sentence counts as one word: use the CER"
_SHIFTED_PAIRS = 2000
"""Pairs that are compared to detect shifted lines."""
_SPACELESS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u0f00-\u0fff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
"""Thai, Lao, Burmese, Khmer, Tibetan, kana and Han."""
_DENSE = re.compile("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
"""Kana and Han, whose words are shorter."""
_WORD_LETTERS, _DENSE_WORD_LETTERS = 6, 3
"""Words with more letters on average are none of these scripts."""
_STEP_US = 10_000
_MIN_SELF_OVERLAP_US = 1000
"""Shorter overlaps of a speaker with itself come from rounding."""
_MAX_PAST_END_US = 50_000
"""Less time past the end of the audio is a frame of the program that wrote the turns."""
_MAX_STEPS = 10_000_000
"""A day: later times are in another unit."""
_MIN_TIMES_LONGER = 300
"""A side that ends so many times later is in another unit."""
_LONG_TURN_US = 200_000_000
"""A turn of speech hardly lasts so long: 200 ms in the wrong unit do."""
_MIN_OFFSET_US = 100_000
"""A smaller offset is within the accuracy of human annotation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceErrors:
    """Hallucinations in silence: words inserted into empty references; `hours` is None if durations are unknown."""

    utterances: int
    words: int
    hours: float | None

    @property
    def words_per_hour(self) -> float | None:
        """Hallucinated words per hour of silence."""
        return self.words / self.hours if self.hours else None


def errors_in_silence(rows: Iterable[tuple[ErrorCounts, int | None]]) -> SilenceErrors:
    """Count words inserted into empty references; a row has word counts and duration in ms."""
    silent = [(counts.insertions, duration_ms) for counts, duration_ms in rows if not counts.reference]
    with_duration = [(num_words, duration_ms) for num_words, duration_ms in silent if duration_ms is not None]
    timed = with_duration if len(with_duration) == len(silent) and with_duration else None
    return SilenceErrors(
        utterances=len(silent),
        words=sum(num_words for num_words, _ in silent),
        hours=sum(duration_ms for _, duration_ms in timed) / 3_600_000 if timed else None,
    )


def check_words(pairs: Sequence[tuple[str, str]], total: ErrorCounts) -> list[str]:
    """Warnings about (reference, hypothesis) texts in the order of their files, one sentence each."""
    warnings = []
    rate = total.rate
    empty = sum(1 for reference, hypothesis in pairs if reference and not hypothesis)
    if rate is None:
        warnings.append("the references contain no words after normalization, so that there is no error rate")
    elif rate == 0:
        warnings.append("no errors at all: are reference and hypothesis the same file, or made from one another?")
    elif rate > 1:
        warnings.append(
            f"more errors than words: {total.insertions:,} of {total.errors:,} errors are insertions. Typical "
            "causes are words"
            " hallucinated in silence, another language, other units than words, or files that do not belong together"
        )
    if empty and empty * 10 >= len(pairs):
        warnings.append(f"{empty:,} of {len(pairs):,} hypotheses are empty: was every utterance recognised?")
    if rate is not None and rate > 0.5 and (by := line_shift(pairs[:_SHIFTED_PAIRS])):
        where = "after" if by > 0 else "before"
        warnings.append(
            f"hypotheses look shifted by one line: each fits the reference one line {where} its own much better"
        )
    return warnings


def is_spaceless(texts: Iterable[str]) -> bool:
    """Whether most of the text is of scripts without spaces between words, and its words are as long as sentences."""
    letters = num_words = num_spaceless = num_dense = 0
    for text in texts:
        num_words += len(text.split())
        for char in text:
            if not char.isspace():
                letters += 1
                num_spaceless += bool(_SPACELESS.match(char))
                num_dense += bool(_DENSE.match(char))
    longest = _DENSE_WORD_LETTERS if 2 * num_dense > num_spaceless else _WORD_LETTERS
    return bool(num_words) and 2 * num_spaceless > letters > longest * num_words


def line_shift(pairs: Sequence[tuple[str, str]]) -> int:
    """1 or -1 where hypotheses fit the reference line after or before theirs with less than half the errors; else 0."""
    if len(pairs) < 3:
        return 0
    references, hypotheses = [reference for reference, _ in pairs], [hypothesis for _, hypothesis in pairs]
    shifted = {1: zip(references[1:], hypotheses, strict=False), -1: zip(references, hypotheses[1:], strict=False)}
    limit = words.wer(pairs).errors / 2
    errors = {by: words.wer(shifted_pairs).errors for by, shifted_pairs in shifted.items()}
    best = min(errors, key=lambda by: errors[by])
    return best if errors[best] < limit else 0


def check_turns(
    reference: Sequence[RttmEvent],
    hypothesis: Sequence[RttmEvent],
    stretches: Sequence[ScoredRegion],
    length_ms: int | None = None,
) -> list[str]:
    """Warnings about the turns of one channel of one recording, one sentence each.

    `length_ms` is the duration of the recording, where known.
    """
    warnings = [
        f"the times of the {side} look like milliseconds, but RTTM has seconds: divide them by 1000"
        for side in in_milliseconds(reference, hypothesis)
    ]
    for side, marks in (("reference", reference), ("hypothesis", hypothesis)):
        turns = [mark for mark in marks if mark.kind == "SPEAKER"]
        for speaker in sorted({turn.speaker for turn in turns}):
            speaker_turns = [turn for turn in turns if turn.speaker == speaker]
            twice_us = speakers.self_overlap_us(speaker_turns)
            if twice_us >= _MIN_SELF_OVERLAP_US:
                warnings.append(
                    f"speaker `{speaker}` of the {side} overlaps with itself for {twice_us / 1e6:.2f} s, counted once"
                )
        if any(turn.start_us < 0 for turn in turns):
            warnings.append(f"the {side} has turns before the recording starts")
        if (
            length_ms is not None
            and (after_us := sum(_past_end_us(turn, length_ms) for turn in turns)) > _MAX_PAST_END_US
        ):
            warnings.append(
                f"{after_us / 1e6:.2f} s of the {side} are after the end of the recording: its last turn ends at"
                f" {max(turn.end_us for turn in turns) / 1e6:.2f} s, the audio at {length_ms / 1000:.2f} s"
            )
        if stretches and (beyond_us := sum(_outside_us(turn, stretches) for turn in turns)):
            warnings.append(f"{beyond_us / 1e6:.2f} s of the {side} are outside the regions of the UEM")
    if late_us := offset_us(reference, hypothesis):
        direction = "late" if late_us > 0 else "early"
        sides = (hypothesis, shift_turns(hypothesis, late_us))
        before, after = (
            f"{100 * (speakers.score_diarization(reference, marks).time.rate or 0):.2f} %" for marks in sides
        )
        warnings.append(
            f"the hypothesis seems to be {abs(late_us) / 1e6:.2f} s too {direction} throughout: moved by as much, its"
            f" DER is {after} instead of {before}"
        )
    return warnings


def in_milliseconds(reference: Sequence[RttmEvent], hypothesis: Sequence[RttmEvent]) -> list[str]:
    """The sides whose times are a thousand times too large: beside the other side, or for turns of speech."""
    turns = {
        side: [mark for mark in marks if mark.kind == "SPEAKER"]
        for side, marks in (("reference", reference), ("hypothesis", hypothesis))
    }
    ends_us = {side: max((turn.end_us for turn in of_side), default=0) for side, of_side in turns.items()}
    suspects = []
    for (side, of_side), other_end_us in zip(turns.items(), reversed(ends_us.values()), strict=True):
        lengths_us = [turn.end_us - turn.start_us for turn in of_side]
        are_whole = all(turn.start_us % 1_000_000 == turn.end_us % 1_000_000 == 0 for turn in of_side)
        is_far = 0 < other_end_us * _MIN_TIMES_LONGER <= ends_us[side]
        is_long = len(of_side) > 1 and statistics.median(lengths_us) >= _LONG_TURN_US
        if are_whole and (is_far or is_long):
            suspects.append(side)
    return suspects


def check_speaker_time(total: speakers.SpeakerTime) -> list[str]:
    """Warnings about a diarization error rate, one sentence each."""
    if total.rate is None:
        return ["there is no speech in the scored regions, so there is no error rate"]
    if total.rate == 0:
        return ["no errors at all: are reference and hypothesis the same file?"]
    if total.rate > 1:
        kinds = {
            "false alarm: are the times those of another recording, or in milliseconds?": total.false_alarm_us,
            "missed speech: do the names of recordings and channels agree?": total.missed_us,
            "confusion: is there one speaker for each turn?": total.confused_us,
        }
        return [f"more errors than speech; most of them are {max(kinds, key=lambda kind: kinds[kind])}"]
    return []


def offset_us(reference: Sequence[RttmEvent], hypothesis: Sequence[RttmEvent]) -> int:
    """Constant offset of the hypothesis in microseconds, positive where it is late, to 10 ms.

    0 where correcting it would not remove a quarter of the errors. It is the best lag of the cross-correlation between
    the numbers of active speakers.
    """
    reference_turns = [mark for mark in reference if mark.kind == "SPEAKER"]
    hypothesis_turns = [mark for mark in hypothesis if mark.kind == "SPEAKER"]
    if not reference_turns or not hypothesis_turns:
        return 0
    start_us = min(turn.start_us for turn in (*reference_turns, *hypothesis_turns))
    num_steps = (max(turn.end_us for turn in (*reference_turns, *hypothesis_turns)) - start_us) // _STEP_US + 1
    if num_steps > _MAX_STEPS:
        return 0
    padded = 1 << (2 * num_steps - 1).bit_length()
    reference_F = np.fft.rfft(_activity(reference_turns, start_us, num_steps), padded)
    hypothesis_F = np.fft.rfft(_activity(hypothesis_turns, start_us, num_steps), padded)
    match_L = np.fft.irfft(hypothesis_F * reference_F.conj(), padded)
    best = int(np.argmax(match_L))
    late_us = (best - padded if best > padded // 2 else best) * _STEP_US
    if abs(late_us) < _MIN_OFFSET_US:
        return 0
    before = speakers.score_diarization(reference_turns, hypothesis_turns).time
    after = speakers.score_diarization(reference_turns, shift_turns(hypothesis_turns, late_us)).time
    return late_us if 4 * after.errors_us < 3 * before.errors_us else 0


def shift_turns(marks: Sequence[RttmEvent], late_us: int) -> list[RttmEvent]:
    """Shift the marks earlier by `late_us`."""
    return [replace(mark, start_us=mark.start_us - late_us, end_us=mark.end_us - late_us) for mark in marks]


def _activity(turns: Sequence[RttmEvent], start_us: int, size: int) -> NDArray[np.float64]:
    """Number of active speakers at each step, less the mean."""
    change_T = np.zeros(size + 1)
    for turn in turns:
        change_T[(turn.start_us - start_us) // _STEP_US] += 1
        change_T[(turn.end_us - start_us) // _STEP_US] -= 1
    speaking_T: NDArray[np.float64] = np.cumsum(change_T)[:size]
    return speaking_T - float(speaking_T.mean())


def _past_end_us(turn: RttmEvent, length_ms: int) -> int:
    return max(0, turn.end_us - max(turn.start_us, 1000 * length_ms))


def _outside_us(turn: RttmEvent, stretches: Sequence[ScoredRegion]) -> int:
    inside = (min(turn.end_us, stretch.end_us) - max(turn.start_us, stretch.start_us) for stretch in stretches)
    return turn.end_us - turn.start_us - sum(max(0, overlap_us) for overlap_us in inside)
