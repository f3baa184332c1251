"""Which labels are worth learning from, why the others are not, and every measure that was looked at.

A rule is one function of a label and its measures. Rules are asked in order and the first that fires gives the reason.

`judge` is pure. Around it, the unit of work is a part of the table of utterances with its labels: a worker writes one
part of verdicts for it, which has the name of the part of utterances. So a filter that was ended goes on where it was.
"""

from __future__ import annotations

import math
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from voxstill import tables
from voxstill.config import Filter
from voxstill.errors import DataError, StorageError
from voxstill.factory import engine, join
from voxstill.records import ErrorCounts, Label, Utterance, Verdict
from voxstill.score import words
from voxstill.store import Store
from voxstill.text.normalize import basic, characters, normalizer, units

Measures = Mapping[str, float]
SPLITS = ("train", "dev")
"""Splits whose labels are learnt from, or stopped on; of `test` nothing is."""
LONGEST_PHRASE = 4
_SAID = ("id", "recording_id", "uri", "start_ms", "end_ms", "split", "text")
_HEARD = ("utterance_id", "recipe", "teacher", "text", "mean_logprob", "finish", "error")
Row = TypeVar("Row")
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


def judge(
    labels: Sequence[Label],
    durations_ms: Mapping[str, int],
    cfg: Filter,
    recipe: str,
    shares_surer: Mapping[float, float] | None = None,
) -> list[Verdict]:
    """One verdict for each label, in order, with the first rule that fired and every measure; pure and deterministic.

    `durations_ms` maps utterance ids to lengths; DataError where one is missing. `shares_surer` maps mean
    log-probabilities to the share of labels that are surer; without it `labels` are all that there are.
    """
    if shares_surer is None:
        every = Confidences([label.mean_logprob for label in labels])
        shares_surer = every.shares_surer(0, len(labels))
    verdicts = []
    for label in labels:
        measured = dict(_measures(label, _duration_ms(label, durations_ms), cfg.frame_ms))
        sure = label.mean_logprob
        if sure is not None and not math.isnan(sure):
            measured |= {"confidence": math.exp(sure), "share_surer": shares_surer[sure]}
        reason = next((name for name, (fires, _) in RULES.items() if fires(label, measured, cfg)), None)
        verdicts.append(
            Verdict(
                utterance_id=label.utterance_id, recipe=recipe, kept=reason is None, reason=reason, measures=measured
            )
        )
    return verdicts


class Confidences:
    """The mean log-probabilities of all labels in their order, NaN where there is none: 16 bytes for each label."""

    def __init__(self, logprobs: Iterable[float | None]) -> None:
        self._logprob_N = np.fromiter((math.nan if each is None else each for each in logprobs), np.float64)
        self._sorted_K = np.sort(self._logprob_N[~np.isnan(self._logprob_N)])

    def __len__(self) -> int:
        return len(self._logprob_N)

    def shares_surer(self, start: int, stop: int) -> dict[float, float]:
        """For each value within a stretch of the labels the share of all known ones that is surer: equals stand or
        fall together.
        """
        some_U = np.unique(self._logprob_N[start:stop])
        some_U = some_U[~np.isnan(some_U)]
        surer_U = len(self._sorted_K) - self._sorted_K.searchsorted(some_U, side="right")
        return dict(zip(some_U.tolist(), (surer_U / max(1, len(self._sorted_K))).tolist(), strict=True))


