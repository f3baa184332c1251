"""What each threshold of the filter keeps, and how wrong that is, on labels whose words a human wrote down.

A threshold is tried through the rule that reads it, so what is shown here is what the filter does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from voxstill.core.config import Filter
from voxstill.core.result import Result, read
from voxstill.filtering.rules import RULES, Columns, Confidences, Rule, columns_of, rule_of, threshold_between

if TYPE_CHECKING:
    import pyarrow as pa

WRONG = 0.5
"""Labels with as many errors per word do harm: a threshold is tightened for as long as what it drops is that wrong."""
HALF = 0.5
"""A share is proposed that keeps labels with so many of the errors of all."""
FEWEST = 10
"""Labels that a proposed threshold must drop: fewer are chance."""
SHARES = tuple(round(1 - 0.05 * k, 2) for k in range(11))
_BY_CONFIDENCE = ("keep_share", "min_confidence")
_STEPS = 40
_BAR = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect(Result):
    """How much is kept and dropped, and how wrong both are; a rate is None if nothing is left."""

    kept: float
    """Of all labels."""
    wer: float | None
    dropped: int
    dropped_wer: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial(Result):
    """What something does, whose figures stand beside it."""

    effect: Effect

    def to_dict(self) -> dict[str, object]:
        """What was tried, and the figures of its effect beside it."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "effect"}
        return {**own, **self.effect.to_dict()}

    @classmethod
    def from_dict(cls, figures: Mapping[str, Any]) -> Self:
        """The trial that `to_dict` wrote."""
        return read(cls, {**figures, "effect": figures})


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleTrial(_Trial):
    """What one rule does alone."""

    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Point(_Trial):
    """What one value of an option does."""

    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionTrial(Result):
    """The values of one option that were tried, from the loosest on."""

    option: str
    rule: str
    set: float
    """What the configuration has."""
    proposed: float | None
    points: Sequence[Point]


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult(Result):
    """What each rule and threshold keeps, how wrong that is, and what is proposed."""

    labels: int
    words: int
    wer: float | None
    rules: Sequence[RuleTrial]
    options: Sequence[OptionTrial]
    as_set: Effect
    proposed: Mapping[str, float]
    as_proposed: Effect

    def to_text(self) -> str:
        """A line for each rule, the curve of `keep_share`, and the proposal."""
        return picture(self)


def tune_thresholds(scores: pa.Table, cfg: Filter, confidences: Confidences) -> TuneResult:
    """Try thresholds on an Arrow table of scores with human texts: each rule alone, all together, the proposal; pure.

    `confidences` are those of all labels that the filter judges. A share or rate is None if nothing is left.
    """
    columns = columns_of(scores, confidences)
    trial = Filter(frame_ms=cfg.frame_ms)  # whose options let pass what they can
    rules = [RuleTrial(rule=rule.name, effect=_effect(columns, ~rule.fires(columns, cfg))) for rule in RULES]
    options = [_tune_threshold(columns, rule, cfg, trial) for rule in RULES if rule.option is not None]
    is_known = not np.isnan(columns["mean_logprob"]).all()
    share = _tune_confidence(columns, cfg, trial, "keep_share", SHARES if is_known else ())
    options.append(share)
    own = Confidences(columns["mean_logprob"])
    if any(own.tie(trial.model_copy(update={"keep_share": value})) is not None for value in SHARES):
        thresholds, proposes = _confidence_thresholds(columns), share.proposed is None
        options.append(_tune_confidence(columns, cfg, trial, "min_confidence", thresholds, proposes=proposes))
    proposed = {trial.option: trial.proposed for trial in options if trial.proposed is not None}
    tighter = cfg.model_copy(update=proposed)
    return TuneResult(
        labels=len(scores),
        words=int(columns["reference_words"].sum()),
        wer=_wer(columns, np.ones(len(scores), np.bool_)),
        rules=rules,
        options=options,
        as_set=_effect(columns, _kept(columns, cfg)),
        proposed={f"filter.{name}": value for name, value in proposed.items()},
        as_proposed=_effect(columns, _kept(columns, tighter)),
    )


def _tune_threshold(columns: Columns, rule: Rule, cfg: Filter, trial: Filter) -> OptionTrial:
    """Try values of a rule's threshold, from the loosest on, and propose the last that drops mostly wrong labels."""
    assert rule.option is not None
    assert rule.measure is not None
    is_lower_bound = rule.option.startswith("min_")
    current = getattr(cfg, rule.option)
    kind = type(current)
    quantiles = np.linspace(0, 0.5, _STEPS) if is_lower_bound else np.linspace(1, 0.5, _STEPS)
    measure_N = rule.measure(columns)
    known_K = measure_N[~np.isnan(measure_N)]
    values_Q = np.quantile(known_K, quantiles, method="nearest") if len(known_K) else ()
    values = {kind(_rounded(value)) for value in values_Q} - {kind(0)}
    points, proposed = [], None
    dropped_N, is_harmful = np.zeros(len(columns["duration_ms"]), np.bool_), True
    for value in sorted(values, reverse=not is_lower_bound):
        fires_N = rule.fires(columns, trial.model_copy(update={rule.option: value}))
        points.append(Point(value=value, effect=_effect(columns, ~fires_N)))
        wer = _wer(columns, fires_N & ~dropped_N)
        is_harmful = is_harmful and (wer is None or wer >= WRONG)
        is_tighter = value > current if is_lower_bound else value < current
        if is_harmful and is_tighter and wer is not None and fires_N.sum() >= FEWEST:
            proposed = value
        dropped_N = fires_N
    return OptionTrial(option=rule.option, rule=rule.name, set=current, proposed=proposed, points=points)


