"""What each threshold of the filter keeps, and how wrong that is, on labels whose words a human wrote down.

A threshold is tried through the rule that reads it, so what is told here is what the filter does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxstill.config import Filter
from voxstill.factory.filter import RULES, Columns, Confidences, chars_per_s

WRONG = 0.5
"""Labels with as many errors to a word do harm: a threshold is tightened for as long as what it drops is that wrong."""
HALF = 0.5
"""A share is proposed that keeps labels with so many of the errors of all."""
FEWEST = 10
"""Labels that a proposed threshold must drop: fewer are chance."""
SHARES = tuple(round(1 - 0.05 * k, 2) for k in range(11))
_STEPS = 40

THRESHOLDS: dict[str, tuple[str, Callable[[Columns], NDArray[Any]]]] = {
    "min_chars_per_s": ("too_slow", chars_per_s),
    "max_chars_per_s": ("too_fast", chars_per_s),
    "max_repeats": ("repeated", lambda of: of["repeats"]),
    "max_compression_ratio": ("too_regular", lambda of: of["compression_ratio"]),
    "max_word_characters": ("long_word", lambda of: of["longest_word"]),
    "max_disagreement": ("disagreement", lambda of: of["disagreement"]),
    "min_alignment": ("badly_aligned", lambda of: of["alignment"]),
}
"""Option -> the rule that reads it, and the measure that it is held against. `keep_share` is besides."""


def tuned(scores: Any, cfg: Filter, confidences: Confidences) -> dict[str, Any]:
    """Of an Arrow table of scores with human texts: each rule alone, all together, and what is proposed; pure.

    `confidences` are those of all labels that the filter judges. A share or rate is None where nothing is left.
    """
    of: dict[str, NDArray[Any]] = {name: scores[name].to_numpy() for name in scores.column_names}
    of["share_surer"] = confidences.share_surer(of["mean_logprob"])
    trial = Filter(frame_ms=cfg.frame_ms)  # whose options let pass what they can
    rules = []
    for name in RULES:
        row: dict[str, Any] = {"rule": name, **_told(of, ~_fires(name, of, cfg))}
        rules.append(row)
    options = [_threshold(of, option, cfg, trial) for option in THRESHOLDS] + [_share(of, cfg, trial)]
    proposed = {each["option"]: each["proposed"] for each in options if each["proposed"] is not None}
    tighter = cfg.model_copy(update=proposed)
    return {
        "labels": len(scores),
        "words": int(of["reference_words"].sum()),
        "wer": _wer(of, np.ones(len(scores), np.bool_)),
        "rules": rules,
        "options": options,
        "as_set": _told(of, _kept(of, cfg)),
        "proposed": {f"filter.{name}": value for name, value in proposed.items()},
        "as_proposed": _told(of, _kept(of, tighter)),
    }


def _threshold(of: Columns, option: str, cfg: Filter, trial: Filter) -> dict[str, Any]:
    rule, measure = THRESHOLDS[option]
    lowest = option.startswith("min_")
    now, kind = getattr(cfg, option), type(getattr(cfg, option))
    quantiles = np.linspace(0, 0.5, _STEPS) if lowest else np.linspace(1, 0.5, _STEPS)
    known_K = measure(of)
    known_K = known_K[~np.isnan(known_K)]
    found = np.quantile(known_K, quantiles, method="nearest") if len(known_K) else ()
    tried = {kind(_short(value)) for value in found} - {kind(0)}
    points, proposed = [], None
    dropped_N, harmful = np.zeros(len(of["duration_ms"]), np.bool_), True
    for value in sorted(tried, reverse=not lowest):  # from the loosest on
        fires_N = _fires(rule, of, trial.model_copy(update={option: value}))
        points.append({"value": value, **_told(of, ~fires_N)})
        more = _wer(of, fires_N & ~dropped_N)
        harmful = harmful and (more is None or more >= WRONG)
        tighter = value > now if lowest else value < now
        if harmful and tighter and more is not None and fires_N.sum() >= FEWEST:
            proposed = value
        dropped_N = fires_N
    return {"option": option, "rule": rule, "set": now, "proposed": proposed, "points": points}


def _share(of: Columns, cfg: Filter, trial: Filter) -> dict[str, Any]:
    points: list[dict[str, Any]] = []
    known_N = ~np.isnan(of["mean_logprob"])
    for share in SHARES if known_N.any() else ():
        fires_N = _fires("low_confidence", of, trial.model_copy(update={"keep_share": share}))
        points.append({"value": share, **_told(of, ~fires_N)})
    whole = _wer(of, np.ones(len(known_N), np.bool_))
    enough = (each["value"] for each in points if whole and each["wer"] is not None and each["wer"] <= HALF * whole)
    proposed = next(enough, None)
    return {
        "option": "keep_share",
        "rule": "low_confidence",
        "set": cfg.keep_share,
        "proposed": None if proposed == cfg.keep_share else proposed,
        "points": points,
    }


def _fires(rule: str, of: Columns, cfg: Filter) -> NDArray[np.bool_]:
    with np.errstate(invalid="ignore"):
        return RULES[rule][0](of, cfg)


def _kept(of: Columns, cfg: Filter) -> NDArray[np.bool_]:
    kept_N = np.ones(len(of["duration_ms"]), np.bool_)
    for name in RULES:
        kept_N &= ~_fires(name, of, cfg)
    return kept_N


def _told(of: Columns, kept_N: NDArray[np.bool_]) -> dict[str, Any]:
    return {
        "kept": float(kept_N.mean()),
        "wer": _wer(of, kept_N),
        "dropped": int((~kept_N).sum()),
        "dropped_wer": _wer(of, ~kept_N),
    }


def _wer(of: Columns, which_N: NDArray[np.bool_]) -> float | None:
    words = int(of["reference_words"][which_N].sum())
    return float(of["errors"][which_N].sum() / words) if words else None


def _short(value: float) -> float:
    """Three digits are enough for a threshold."""
    return float(f"{value:.3g}")


def curve(tuned: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Share kept by confidence and the error rate of what is kept, from few to all."""
    (points,) = (each["points"] for each in tuned["options"] if each["option"] == "keep_share")
    return sorted((each["kept"], each["wer"]) for each in points if each["wer"] is not None)