def reasons(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """How many labels each rule dropped, in the order of `RULES`, zeros included."""
    dropped = Counter(verdict.reason for verdict in verdicts)
    return {name: dropped[name] for name in RULES}


# ------------------------------------------------------------------------------------------------ a table, part by part


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of utterances to be judged; `shares_surer` says of each confidence in it where it stands among all."""

    part: join.Part
    shares_surer: Mapping[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What was found in one part. `before` and `after` are the errors of all labels and of those kept."""

    judged: int
    judged_ms: int
    kept: int
    kept_ms: int
    reasons: Mapping[str, int]
    texts: int
    """Utterances with a human text."""
    before: ErrorCounts
    after: ErrorCounts


def plan(work: Store, parts: Sequence[join.Part]) -> Iterator[engine.Chunk]:
    """One unit for each part, under the name of its verdicts; first, the confidences of all labels are read."""
    bounds = array("q", [0])

    def logprobs() -> Iterator[float | None]:
        for said, heard in join.columns(work, parts, ("id", "split"), ("utterance_id", "mean_logprob")):
            judged = (id_ for id_, split in zip(*_lists(said, "id", "split"), strict=True) if split in SPLITS)
            labelled, found = _lists(heard, "utterance_id", "mean_logprob")
            rows = [row for row in join.rows_of(list(judged), labelled) if row is not None]
            bounds.append(bounds[-1] + len(rows))
            yield from (found[row] for row in rows)

    confidences = Confidences(logprobs())
    for part, (start, stop) in zip(parts, pairwise(bounds), strict=True):
        yield engine.Chunk(part.name, (Unit(part, confidences.shares_surer(start, stop)),))


@dataclass(frozen=True, slots=True)
class Judge:
    """Makes the work of a process that writes verdicts below `prefix`; `normal` names how words are compared."""

    work: Store
    prefix: str
    recipe: str
    cfg: Filter
    normal: str

    def __call__(self) -> Callable[[Sequence[Unit], Any], list[Counts | DataError]]:
        """The work: the counts of each unit, or what is wrong with its tables, which no other worker could mend."""

        def work(units: Sequence[Unit], _: Any) -> list[Counts | DataError]:
            rows: list[Counts | DataError] = []
            for unit in units:
                try:
                    rows.append(self.judge_part(unit))
                except DataError as error:
                    rows.append(error)
            return rows

        return work

    def judge_part(self, unit: Unit) -> Counts:
        """Write the verdicts of a unit unless they are there already, in the order of its utterances; count them."""
        part, key = unit.part, f"{self.prefix}/{unit.part.name}.parquet"
        utterances = [each for each in self._read(part.utterances, Utterance, _SAID) if each.split in SPLITS]
        heard: dict[str, Label] = {}
        for each in part.labels:
            for label in self._read(each, Label, _HEARD):
                heard.setdefault(label.utterance_id, label)
        labels = [heard[each.id] for each in utterances if each.id in heard]
        durations_ms = {each.id: each.duration_ms for each in utterances}
        if self.work.exists(key):
            verdicts = self._read(key, Verdict, ("utterance_id", "recipe", "kept", "reason"))
        else:
            verdicts = judge(labels, durations_ms, self.cfg, self.recipe, unit.shares_surer)
            self.work.create(key, tables.to_parquet(verdicts, Verdict))
        kept = {verdict.utterance_id for verdict in verdicts if verdict.kept}
        texts = {each.id: each.text for each in utterances if each.text is not None}
        alike = normalizer(self.normal)
        errors = {
            each.utterance_id: words.wer([(alike(texts[each.utterance_id]), alike(each.text))])
            for each in labels
            if each.utterance_id in texts
        }
        return Counts(
            judged=len(verdicts),
            judged_ms=sum(durations_ms[verdict.utterance_id] for verdict in verdicts),
            kept=len(kept),
            kept_ms=sum(durations_ms[id_] for id_ in kept),
            reasons=reasons(verdicts),
            texts=len(texts),
            before=ErrorCounts.sum(errors.values()),
            after=ErrorCounts.sum(found for id_, found in errors.items() if id_ in kept),
        )

    def _read(self, key: str, kind: type[Row], names: Sequence[str] | None = None) -> list[Row]:
        return tables.from_parquet(self.work.read(key), kind, self.work.uri(key), names)


def set_aside(unit: Unit, reason: str) -> Counts:
    """A part that could not be judged stops the step: without it the corpus would be silently smaller."""
    raise StorageError(
        f"the labels of `{unit.part.utterances}` cannot be judged",
        why=reason,
        fix="check the storage and run `voxstill filter` again; it goes on where it stopped",
    )


def figures(counts: Sequence[Counts], *, errors: bool) -> dict[str, Any]:
    """The counts of all parts as they are told; error rates, if at all, where somebody wrote down what was said."""
    judged, kept = sum(each.judged for each in counts), sum(each.kept for each in counts)
    told: dict[str, Any] = {
        "judged": judged,
        "kept_utterances": kept,
        "kept": kept / judged if judged else 0.0,
        "kept_hours": sum(each.kept_ms for each in counts) / 3_600_000,
        "reasons": {name: sum(each.reasons[name] for each in counts) for name in RULES},
    }
    if errors and any(each.texts for each in counts):
        told["wer_before"] = ErrorCounts.sum(each.before for each in counts).rate
        told["wer_after"] = ErrorCounts.sum(each.after for each in counts).rate
    return told


# ------------------------------------------------------------------------------------------------------------- measures


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


def _lists(table: Any, *names: str) -> list[list[Any]]:
    return [table[name].to_pylist() for name in names]


def _duration_ms(label: Label, durations_ms: Mapping[str, int]) -> int:
    try:
        return durations_ms[label.utterance_id]
    except KeyError:
        raise DataError(
            f"label `{label.utterance_id}` belongs to no known utterance",
            why="the index was made anew after the labels",
            fix="run `voxstill label` again",
        ) from None
