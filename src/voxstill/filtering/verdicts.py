"""Verdicts: judge every score by the rules, write the table, and count what was dropped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from voxstill.core.config import Filter
from voxstill.core.records import Verdict
from voxstill.filtering.measures import Score
from voxstill.filtering.rules import NAMES, Confidences, Tie, count_reasons, current_name, judge
from voxstill.storage import manifest, tables, workdir
from voxstill.storage.arrays import numpy_array
from voxstill.storage.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

SPLITS = ("train", "dev")
"""Splits whose labels are learnt from, or stopped on; of `test` nothing is."""
ROWS = 65_536
"""Of a part of verdicts."""
Judged = tuple[bool | None, str | None]
"""Whether a label was kept and why not; None if it was not judged, as those of the test split are not."""


@dataclass(slots=True)
class Counts:
    """Labels judged and kept; `words` are those of the human texts, `errors` those of the labels against them."""

    judged: int = 0
    kept: int = 0
    kept_ms: int = 0
    texts: int = 0
    words: int = 0
    errors: int = 0
    kept_words: int = 0
    kept_errors: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Why labels were dropped, and how many."""
    tie: Tie | None = None
    """Labels of equal confidence that make the share that is kept larger."""

    @property
    def share(self) -> float:
        """Of the judged labels those that were kept."""
        return self.kept / self.judged if self.judged else 0.0

    @property
    def wer(self) -> float | None:
        """Word error rate of all labels against human texts; None if there are no words."""
        return self.errors / self.words if self.words else None

    @property
    def kept_wer(self) -> float | None:
        """The same of the labels that were kept."""
        return self.kept_errors / self.kept_words if self.kept_words else None

    def add(self, scores: pa.Table, first_N: NDArray[np.int8]) -> None:
        """The rows of a table of scores, with what was judged of them."""
        columns = {name: numpy_array(scores[name]) for name in ("duration_ms", "reference_words", "errors")}
        kept_N, known_N = first_N < 0, ~np.isnan(columns["reference_words"].astype(float))
        self.judged += len(first_N)
        self.kept += int(kept_N.sum())
        self.kept_ms += int(columns["duration_ms"][kept_N].sum())
        self.texts += int(known_N.sum())
        self.words += int(columns["reference_words"][known_N].sum())
        self.errors += int(columns["errors"][known_N].sum())
        self.kept_words += int(columns["reference_words"][known_N & kept_N].sum())
        self.kept_errors += int(columns["errors"][known_N & kept_N].sum())


def write_verdicts(work: Store, scores: str, verdicts: str, recipe: str, cfg: Filter) -> Counts:
    """Judge every score below the prefix `scores` and write the verdicts below `verdicts`; returns the counts.

    Parts are written once: who is ended and begins again writes the same.
    """
    import pyarrow as pa

    keys = manifest.parts(work, scores)
    parts = _read(work, keys, ("split", "mean_logprob"))
    logprobs = (numpy_array(_judged(part)["mean_logprob"]) for part in parts)
    confidences = Confidences(np.concatenate([np.zeros(0), *logprobs]))
    counts, dropped_R = Counts(tie=confidences.tie(cfg)), np.zeros(len(NAMES), np.int64)
    for number, table in enumerate(_gathered(map(_judged, _read(work, keys)), ROWS)):
        first_N = judge(table, cfg, confidences)
        counts.add(table, first_N)
        dropped_R += list(count_reasons(first_N).values())
        reason = pa.DictionaryArray.from_arrays(pa.array(first_N, mask=first_N < 0), pa.array(NAMES))
        columns = {
            "utterance_id": table["utterance_id"],
            "recipe": pa.repeat(recipe, len(table)),
            "kept": first_N < 0,
            "reason": reason.cast(pa.string()),
        }
        part = pa.table(columns, schema=tables.schema(Verdict))
        work.create(f"{verdicts}/{number:05}.parquet", tables.arrow_to_parquet(part))
    counts.reasons = dict(zip(NAMES, dropped_R.tolist(), strict=True))
    return counts


class VerdictMap:
    """All verdicts of a recipe by the id of their utterance, 20 bytes for each."""

    def __init__(self, work: Store, recipe: str) -> None:
        self._reasons: list[Judged] = []
        parts = manifest.parts(work, workdir.prefix("verdicts", recipe))
        self._places = tables.IdMap(
            ids for table in tables.columns(work, parts, Verdict) for ids in self._by_reason(table)
        )

    def _by_reason(self, table: pa.Table) -> Iterator[list[str]]:
        """The ids of each reason in a part; what they stand for is noted in `_reasons`."""
        by_reason: dict[Judged, list[str]] = {}
        columns = (table[name].to_pylist() for name in ("utterance_id", "kept", "reason"))
        for id_, is_kept, reason in zip(*columns, strict=True):
            by_reason.setdefault((is_kept, None if reason is None else current_name(reason)), []).append(id_)
        self._reasons += by_reason
        yield from by_reason.values()

    def of(self, ids: Sequence[str]) -> list[Judged]:
        """Whether each label was kept and why not."""
        return [(None, None) if place < 0 else self._reasons[place] for place in self._places.of(ids).tolist()]


def _read(work: Store, keys: Iterable[str], names: Sequence[str] | None = None) -> Iterator[pa.Table]:
    return tables.columns(work, keys, Score, names)


def _judged(scores: pa.Table) -> pa.Table:
    """The rows of the splits that are judged."""
    import pyarrow.compute as pc

    return scores.filter(pc.is_in(scores["split"], value_set=_splits()))


def _splits() -> pa.Array:
    import pyarrow as pa

    return pa.array(SPLITS)


def _gathered(parts: Iterable[pa.Table], num_rows: int) -> Iterator[pa.Table]:
    """The rows of tables in their order, in tables of at least `num_rows`, but for the last."""
    import pyarrow as pa

    waiting: list[pa.Table] = []
    for part in parts:
        waiting.append(part)
        if sum(map(len, waiting)) >= num_rows:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)