def _tune_confidence(
    columns: Columns, cfg: Filter, trial: Filter, option: str, values: Sequence[float], *, proposes: bool = True
) -> OptionTrial:
    """Try values of an option by which labels are kept by confidence; propose the first that halves the error rate."""
    rule = rule_of("low_confidence")
    points = []
    for value in values:
        fires_N = rule.fires(columns, trial.model_copy(update={option: value}))
        points.append(Point(value=value, effect=_effect(columns, ~fires_N)))
    proposed, current = _first_that_halves(columns, points) if proposes else None, getattr(cfg, option)
    return OptionTrial(
        option=option,
        rule=rule.name,
        set=current,
        proposed=None if proposed == current else proposed,
        points=points,
    )


def _confidence_thresholds(columns: Columns) -> list[float]:
    """Thresholds between the distinct confidences, for labels of which many share one and no share can part them."""
    known_N = ~np.isnan(columns["mean_logprob"])
    distinct_V: list[float] = np.unique(np.exp(columns["mean_logprob"][known_N])).tolist()
    if len(distinct_V) < 2:
        return []
    places_Q = np.unique(np.linspace(1, len(distinct_V) - 1, _STEPS, dtype=np.int64))
    return [threshold_between(distinct_V[place - 1], distinct_V[place]) for place in places_Q.tolist()]


def _first_that_halves(columns: Columns, points: Sequence[Point]) -> float | None:
    """The first value that keeps labels with at most half of the error rate of all."""
    wer = _wer(columns, np.ones(len(columns["duration_ms"]), np.bool_))
    half = HALF * wer if wer else 0.0
    low = (point.value for point in points if wer and point.effect.wer is not None and point.effect.wer <= half)
    return next(low, None)


def _kept(columns: Columns, cfg: Filter) -> NDArray[np.bool_]:
    kept_N = np.ones(len(columns["duration_ms"]), np.bool_)
    for rule in RULES:
        kept_N &= ~rule.fires(columns, cfg)
    return kept_N


def _effect(columns: Columns, kept_N: NDArray[np.bool_]) -> Effect:
    return Effect(
        kept=float(kept_N.mean()),
        wer=_wer(columns, kept_N),
        dropped=int((~kept_N).sum()),
        dropped_wer=_wer(columns, ~kept_N),
    )


def _wer(columns: Columns, which_N: NDArray[np.bool_]) -> float | None:
    words = int(columns["reference_words"][which_N].sum())
    return float(columns["errors"][which_N].sum() / words) if words else None


def _rounded(value: float) -> float:
    """Three digits are enough for a threshold."""
    return float(f"{value:.3g}")


def confidence_curve(tuned: TuneResult) -> list[tuple[float, float]]:
    """Share kept by confidence and the error rate of what is kept, from few to all."""
    effects = [point.effect for name in _BY_CONFIDENCE for point in _points_of(tuned, name)]
    return sorted({(effect.kept, effect.wer) for effect in effects if effect.wer is not None})


def _points_of(tuned: TuneResult, option: str) -> Sequence[Point]:
    return [point for trial in tuned.options if trial.option == option for point in trial.points]


def picture(tuned: TuneResult) -> str:
    """Format the figures as text for a terminal."""
    lines = [
        f"{tuned.labels:,} labels have a human text of {tuned.words:,} words; {_percent(tuned.wer)} of those are wrong",
        "",
        f"{'rule, alone':<16}{'dropped':>9}{'WER of these':>14}{'kept':>8}{'WER of kept':>13}",
    ]
    for trial in (*tuned.rules, RuleTrial(rule="all, as set", effect=tuned.as_set)):
        effect = trial.effect
        lines.append(
            f"{trial.rule:<16}{effect.dropped:>9,}{_percent(effect.dropped_wer):>14}{_percent(effect.kept):>8}"
            f"{_percent(effect.wer):>13}"
        )
    for option in _BY_CONFIDENCE:
        lines += _curve(option, _points_of(tuned, option))
    lines.append("")
    if not tuned.proposed:
        return "\n".join([*lines, "nothing is proposed: no threshold drops labels with a high enough WER"])
    effect = tuned.as_proposed
    lines.append(f"proposed, keeping {_percent(effect.kept)} with a WER of {_percent(effect.wer)}:")
    lines += [f"  --set {name}={value}" for name, value in tuned.proposed.items()]
    return "\n".join([*lines, "They were chosen on these labels: on others they will do slightly worse."])


def _curve(option: str, points: Sequence[Point]) -> list[str]:
    """A line for each value of an option; a share is how much is kept, and beside a threshold that is written."""
    if not points:
        return []
    head = f"filter.{option}   "
    lines = ["", f"{head}WER of what is kept"]
    most = max(point.effect.wer or 0.0 for point in points) or 1.0
    for point in points:
        rate = point.effect.wer or 0.0
        bar = "█" * max(round(_BAR * rate / most), rate > 0)
        kept = "" if option == "keep_share" else f", {_percent(point.effect.kept)} kept"
        lines.append(f"{point.value:<{len(head)}}{bar} {_percent(point.effect.wer)}{kept}")
    return lines


def _percent(rate: float | None) -> str:
    return "–" if rate is None else f"{100 * rate:.1f} %"
