"""Line charts of a report: points become coordinates in an SVG, ticks and labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from voxstill.evaluation.report.formatting import number, percent

WIDTH, HEIGHT = 480, 200
_MAX_POINTS = 160
_TRAINING = {
    "lr": "Learning rate",
    "grad_norm": "Gradient norm",
    "audio_seconds_per_second": "Throughput, seconds of audio per second",
}
"""Titles of further charts, by the name of their figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A line chart of `WIDTH` x `HEIGHT`: the SVG points of its line, dots, ticks of both axes and the last value."""

    title: str
    line: str
    dots: tuple[tuple[float, float], ...]
    ticks_x: tuple[tuple[float, str], ...]
    ticks_y: tuple[tuple[float, str], ...]
    last: str


def training_charts(rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Charts of the training loss, of the word error rate of each validation split, and of how it went: learning
    rate, gradient norm and throughput, over steps.

    `rows` are those of `metrics.jsonl`.
    """
    training_rows = [row for row in rows if "split" not in row]
    charts = [line_chart("Training loss", _finite_points(training_rows, "loss"), number)]
    for split in dict.fromkeys(row["split"] for row in rows if "split" in row):
        split_rows = (row for row in rows if row.get("split") == split)
        charts.append(line_chart(f"Word error rate, {split}", _finite_points(split_rows, "wer"), percent))
    charts += [line_chart(title, _finite_points(training_rows, name), number) for name, title in _TRAINING.items()]
    return [chart for chart in charts if chart is not None]


def _finite_points(rows: Iterable[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    points = [(float(row["step"]), float(row[name])) for row in rows if row.get(name) is not None and "step" in row]
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def line_chart(title: str, points: Sequence[tuple[float, float]], form: Callable[[float], str]) -> Chart | None:
    """A line chart, None for fewer than two points; more than 160 points are averaged.

    `form` writes a value of the y axis.
    """
    if len(points) < 2:
        return None
    last = form(points[-1][1])
    size = math.ceil(len(points) / _MAX_POINTS)
    parts = [points[i : i + size] for i in range(0, len(points), size)]
    means = [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]
    right = max(x for x, _ in points) or 1.0
    ticks_y = _ticks(max(0.0, *(y for _, y in means)), 5)
    top, bottom = ticks_y[-1], min(0.0, *(y for _, y in means))
    places = tuple(
        (round(x / right * WIDTH, 1), round(HEIGHT * (1 - (y - bottom) / (top - bottom)), 1)) for x, y in means
    )
    return Chart(
        title=title,
        line=" ".join(f"{x},{y}" for x, y in places),
        dots=places if len(places) <= 24 else (),
        ticks_x=tuple((round(x / right * WIDTH, 1), number(int(x))) for x in _ticks(right, 4) if x <= right),
        ticks_y=tuple(
            (round(HEIGHT * (1 - (y - bottom) / (top - bottom)), 1), form(y).replace(".0\u202f", "\u202f"))
            for y in ticks_y
        ),
        last=last,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A rectangle of a histogram, in coordinates of its SVG."""

    dropped: bool
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """A histogram of `WIDTH` x `HEIGHT`: bars of what was kept and, upon them, of what was dropped; thresholds."""

    title: str
    bars: tuple[Bar, ...]
    limits: tuple[float, ...]
    ticks_x: tuple[tuple[float, str], ...]
    ticks_y: tuple[tuple[float, str], ...]
    kept: int
    dropped: int
    unknown: int


def histogram(
    title: str,
    ends: tuple[float, float],
    kept: Sequence[int],
    dropped: Sequence[int],
    limits: Iterable[float] = (),
    unknown: int = 0,
) -> Histogram:
    """A histogram with bins of equal width between both ends; a count that is not 0 is visible.

    Thresholds outside of the ends are left out.
    """
    low, high = ends
    ticks_y = _ticks(max(a + b for a, b in zip(kept, dropped, strict=True)), 5)
    step, scale = WIDTH / len(kept), HEIGHT / ticks_y[-1]
    bars: list[Bar] = []
    for place, counts in enumerate(zip(kept, dropped, strict=True)):
        y = float(HEIGHT)
        for is_dropped, count in zip((False, True), counts, strict=True):
            if count:
                height = max(1.5, count * scale)
                y -= height
                x, width = round(place * step + 0.5, 1), round(step - 1, 1)
                bars.append(Bar(dropped=is_dropped, x=x, y=round(y, 1), width=width, height=round(height, 1)))
    ticks = _ticks(high - low, 4)
    return Histogram(
        title=title,
        bars=tuple(bars),
        limits=tuple(_place(limit, low, high) for limit in limits if low < limit < high),
        ticks_x=tuple((_place(low + tick, low, high), f"{low + tick:g}") for tick in ticks if low + tick <= high),
        ticks_y=tuple((round(HEIGHT - y * scale, 1), number(int(y))) for y in ticks_y if y == int(y)),
        kept=sum(kept),
        dropped=sum(dropped),
        unknown=unknown,
    )


def _place(value: float, low: float, high: float) -> float:
    return round((value - low) / (high - low) * WIDTH, 1)


def _ticks(highest: float, most: int) -> list[float]:
    """Round numbers from 0 to the first at or above `highest`."""
    if highest <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(highest / most))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10, 20) if power * factor * most >= highest * (1 - 1e-9))
    return [step * i for i in range(math.ceil(highest / step - 1e-9) + 1)]
