"""Which labels are worth learning from, and why the others are not.

A rule is one function of columns of scores (`scores.py`), so that a million labels are judged in seconds and thresholds
cost nothing to change. Rules are asked in order and the first that fires gives the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxstill import tables
from voxstill.config import Filter
from voxstill.records import Score, Verdict
from voxstill.store import Store

Columns = Mapping[str, NDArray[Any]]
"""The fields of `Score`, and `share_surer`: the share of all labels that the teacher was surer of. NaN for None."""
Fires = NDArray[np.bool_]
SPLITS = ("train", "dev")
"""Splits whose labels are learnt from, or stopped on; of `test` nothing is."""
SHORT_CHARACTERS = 64
"""Shorter texts are not asked how well they compress: ten digits in a row are a telephone number and no loop."""
ROWS = 65_536
"""Of a part of verdicts."""


def failed(of: Columns, cfg: Filter) -> Fires:
    """The teacher gave up, or ran into its limit and may have lost the end."""
    fires: Fires = ~of["finished"]
    return fires


def empty(of: Columns, cfg: Filter) -> Fires:
    """There is no letter or digit in it."""
    fires: Fires = of["characters"] == 0
    return fires


def made_up(of: Columns, cfg: Filter) -> Fires:
    """Nothing but phrases that teachers are known to make up where nothing is said."""
    return of["known_phrase"]


def wrong_language(of: Columns, cfg: Filter) -> Fires:
    """The teacher heard another language than the one that is spoken; where either is unknown, nothing is said."""
    return of["other_language"]


def too_slow(of: Columns, cfg: Filter) -> Fires:
    """So few characters a second that words must be missing."""
    return chars_per_s(of) < cfg.min_chars_per_s


def too_fast(of: Columns, cfg: Filter) -> Fires:
    """More characters a second than anyone speaks."""
    return chars_per_s(of) > cfg.max_chars_per_s


def repeated(of: Columns, cfg: Filter) -> Fires:
    """A phrase of one to four words comes too often in a row: the teacher ran in a loop."""
    return of["repeats"] > cfg.max_repeats


def too_regular(of: Columns, cfg: Filter) -> Fires:
    """A long text that zlib shrinks too well: a loop of longer phrases."""
    fires: Fires = (of["characters"] >= SHORT_CHARACTERS) & (of["compression_ratio"] > cfg.max_compression_ratio)
    return fires


def long_word(of: Columns, cfg: Filter) -> Fires:
    """A word longer than words are: syllables in a loop, or words grown together."""
    return of["longest_word"] > cfg.max_word_characters


def too_many_words(of: Columns, cfg: Filter) -> Fires:
    """More words than frames of the student, so CTC has no path."""
    fires: Fires = of["min_frames"] > np.maximum(1, of["duration_ms"] // cfg.frame_ms)
    return fires


def disagreement(of: Columns, cfg: Filter) -> Fires:
    """A second teacher heard other words; where it has no label, or failed, nothing is said."""
    fires: Fires = of["disagreement"] > cfg.max_disagreement
    return fires


def badly_aligned(of: Columns, cfg: Filter) -> Fires:
    """A CTC model hears other words in the audio; what it cannot write is no reason."""
    fires: Fires = of["alignment"] < cfg.min_alignment
    return fires


def low_confidence(of: Columns, cfg: Filter) -> Fires:
    """The teacher is less sure than `min_confidence`, or than the share to keep; no confidence is no reason."""
    return (np.exp(of["mean_logprob"]) < cfg.min_confidence) | (of["share_surer"] >= cfg.keep_share)


Rule = Callable[[Columns, Filter], Fires]
RULES: dict[str, tuple[Rule, str]] = {
    "failed": (failed, "the teacher gave up, or ran into its limit"),
    "empty": (empty, "no letter or digit: nothing to learn from"),
    "made_up": (made_up, "a phrase that teachers make up where nothing is said"),
    "wrong_language": (wrong_language, "the teacher heard another language than the one that is spoken"),
    "too_slow": (too_slow, "too few characters a second: words are missing"),
    "too_fast": (too_fast, "too many characters a second: nobody said all that"),
    "repeated": (repeated, "one phrase many times in a row: the teacher ran in a loop"),
    "too_regular": (too_regular, "the text compresses too well: a loop of longer phrases"),
    "long_word": (long_word, "a word longer than words are: the teacher ran in a loop"),
    "too_many_words": (too_many_words, "more words than frames of the student: CTC has no path"),
    "disagreement": (disagreement, "a second teacher heard something else: one of them is wrong"),
    "badly_aligned": (badly_aligned, "the words do not fit the audio, as the aligner hears it"),
    "low_confidence": (low_confidence, "the teacher was not sure: wrong more often than the rest"),
}
"""Every rule in the order asked, with what it finds and why that matters."""
NAMES = tuple(RULES)


def judge(scores: Any, cfg: Filter, confidences: Confidences | None = None) -> NDArray[np.int8]:
    """For each row of an Arrow table of scores the first rule that fired, as its place in `NAMES`, or -1; pure.

    `confidences` are those of all labels that are judged; without them the table holds all that there are.
    """
    confidences = confidences or Confidences(scores["mean_logprob"].to_numpy())
    of = {name: scores[name].to_numpy() for name in scores.column_names}
    of["share_surer"] = confidences.share_surer(of["mean_logprob"])
    first_N = np.full(len(scores), -1, np.int8)
    with np.errstate(invalid="ignore"):  # what is not known compares as false, as it should
        for place, (fires, _) in enumerate(RULES.values()):
            first_N[(first_N < 0) & fires(of, cfg)] = place
    return first_N


class Confidences:
    """The mean log-probabilities of all labels, NaN where there is none: 8 bytes for each that has one."""

    def __init__(self, logprob_N: NDArray[np.float64]) -> None:
        self._sorted_K = np.sort(logprob_N[~np.isnan(logprob_N)])

    def share_surer(self, logprob_N: NDArray[np.float64]) -> NDArray[np.float64]:
        """For each the share of all known ones that is surer, NaN where it is unknown: equals fall together."""
        num = len(self._sorted_K)
        surer_N = (num - self._sorted_K.searchsorted(logprob_N, side="right")) / max(1, num)
        return np.where(np.isnan(logprob_N), math.nan, surer_N)


def reasons(first_N: NDArray[np.int8]) -> dict[str, int]:
    """How many labels each rule dropped, in the order of `RULES`, zeros included."""
    dropped_R = np.bincount(first_N[first_N >= 0], minlength=len(NAMES))
    return dict(zip(NAMES, dropped_R.tolist(), strict=True))


# ------------------------------------------------------------------------------------------------------------ the table


@dataclass(slots=True)
class Counts:
    """What was found. `words` are those of the human texts, `errors` those of the labels against them."""

    judged: int = 0
    judged_ms: int = 0
    kept: int = 0
    kept_ms: int = 0
    texts: int = 0
    words: int = 0
    errors: int = 0
    kept_words: int = 0
    kept_errors: int = 0

    def add(self, scores: Any, first_N: NDArray[np.int8]) -> None:
        """The rows of a table of scores, with what was judged of them."""
        of = {name: scores[name].to_numpy() for name in ("duration_ms", "reference_words", "errors")}
        kept_N, known_N = first_N < 0, ~np.isnan(of["reference_words"].astype(float))
        self.judged += len(first_N)
        self.judged_ms += int(of["duration_ms"].sum())
        self.kept += int(kept_N.sum())
        self.kept_ms += int(of["duration_ms"][kept_N].sum())
        self.texts += int(known_N.sum())
        self.words += int(of["reference_words"][known_N].sum())
        self.errors += int(of["errors"][known_N].sum())
        self.kept_words += int(of["reference_words"][known_N & kept_N].sum())
        self.kept_errors += int(of["errors"][known_N & kept_N].sum())


def write(work: Store, scores: str, verdicts: str, recipe: str, cfg: Filter, *, errors: bool) -> dict[str, Any]:
    """Every score below the prefix `scores` has its verdict below `verdicts`; the figures of all.

    Parts are written once: who is ended and begins again writes the same. Error rates, if at all, where somebody wrote
    down what was said.
    """
    import pyarrow as pa

    keys = tables.parts(work, scores)
    narrow = (_judged(each)["mean_logprob"].to_numpy() for each in _read(work, keys, ("split", "mean_logprob")))
    confidences = Confidences(np.concatenate([np.zeros(0), *narrow]))
    counts, dropped_R = Counts(), np.zeros(len(NAMES), np.int64)
    for number, table in enumerate(_gathered(map(_judged, _read(work, keys)), ROWS)):
        first_N = judge(table, cfg, confidences)
        counts.add(table, first_N)
        dropped_R += list(reasons(first_N).values())
        why = pa.DictionaryArray.from_arrays(pa.array(first_N, mask=first_N < 0), pa.array(NAMES))
        named = {
            "utterance_id": table["utterance_id"],
            "recipe": pa.repeat(recipe, len(table)),
            "kept": first_N < 0,
            "reason": why.cast(pa.string()),
        }
        part = pa.table(named, schema=tables.schema(Verdict))
        work.create(f"{verdicts}/{number:05}.parquet", tables.of_arrow(part))
    return figures(counts, dict(zip(NAMES, dropped_R.tolist(), strict=True)), errors=errors)


def figures(counts: Counts, dropped: Mapping[str, int], *, errors: bool) -> dict[str, Any]:
    """The counts as they are told."""
    told: dict[str, Any] = {
        "judged": counts.judged,
        "kept_utterances": counts.kept,
        "kept": counts.kept / counts.judged if counts.judged else 0.0,
        "kept_hours": counts.kept_ms / 3_600_000,
        "reasons": dict(dropped),
    }
    if errors and counts.texts:
        told["wer_before"] = counts.errors / counts.words if counts.words else None
        told["wer_after"] = counts.kept_errors / counts.kept_words if counts.kept_words else None
    return told


def _read(work: Store, keys: Iterable[str], names: Sequence[str] | None = None) -> Iterator[Any]:
    return tables.columns(work, keys, Score, names)


def _judged(scores: Any) -> Any:
    """The rows of the splits that are judged."""
    import pyarrow.compute as pc

    return scores.filter(pc.is_in(scores["split"], value_set=_splits()))


def _splits() -> Any:
    import pyarrow as pa

    return pa.array(SPLITS)


def _gathered(some: Iterable[Any], rows: int) -> Iterator[Any]:
    """The rows of the tables in their order, in tables of at least so many, the last but for it."""
    import pyarrow as pa

    waiting: list[Any] = []
    for each in some:
        waiting.append(each)
        if sum(map(len, waiting)) >= rows:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def chars_per_s(of: Columns) -> NDArray[np.float64]:
    """Characters of the text to a second of audio."""
    found: NDArray[np.float64] = of["characters"] * 1000 / np.maximum(1, of["duration_ms"])
    return found
