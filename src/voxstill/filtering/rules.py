"""Filter rules: which labels are worth learning from, and why the others are not.

A rule is one `Rule` in `RULES`: a function of columns of scores (`measures.py`), so that a million labels are judged in
seconds and thresholds cost nothing to change. Rules are asked in order and the first that fires gives the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from voxstill.core.config import Filter
from voxstill.storage.arrays import numpy_array

if TYPE_CHECKING:
    import pyarrow as pa

Columns = Mapping[str, NDArray[Any]]
"""The fields of `Score`, and `share_surer`: the share of all labels that the teacher was surer of. NaN for None."""
Fires = NDArray[np.bool_]
Measure = Callable[[Columns], NDArray[Any]]
_FIRST_RULES = ("failed", "empty", "hallucination", "wrong_language", "too_many_words", "low_confidence")
"""Rules without a threshold in the first version of the table; the name of verdicts tells of those that came later."""
SHORT_CHARACTERS = 64
"""Shorter texts are not asked how well they compress: ten digits in a row are a telephone number and no loop."""


TIE_SHARE = 0.05
"""Labels of equal confidence are a tie where they make the share that is kept larger by more than this."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason to drop a label. `why` is a sentence for the report.

    `option` is the threshold in `Filter` that `measure` is held against, `min_...` from below and `max_...` from above;
    `voxstill filter --tune` tries other values of it. A rule without one has nothing to tune.
    """

    name: str
    function: Callable[[Columns, Filter], Fires]
    why: str
    measure: Measure | None = None
    option: str | None = None

    def fires(self, columns: Columns, cfg: Filter) -> Fires:
        """For each label whether it is dropped; what is not known drops nothing."""
        with np.errstate(invalid="ignore"):  # NaN compares as false, as it should
            return self.function(columns, cfg)


def column(name: str) -> Measure:
    """The measure that is a field of `Score` as it stands."""
    return lambda columns: columns[name]


def threshold(name: str, measure: Measure, option: str, why: str) -> Rule:
    """A rule that fires where a measure is below the option `min_...`, or above the option `max_...`."""
    compare = np.less if option.startswith("min_") else np.greater

    def function(columns: Columns, cfg: Filter) -> Fires:
        is_beyond: Fires = compare(measure(columns), getattr(cfg, option))
        return is_beyond

    return Rule(name, function, why, measure, option)


def chars_per_s(columns: Columns) -> NDArray[np.float64]:
    """Characters of the text to a second of audio."""
    rate_N: NDArray[np.float64] = columns["characters"] * 1000 / np.maximum(1, columns["duration_ms"])
    return rate_N


def _failed(columns: Columns, cfg: Filter) -> Fires:
    """The teacher gave up, or ran into its limit and may have lost the end."""
    is_unfinished_N: Fires = ~columns["finished"]
    return is_unfinished_N


def _empty(columns: Columns, cfg: Filter) -> Fires:
    """There is no letter or digit in it."""
    is_empty_N: Fires = columns["characters"] == 0
    return is_empty_N


def _hallucination(columns: Columns, cfg: Filter) -> Fires:
    """Nothing but phrases that teachers are known to hallucinate where nothing is said."""
    return columns["known_phrase"]


def _wrong_language(columns: Columns, cfg: Filter) -> Fires:
    """The label is of another language than the one that is spoken; where either is unknown, it does not fire."""
    return columns["other_language"]


def _high_compression(columns: Columns, cfg: Filter) -> Fires:
    """A long text that zlib shrinks too well: a loop of longer phrases."""
    is_long_N = columns["characters"] >= SHORT_CHARACTERS
    is_loop_N: Fires = is_long_N & (columns["compression_ratio"] > cfg.max_compression_ratio)
    return is_loop_N


def _too_many_words(columns: Columns, cfg: Filter) -> Fires:
    """More words than frames of the student, so CTC has no path."""
    has_no_path_N: Fires = columns["min_frames"] > np.maximum(1, columns["duration_ms"] // cfg.frame_ms)
    return has_no_path_N


def _low_confidence(columns: Columns, cfg: Filter) -> Fires:
    """The teacher is less sure than `min_confidence`, or than the share to keep; no confidence is no reason."""
    is_unsure_N: Fires = np.exp(columns["mean_logprob"]) < cfg.min_confidence
    return is_unsure_N | (columns["share_surer"] >= cfg.keep_share)


RULES: tuple[Rule, ...] = (
    Rule("failed", _failed, "the teacher failed, or reached its limit of tokens"),
    Rule("empty", _empty, "no letter or digit: nothing to learn"),
    Rule("hallucination", _hallucination, "a phrase that teachers hallucinate in silence"),
    Rule("wrong_language", _wrong_language, "the teacher detected another language than the one that is spoken"),
    threshold("too_slow", chars_per_s, "min_chars_per_s", "too few characters per second: words are missing"),
    threshold("too_fast", chars_per_s, "max_chars_per_s", "too many characters per second: nobody speaks that fast"),
    threshold("repeated", column("repeats"), "max_repeats", "one phrase many times in a row: a loop of the teacher"),
    Rule(
        "high_compression",
        _high_compression,
        "the text compresses too well: a loop of longer phrases",
        column("compression_ratio"),
        "max_compression_ratio",
    ),
    threshold(
        "long_word",
        column("longest_word"),
        "max_word_characters",
        "a word that is too long: a loop of the teacher",
    ),
    Rule("too_many_words", _too_many_words, "more words than frames of the student: CTC has no path"),
    threshold(
        "disagreement",
        column("disagreement"),
        "max_disagreement",
        "a second teacher disagrees: one of them is wrong",
    ),
    threshold(
        "badly_aligned",
        column("alignment"),
        "min_alignment",
        "the words do not fit the audio in forced alignment",
    ),
    Rule("low_confidence", _low_confidence, "low confidence of the teacher: wrong more often than the rest"),
)
"""Every rule in the order asked."""
NAMES = tuple(rule.name for rule in RULES)
OLD_NAMES: Mapping[str, str] = {"made_up": "hallucination", "too_regular": "high_compression"}
"""Names of rules in verdicts of earlier releases."""


def added_rules() -> list[str]:
    """Names of the rules without an option that the first version did not have: they alone can change verdicts."""
    return sorted(rule.name for rule in RULES if rule.option is None and rule.name not in _FIRST_RULES)


def current_name(name: str) -> str:
    """The name of a rule today, by that which a table of verdicts has."""
    return OLD_NAMES.get(name, name)


def rule_of(name: str) -> Rule:
    """The rule of a name, of today or of an earlier release."""
    return RULES[NAMES.index(current_name(name))]


def judge(scores: pa.Table, cfg: Filter, confidences: Confidences | None = None) -> NDArray[np.int8]:
    """Judge each row of an Arrow table of scores: the first rule that fires, as its index in `NAMES`, or -1; pure.

    `confidences` are those of all labels that are judged; without them the table holds all that there are.
    """
    confidences = confidences or Confidences(numpy_array(scores["mean_logprob"]))
    columns = columns_of(scores, confidences)
    first_N = np.full(len(scores), -1, np.int8)
    for index, rule in enumerate(RULES):
        first_N[(first_N < 0) & rule.fires(columns, cfg)] = index
    return first_N


def columns_of(scores: pa.Table, confidences: Confidences) -> dict[str, NDArray[Any]]:
    """What the rules look at, of an Arrow table of scores.

    No threshold drops what is not known, which is null. A NaN is not a measure: a label with one counts as unfinished.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = {name: numpy_array(scores[name]) for name in scores.column_names}
    for name in (field.name for field in scores.schema if pa.types.is_floating(field.type)):
        columns["finished"] = columns["finished"] & ~numpy_array(pc.is_nan(scores[name]).fill_null(False))
    return columns | {"share_surer": confidences.share_surer(columns["mean_logprob"])}


