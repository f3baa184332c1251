"""Panels of the dashboard, drawn with what a Prometheus has answered, as Grafana draws them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import palette

COLUMNS, CARD_WIDTH, CARD_HEIGHT, GAP = 2, 348, 190, 8
LEFT, TOP, WIDTH, HEIGHT = 52, 56, 276, 100
"""Of the plot in its card."""
TIMES_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200)
"""Round steps of an axis of time."""
COLOURS = ("student", "teacher", "third", "fourth")
STYLE = f"""text {{ font: 11.5px {palette.SANS}; }} .title {{ font-size: 14px; font-weight: 600; }}
.curve {{ fill: none; stroke-width: 1.8; stroke-linejoin: round; }} .grid {{ stroke-width: 1; }}
{palette.themed()}"""


@dataclass(frozen=True, slots=True)
class Series:
    """A curve: its name, and seconds and values of its points."""

    legend: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """A panel: its title, its unit in Grafana's words, and its curves."""

    title: str
    unit: str
    series: tuple[Series, ...]


def drawing(title: str, charts: Sequence[Chart]) -> str:
    """The SVG of charts that share their time."""
    times = [at for chart in charts for series in chart.series for at, _ in series.points]
    start, end = min(times, default=0.0), max(times, default=1.0)
    lines = -(-len(charts) // COLUMNS)
    width, height = GAP + COLUMNS * (CARD_WIDTH + GAP), GAP + lines * (CARD_HEIGHT + GAP)
    parts = [palette.box("paper", 0, 0, width, height, 8)]
    for number, chart in enumerate(charts):
        line, column = divmod(number, COLUMNS)
        place = f"{GAP + column * (CARD_WIDTH + GAP)} {GAP + line * (CARD_HEIGHT + GAP)}"
        parts += [f'<g transform="translate({place})">', *_card(chart, start, max(end - start, 1.0)), "</g>"]
    return palette.svg(width, height, title, STYLE, parts)


def _card(chart: Chart, start: float, duration_s: float) -> Iterator[str]:
    values = [value for series in chart.series for _, value in series.points]
    step, num = _scale(max(values, default=1.0), chart.unit)
    form, top = _form(chart.unit), step * num
    yield palette.box("card of-line", 0, 0, CARD_WIDTH, CARD_HEIGHT, 6)
    yield palette.text("title ink", 14, 24, chart.title)
    yield from _legend(chart)
    for k in range(num + 1):
        y = TOP + HEIGHT * (1 - k / num)
        yield f'<path class="grid of-line" d="M{LEFT} {y:.1f}h{WIDTH}"/>'
        yield palette.text("soft", LEFT - 7, y + 4, form(k * step), "end")
    for at_s in _times(duration_s):
        yield palette.text("soft", LEFT + WIDTH * at_s / duration_s, TOP + HEIGHT + 19, _clock(at_s), "middle")
    for series, colour in zip(chart.series, COLOURS, strict=False):
        places = [
            (LEFT + WIDTH * (at - start) / duration_s, TOP + HEIGHT * (1 - value / top)) for at, value in series.points
        ]
        yield f'<path class="curve of-{colour}" d="M{" ".join(f"{x:.1f} {y:.1f}" for x, y in places)}"/>'


def _legend(chart: Chart) -> Iterator[str]:
    """The names of the curves in their colours, where there are several."""
    if len(chart.series) < 2:
        return
    x = 14.0
    for series, colour in zip(chart.series, COLOURS, strict=False):
        yield palette.box(colour, x, 36, 12, 3, 1)
        yield palette.text("soft", x + 17, 41, series.legend)
        x += 34 + 6.3 * len(series.legend)


def _scale(highest: float, unit: str) -> tuple[float, int]:
    """A round step of the axis and how many of it reach the highest value, but for a fiftieth of a step."""
    if highest <= 0:
        return 0.5, 2
    power = 10.0 ** math.floor(math.log10(highest / 4))
    steps = [power * factor for factor in (1, 2, 2.5, 5, 10, 20)]
    if unit == "s" and highest > 4:
        steps = [step for step in TIMES_S if step * 4 >= highest] or steps
    step = next(step for step in steps if step * 4.02 >= highest)
    return step, max(2, math.ceil(highest / step - 0.02))


def _times(duration_s: float) -> list[float]:
    step = next((step for step in TIMES_S if step * 6 >= duration_s), TIMES_S[-1])
    return [float(k * step) for k in range(int(duration_s / step) + 1)]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


def _form(unit: str) -> Callable[[float], str]:
    """How a value of a unit is written on an axis."""
    forms: dict[str, Callable[[float], str]] = {"percentunit": lambda value: f"{100 * value:.3g}%", "s": _clock}
    return forms.get(unit, lambda value: f"{value:.3g}")
