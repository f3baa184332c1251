"""What each threshold of the filter keeps, and how wrong that is, on labels whose words a human wrote down.

A threshold is tried through the rule that reads it, so what is shown here is what the filter does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxstill.core.config import Filter
from voxstill.filtering.rules import RULES, Columns, Confidences, Rule, columns_of, rule_of

WRONG = 0.5
"""Labels with as many errors to a word do harm: a threshold is tightened for as long as what it drops is that wrong."""
HALF = 0.5
"""A share is proposed that keeps labels with so many of the errors of all."""
FEWEST = 10
"""Labels that a proposed threshold must drop: fewer are chance."""
SHARES = tuple(round(1 - 0.05 * k, 2) for k in range(11))
_STEPS = 40


def tune_thresholds(scores: Any, cfg: Filter, confidences: Confidences) -> dict[str, Any]:
    """Try thresholds on an Arrow table of scores with human texts: each rule alone, all together, the proposal; pure.

    `confidences` are those of all labels that the filter judges. A share or rate is None where nothing is left.
    """
    columns = columns_of(scores, confidences)
    trial = Filter(frame_ms=cfg.frame_ms)  # whose options let pass what they can
    rules = [{"rule": rule.name, **_effect(columns, ~rule.fires(columns, cfg))} for rule in RULES]
    options = [_tune_threshold(columns, rule, cfg, trial) for rule in RULES if rule.option is not None]
    options.append(_tune_share(columns, cfg, trial))
    proposed = {row["option"]: row["proposed"] for row in options if row["proposed"] is not None}
    tighter = cfg.model_copy(update=proposed)
    return {
        "labels": len(scores),
        "words": int(columns["reference_words"].sum()),
        "wer": _wer(columns, np.ones(len(scores), np.bool_)),
        "rules": rules,
        "options": options,
        "as_set": _effect(columns, _kept(columns, cfg)),
        "proposed": {f"filter.{name}": value for name, value in proposed.items()},
        "as_proposed": _effect(columns, _kept(columns, tighter)),
    }


def _tune_threshold(columns: Columns, rule: Rule, cfg: Filter, trial: Filter) -> dict[str, Any]:
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
        points.append({"value": value, **_effect(columns, ~fires_N)})
        wer = _wer(columns, fires_N & ~dropped_N)
        is_harmful = is_harmful and (wer is None or wer >= WRONG)
        is_tighter = value > current if is_lower_bound else value < current
        if is_harmful and is_tighter and wer is not None and fires_N.sum() >= FEWEST:
            proposed = value
        dropped_N = fires_N
    return {"option": rule.option, "rule": rule.name, "set": current, "proposed": proposed, "points": points}


def _tune_share(columns: Columns, cfg: Filter, trial: Filter) -> dict[str, Any]:
    """Try shares to keep by confidence and propose the largest that halves the error rate."""
    rule = rule_of("low_confidence")
    points: list[dict[str, Any]] = []
    known_N = ~np.isnan(columns["mean_logprob"])
    for share in SHARES if known_N.any() else ():
        fires_N = rule.fires(columns, trial.model_copy(update={"keep_share": share}))
        points.append({"value": share, **_effect(columns, ~fires_N)})
    wer = _wer(columns, np.ones(len(known_N), np.bool_))
    low = (point["value"] for point in points if wer and point["wer"] is not None and point["wer"] <= HALF * wer)
    proposed = next(low, None)
    return {
        "option": "keep_share",
        "rule": rule.name,
        "set": cfg.keep_share,
        "proposed": None if proposed == cfg.keep_share else proposed,
        "points": points,
    }


def _kept(columns: Columns, cfg: Filter) -> NDArray[np.bool_]:
    kept_N = np.ones(len(columns["duration_ms"]), np.bool_)
    for rule in RULES:
        kept_N &= ~rule.fires(columns, cfg)
    return kept_N


def _effect(columns: Columns, kept_N: NDArray[np.bool_]) -> dict[str, Any]:
    """How much is kept and dropped, and how wrong both are."""
    return {
        "kept": float(kept_N.mean()),
        "wer": _wer(columns, kept_N),
        "dropped": int((~kept_N).sum()),
        "dropped_wer": _wer(columns, ~kept_N),
    }


def _wer(columns: Columns, which_N: NDArray[np.bool_]) -> float | None:
    words = int(columns["reference_words"][which_N].sum())
    return float(columns["errors"][which_N].sum() / words) if words else None


def _rounded(value: float) -> float:
    """Three digits are enough for a threshold."""
    return float(f"{value:.3g}")


def confidence_curve(tuned: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Share kept by confidence and the error rate of what is kept, from few to all."""
    (points,) = (row["points"] for row in tuned["options"] if row["option"] == "keep_share")
    return sorted((point["kept"], point["wer"]) for point in points if point["wer"] is not None)
