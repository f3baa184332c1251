"""Error rates as figures: with their counts, an interval, groups, and a stamp of what counted them."""

from __future__ import annotations

import platform
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal

from voxstill.core.config import Config
from voxstill.core.records import ErrorCounts
from voxstill.core.result import Figures, Result
from voxstill.core.version import __version__
from voxstill.scoring import stats, words
from voxstill.scoring.words import Scored
from voxstill.text import normalize

Unit = Literal["words", "characters"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFigures(Figures):
    """Both rates, and the counts of one unit with the interval of its rate."""

    wer: float | None
    cer: float | None
    interval: tuple[float, float] | None
    interval_over: Literal["speakers", "utterances"]
    """What the interval is drawn over."""
    unit: Unit
    counts: ErrorCounts
    utterances: int

    def to_dict(self) -> dict[str, object]:
        """The figures; the number of units in the references has the name of the unit."""
        return {
            "wer": self.wer,
            "cer": self.cer,
            "interval": self.interval,
            "interval_over": self.interval_over,
            "errors": self.counts.errors,
            self.unit: self.counts.reference,
            "hits": self.counts.hits,
            "substitutions": self.counts.substitutions,
            "insertions": self.counts.insertions,
            "deletions": self.counts.deletions,
            "utterances": self.utterances,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures(Figures):
    """The errors of one group of utterances, such as a speaker."""

    unit: Unit
    counts: ErrorCounts

    def to_dict(self) -> dict[str, object]:
        """The rate, the errors, and the units in the references under the name of the unit."""
        name = "wer" if self.unit == "words" else "cer"
        return {name: self.counts.rate, "errors": self.counts.errors, self.unit: self.counts.reference}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp(Result):
    """What figures were made with, so that only comparable ones are compared."""

    scorer: str
    normalizer: str | None
    versions: Mapping[str, str]


def figures(rows: Sequence[Scored], names: Mapping[str, str | None], cfg: Config, unit: Unit = "words") -> ErrorFigures:
    """Both rates, and the counts of one unit with the interval of its rate, drawn over the speakers named by id."""
    total = words.total(rows)
    blocks = stats.blocks(rows, names, unit)
    return ErrorFigures(
        wer=total.words.rate,
        cer=total.characters.rate,
        interval=stats.interval(blocks.counts, cfg.evaluate.bootstrap_draws, cfg.seed),
        interval_over=blocks.unit,
        unit=unit,
        counts=getattr(total, unit),
        utterances=len(rows),
    )


def rates(groups: Mapping[str, Scored], unit: Unit = "words") -> dict[str, GroupFigures]:
    """The figures of each group."""
    return {key: GroupFigures(unit=unit, counts=getattr(row, unit)) for key, row in groups.items()}


def to_dicts(groups: Mapping[str, GroupFigures]) -> dict[str, dict[str, object]]:
    """The figures of groups as JSON takes them."""
    return {name: group.to_dict() for name, group in groups.items()}


def stamp(normalizer: str | None, scorer: Mapping[str, str]) -> Stamp:
    """Name what makes figures now: the scorer, whose version comes first, the normalizer and what it depends on."""
    versions = {"voxstill": __version__, **scorer, "python": platform.python_version()}
    if normalizer is not None:
        versions["unicode"] = unicodedata.unidata_version
    if normalizer is not None and normalizer.startswith(normalize.WHISPER):
        versions["transformers"] = version("transformers")
    return Stamp(scorer=next(iter(scorer), "voxstill"), normalizer=normalizer, versions=versions)
