"""filter --report: the page of what the filter kept, what it dropped and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxstill.core.config import Config
from voxstill.core.config.corpus import Filter
from voxstill.core.records import Split, Utterance
from voxstill.evaluation.report import filter_page
from voxstill.filtering.measures import Score
from voxstill.filtering.rules import Columns, chars_per_s, column
from voxstill.filtering.verdicts import VerdictMap
from voxstill.pipeline.report_parts import funnel
from voxstill.storage import manifest, tables, workdir
from voxstill.storage.arrays import numpy_array
from voxstill.storage.figures import VerdictFigures
from voxstill.storage.files import write_page
from voxstill.storage.redaction import redact_uri
from voxstill.storage.store import Store

BINS = 40
HOUR_MS = 3_600_000
_READ = ("duration_ms", "characters", "compression_ratio", "repeats", "mean_logprob", "disagreement", "alignment")


@dataclass(frozen=True, slots=True)
class _Shown:
    """A score of the page: its values and both ends of the axis, beyond which lie few."""

    title: str
    values: Callable[[Columns], NDArray[Any]]
    ends: tuple[float, float]
    options: tuple[str, ...] = ()


_SHOWN = (
    _Shown("Characters per second", chars_per_s, (0, 40), ("min_chars_per_s", "max_chars_per_s")),
    _Shown("Confidence", lambda columns: np.exp(columns["mean_logprob"]), (0, 1), ("min_confidence",)),
    _Shown("Compression ratio", column("compression_ratio"), (0, 4), ("max_compression_ratio",)),
    _Shown("Repetitions of a phrase in a row", column("repeats"), (0, 20), ("max_repeats",)),
    _Shown("Disagreement of the second teacher", column("disagreement"), (0, 1), ("max_disagreement",)),
    _Shown("Forced alignment, log-probability per token", column("alignment"), (-8, 0), ("min_alignment",)),
    _Shown("Duration in seconds", lambda columns: columns["duration_ms"] / 1000, (0, 40)),
)


def write(cfg: Config, figures: VerdictFigures, file: str) -> VerdictFigures:
    """Write the page of these verdicts, where all labels are judged; returns the figures with its path."""
    if figures.finished is False:
        return figures
    return dataclasses.replace(figures, report=write_page(page(cfg, figures), file))


def page(cfg: Config, figures: VerdictFigures) -> str:
    """The page: counts and examples of each rule, histograms of the scores, and hours by split and data set."""
    return filter_page.page(facts_of(cfg, figures))


def facts_of(cfg: Config, figures: VerdictFigures) -> filter_page.FilterFacts:
    """What the page shows."""
    verdicts = VerdictMap(Store(cfg.work), figures.recipe)
    return {
        "title": "What the filter kept",
        "about": f"{figures.teacher} on {redact_uri(cfg.work)}",
        "funnel": funnel(cfg, figures),
        "kept": figures.kept_utterances,
        "kept_hours": figures.kept_hours,
        "wer_before": figures.wer_before,
        "wer_after": figures.wer_after,
        "spreads": _spreads(cfg, figures, verdicts),
        "amounts": _amounts(cfg, figures, verdicts),
    }


def kept_hours(cfg: Config, figures: VerdictFigures) -> dict[str, float]:
    """Hours of the training split that were kept, by data set; the name of none is empty."""
    verdicts = VerdictMap(Store(cfg.work), figures.recipe)
    amounts = (amount for amount in _amounts(cfg, figures, verdicts) if amount["split"] == "train")
    return {amount["dataset"] or "": amount["kept_hours"] for amount in amounts}


def _spreads(cfg: Config, figures: VerdictFigures, verdicts: VerdictMap) -> list[filter_page.Spread]:
    """The scores that any judged label has."""
    work = Store(cfg.work)
    counts_SKB = np.zeros((len(_SHOWN), 2, BINS), np.int64)
    unknown_S = np.zeros(len(_SHOWN), np.int64)
    keys = manifest.parts(work, workdir.prefix("scores", figures.scores))
    for table in tables.columns(work, keys, Score, ("utterance_id", *_READ)):
        judged = [kept for kept, _ in verdicts.of(table["utterance_id"].to_pylist())]
        is_judged_N = np.array([kept is not None for kept in judged], bool)
        is_kept_N = np.array([bool(kept) for kept in judged], bool)
        columns = {name: numpy_array(table[name]) for name in _READ}
        for place, shown in enumerate(_SHOWN):
            values_N = shown.values(columns).astype(float)
            is_known_N = ~np.isnan(values_N) & is_judged_N
            unknown_S[place] += int((is_judged_N & ~is_known_N).sum())
            for row, chosen_N in enumerate((is_known_N & is_kept_N, is_known_N & ~is_kept_N)):
                inside_N = np.clip(values_N[chosen_N], *shown.ends)
                counts_SKB[place, row] += np.histogram(inside_N, BINS, shown.ends)[0]
    return [
        {
            "title": shown.title,
            "ends": shown.ends,
            "kept": kept,
            "dropped": dropped,
            "limits": _limits(shown.options, cfg.filter),
            "unknown": int(unknown),
        }
        for shown, (kept, dropped), unknown in zip(_SHOWN, counts_SKB.tolist(), unknown_S, strict=True)
        if any(kept) or any(dropped)
    ]


def _limits(options: Sequence[str], cfg: Filter) -> list[float]:
    return [float(getattr(cfg, option)) for option in options]


def _amounts(cfg: Config, figures: VerdictFigures, verdicts: VerdictMap) -> list[filter_page.Amount]:
    """Labels and hours by split and data set, in the order of their names."""
    work = Store(cfg.work)
    sums: dict[tuple[Split, str | None], NDArray[np.int64]] = {}
    keys = manifest.parts(work, workdir.prefix("utterances", figures.utterances))
    names = ("id", "start_ms", "end_ms", "split", "dataset")
    for table in tables.columns(work, keys, Utterance, names):
        columns: Mapping[str, list[Any]] = {name: table[name].to_pylist() for name in names}
        for split, dataset, start_ms, end_ms, (kept, _) in zip(
            columns["split"],
            columns["dataset"],
            columns["start_ms"],
            columns["end_ms"],
            verdicts.of(columns["id"]),
            strict=True,
        ):
            if kept is not None:
                length_ms = end_ms - start_ms
                sums.setdefault((split, dataset), np.zeros(3, np.int64))[:] += (1, length_ms, length_ms * kept)
    return [
        {
            "split": split,
            "dataset": dataset,
            "labels": int(labels),
            "hours": float(ms / HOUR_MS),
            "kept_hours": float(kept_ms / HOUR_MS),
        }
        for (split, dataset), (labels, ms, kept_ms) in sorted(
            sums.items(), key=lambda one: (one[0][0], one[0][1] or "")
        )
    ]
