"""A page of charts with what a Prometheus holds, as Grafana would draw the dashboard."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from typing import Any

WIDTH, HEIGHT = 380, 150
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf")
STYLE = """
body {font: 13px system-ui, sans-serif; margin: 16px; color: #222; width: 1240px}
h2 {font-size: 15px; margin: 14px 0 6px} main {display: grid; grid-template-columns: repeat(3, 1fr); gap: 10px}
figure {margin: 0; border: 1px solid #ddd; border-radius: 4px; padding: 8px} figcaption {font-weight: 600}
svg {width: 100%} text {font-size: 11px; fill: #666} small {color: #555} i {display: inline-block; width: 10px;
height: 3px; margin: 0 4px 3px 8px}
"""


def page(rows: Iterable[tuple[str, Iterable[tuple[Any, list[dict[str, Any]]]]]]) -> str:
    """Charts by row; each is a panel of the dashboard with the result of its query over a time."""
    parts = []
    for title, charts in rows:
        figures = "".join(_figure(panel, series) for panel, series in charts if series)
        if figures:
            parts.append(f"<h2>{html.escape(title)}</h2><main>{figures}</main>")
    return f"<!doctype html><meta charset=utf-8><style>{STYLE}</style>{''.join(parts)}"


def _figure(panel: Any, series: list[dict[str, Any]]) -> str:
    points = [[(float(at), float(value)) for at, value in row["values"]] for row in series]
    points = [[point for point in line if math.isfinite(point[1])] for line in points]
    every = [point for line in points for point in line]
    if not every:
        return ""
    start, end = min(at for at, _ in every), max(at for at, _ in every)
    low, high = min(0.0, *(value for _, value in every)), max(value for _, value in every) or 1.0
    lines, legend = [], []
    for i, (row, line) in enumerate(zip(series, points, strict=True)):
        colour = COLOURS[i % len(COLOURS)]
        places = " ".join(
            f"{WIDTH * (at - start) / max(end - start, 1e-9):.1f},{HEIGHT - HEIGHT * (value - low) / (high - low):.1f}"
            for at, value in line
        )
        lines.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        legend.append(f'<i style="background:{colour}"></i>{html.escape(_legend(panel.legend, row["metric"]))}')
    scale = f'<text x="2" y="11">{high:.4g}</text><text x="2" y="{HEIGHT - 3}">{low:.4g}</text>'
    chart = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}">{scale}{"".join(lines)}</svg>'
    return (
        f"<figure><figcaption>{html.escape(panel.title)}</figcaption>{chart}<small>{''.join(legend)}</small></figure>"
    )


def _legend(template: str, labels: dict[str, str]) -> str:
    for name, value in labels.items():
        template = template.replace("{{" + name + "}}", value)
    return template
