"""Which labels are worth learning from, why the others are not, and every measure that was looked at.

A rule is one function of a label and its measures. Rules are asked in order and the first that fires gives the reason.
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from voxstill.config import Filter
from voxstill.errors import DataError
from voxstill.records import Label, Verdict
from voxstill.text.normalize import basic, characters, units

Measures = Mapping[str, float]
LONGEST_PHRASE = 4
SHORT_CHARACTERS = 64
"""Shorter texts are not asked how well they compress: ten digits in a row are a telephone number and no loop."""


def failed(label: Label, measures: Measures, cfg: Filter) -> bool:
    """The teacher gave up, or ran into its limit and may have lost the end."""
    return label.error is not None or label.finish != "stop"


def empty(label: Label, measures: Measures, cfg: Filter) -> bool:
    """There is no letter or digit in it."""
    return not measures["characters"]


def too_slow(label: Label, measures: Measures, cfg: Filter) -> bool:
    """So few characters a second that words must be missing."""
    return measures["chars_per_s"] < cfg.min_chars_per_s


def too_fast(label: Label, measures: Measures, cfg: Filter) -> bool:
    """More characters a second than anyone speaks."""
    return measures["chars_per_s"] > cfg.max_chars_per_s


def repeated(label: Label, measures: Measures, cfg: Filter) -> bool:
    """A phrase of one to four words comes too often in a row: the teacher ran in a loop."""
    return measures["repeats"] > cfg.max_repeats


def too_regular(label: Label, measures: Measures, cfg: Filter) -> bool:
    """A long text that zlib shrinks too well: a loop of longer phrases."""
    return measures["characters"] >= SHORT_CHARACTERS and measures["compression_ratio"] > cfg.max_compression_ratio


def too_many_words(label: Label, measures: Measures, cfg: Filter) -> bool:
    """More words than frames of the student, so CTC has no path."""
    return measures["words_per_frame"] > 1


def low_confidence(label: Label, measures: Measures, cfg: Filter) -> bool:
    """The teacher is less sure than `min_confidence`, or than the share to keep; no confidence is no reason."""
    if "confidence" not in measures:
        return False
    return measures["confidence"] < cfg.min_confidence or measures["share_surer"] >= cfg.keep_share


Rule = Callable[[Label, Measures, Filter], bool]
RULES: dict[str, tuple[Rule, str]] = {
    "failed": (failed, "the teacher gave up, or ran into its limit"),
    "empty": (empty, "no letter or digit: nothing to learn from"),
    "too_slow": (too_slow, "too few characters a second: words are missing"),
    "too_fast": (too_fast, "too many characters a second: nobody said all that"),
    "repeated": (repeated, "one phrase many times in a row: the teacher ran in a loop"),
    "too_regular": (too_regular, "the text compresses too well: a loop of longer phrases"),
    "too_many_words": (too_many_words, "more words than frames of the student: CTC has no path"),
    "low_confidence": (low_confidence, "the teacher was not sure: wrong more often than the rest"),
}
"""Every rule in the order asked, with what it finds and why that matters."""


def judge(labels: Sequence[Label], durations_ms: Mapping[str, int], cfg: Filter, recipe: str) -> list[Verdict]:
    """One verdict for each label, in order, with the first rule that fired and every measure; pure and deterministic.

    `durations_ms` maps utterance ids to lengths; DataError where one is missing.
    """
    share_surer = _shares_surer(labels)
    verdicts = []
    for label in labels:
        measured = dict(_measures(label, _duration_ms(label, durations_ms), cfg.frame_ms))
        sure = label.mean_logprob
        if sure is not None and not math.isnan(sure):
            measured |= {"confidence": math.exp(sure), "share_surer": share_surer[sure]}
        reason = next((name for name, (fires, _) in RULES.items() if fires(label, measured, cfg)), None)
        verdicts.append(
            Verdict(
                utterance_id=label.utterance_id, recipe=recipe, kept=reason is None, reason=reason, measures=measured
            )
        )
    return verdicts


def reasons(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """How many labels each rule dropped, in the order of `RULES`, zeros included."""
    dropped = Counter(verdict.reason for verdict in verdicts)
    return {name: dropped[name] for name in RULES}


def _measures(label: Label, duration_ms: int, frame_ms: int) -> Iterator[tuple[str, float]]:
    text = basic(label.text)
    said = units(text)
    frames = max(1, duration_ms // frame_ms)
    again = sum(a == b for a, b in pairwise(said))  # CTC puts a blank between equal neighbours
    yield "characters", float(len(characters(text)))
    yield "words", float(len(said))
    yield "chars_per_s", len(characters(text)) * 1000 / max(1, duration_ms)
    yield "repeats", float(_repeats(said))
    yield "compression_ratio", _compression_ratio(text)
    yield "words_per_frame", (len(said) + again) / frames


def _repeats(said: Sequence[str]) -> int:
    """Most times in a row that one phrase of up to four words is said."""
    if len(set(said)) == len(said):
        return min(1, len(said))
    most = 1
    for length in range(1, LONGEST_PHRASE + 1):
        run = 0
        for now, before in zip(said[length:], said, strict=False):
            run = run + 1 if now == before else 0
            most = max(most, run // length + 1)
    return most


def _compression_ratio(text: str) -> float:
    """Size before over size after zlib, one byte to a character where 256 will do.

    UTF-8 would spend three bytes on a Hindi letter, two of them always the same, and call every Hindi text a loop.
    """
    codes = {char: code for code, char in enumerate(dict.fromkeys(text))}
    plain = bytes(map(codes.__getitem__, text)) if len(codes) <= 256 else text.encode("utf-16-le")
    return len(plain) / len(zlib.compress(plain))


def _shares_surer(labels: Iterable[Label]) -> dict[float, float]:
    """For each mean log-probability, the share of the labels with one that are surer: equals stand or fall together."""
    known = sorted(sure for label in labels if (sure := label.mean_logprob) is not None and not math.isnan(sure))
    return {logprob: (len(known) - bisect_right(known, logprob)) / len(known) for logprob in set(known)}


def _duration_ms(label: Label, durations_ms: Mapping[str, int]) -> int:
    try:
        return durations_ms[label.utterance_id]
    except KeyError:
        raise DataError(
            f"label `{label.utterance_id}` belongs to no known utterance",
            why="the index was made anew after the labels",
            fix="run `voxstill label` again",
        ) from None
