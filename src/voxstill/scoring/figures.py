"""Error rates as figures: with their counts, an interval, groups, and a stamp of what counted them."""

from __future__ import annotations

import platform
import unicodedata
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Literal

from voxstill.core.config import Config
from voxstill.core.records import ErrorCounts
from voxstill.core.version import __version__
from voxstill.scoring import stats, words
from voxstill.scoring.words import Scored
from voxstill.text import normalize

Unit = Literal["words", "characters"]


def figures(
    rows: Sequence[Scored], names: Mapping[str, str | None], cfg: Config, unit: Unit = "words"
) -> dict[str, Any]:
    """Both rates, and the counts of one unit with the interval of its rate, drawn over the speakers named by id."""
    total = words.total(rows)
    counts: ErrorCounts = getattr(total, unit)
    blocks = stats.blocks(rows, names, unit)
    return {
        "wer": total.words.rate,
        "cer": total.characters.rate,
        "interval": stats.interval(blocks.counts, cfg.evaluate.bootstrap_draws, cfg.seed),
        "interval_over": blocks.unit,
        "errors": counts.errors,
        unit: counts.reference,
        "hits": counts.hits,
        "substitutions": counts.substitutions,
        "insertions": counts.insertions,
        "deletions": counts.deletions,
        "utterances": len(rows),
    }


def rates(groups: Mapping[str, Scored], unit: Unit = "words") -> dict[str, dict[str, float | int | None]]:
    """The figures of each group."""
    name = "wer" if unit == "words" else "cer"
    figures_by_group = {}
    for key, row in groups.items():
        counts: ErrorCounts = getattr(row, unit)
        figures_by_group[key] = {name: counts.rate, "errors": counts.errors, unit: counts.reference}
    return figures_by_group


def stamp(normalizer: str | None, scorer: Mapping[str, str]) -> dict[str, Any]:
    """What made figures, so that nobody compares what cannot be compared."""
    versions = {"voxstill": __version__, **scorer, "python": platform.python_version()}
    if normalizer is not None:
        versions["unicode"] = unicodedata.unidata_version
    if normalizer is not None and normalizer.startswith(normalize.WHISPER):
        versions["transformers"] = version("transformers")
    return {"scorer": next(iter(scorer), "voxstill"), "normalizer": normalizer, "versions": versions}