@dataclass(frozen=True, slots=True)
class Tie:
    """Labels of equal confidence that are kept together, and make the share that is kept larger than the one set."""

    kept: float
    """The share of the labels with a confidence that is kept."""
    confidence: float
    """Of the labels that are tied, the least sure that are kept."""
    num: int
    next_confidence: float | None
    """The `min_confidence` that drops them and nothing that is surer; None where nothing is."""
    next_kept: float
    """The share that is kept with it."""


class Confidences:
    """The mean log-probabilities of all labels, NaN where there is none: 8 bytes for each that has one."""

    def __init__(self, logprob_N: NDArray[np.float64]) -> None:
        self._sorted_K = np.sort(logprob_N[~np.isnan(logprob_N)])

    def share_surer(self, logprob_N: NDArray[np.float64]) -> NDArray[np.float64]:
        """For each the share of all known ones that is surer, NaN where it is unknown: equals fall together."""
        num = len(self._sorted_K)
        surer_N = (num - self._sorted_K.searchsorted(logprob_N, side="right")) / max(1, num)
        return np.where(np.isnan(logprob_N), math.nan, surer_N)

    def tie(self, cfg: Filter) -> Tie | None:
        """The labels that are kept beyond `keep_share` because others are as sure; None where they are few."""
        num = len(self._sorted_K)
        confidence_K = np.exp(self._sorted_K)
        is_kept_K = (self.share_surer(self._sorted_K) < cfg.keep_share) & (confidence_K >= cfg.min_confidence)
        kept_K = confidence_K[is_kept_K]
        if len(kept_K) - math.ceil(cfg.keep_share * num - 1e-9) <= TIE_SHARE * num:
            return None
        num_tied = int(kept_K.searchsorted(kept_K[0], side="right"))
        surer_K = kept_K[num_tied:]
        return Tie(
            kept=len(kept_K) / num,
            confidence=float(kept_K[0]),
            num=num_tied,
            next_confidence=threshold_between(float(kept_K[0]), float(surer_K[0])) if len(surer_K) else None,
            next_kept=len(surer_K) / num,
        )


def threshold_between(low: float, high: float) -> float:
    """The number of the fewest decimals that is above `low` and at most `high`."""
    for decimals in range(1, 16):
        rounded: float = math.floor(high * 10**decimals) / 10.0**decimals
        if low < rounded <= high:
            return rounded
    return high


def count_reasons(first_N: NDArray[np.int8]) -> dict[str, int]:
    """How many labels each rule dropped, in the order of `RULES`, zeros included."""
    dropped_R = np.bincount(first_N[first_N >= 0], minlength=len(NAMES))
    return dict(zip(NAMES, dropped_R.tolist(), strict=True))
