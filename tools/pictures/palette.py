"""Colours, fonts and the frame of the drawings: those of the report, by the theme of who looks at them."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping

LIGHT = {
    "paper": "#fbfaf7",
    "card": "#ffffff",
    "ink": "#1d2328",
    "soft": "#5c656d",
    "line": "#e3e0d8",
    "edge": "#8d938f",
    "student": "#0b7a75",
    "teacher": "#a8752a",
    "third": "#6a3fb5",
    "fourth": "#b3261e",
}
DARK = {
    "paper": "#14181b",
    "card": "#1b2024",
    "ink": "#e6e8e6",
    "soft": "#9aa4ab",
    "line": "#2f363b",
    "edge": "#7d8890",
    "student": "#4cc2b8",
    "teacher": "#dba95c",
    "third": "#c7abff",
    "fourth": "#ff9d92",
}
SANS = 'system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", "Liberation Sans", sans-serif'
MONO = 'ui-monospace, "SF Mono", "Cascadia Mono", "DejaVu Sans Mono", "Liberation Mono", monospace'


def svg(width: int, height: int, title: str, style: str, parts: Iterable[str]) -> str:
    """A drawing that needs no other file: no font, no script, no address but the name of its format."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{title}">\n<title>{title}</title>\n<style>\n{style}</style>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def box(style: str, x: float, y: float, width: float, height: float, radius: float) -> str:
    """A rectangle of these classes."""
    return f'<rect class="{style}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}"/>'


def text(style: str, x: float, y: float, words: str, anchor: str = "start") -> str:
    """A line of text of these classes; `x` is its start, its middle or its end."""
    return f'<text class="{style}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{html.escape(words)}</text>'


def themed() -> str:
    """Rules of a style sheet: `.NAME` fills with a colour, `.of-NAME` strokes with it, in both themes."""
    return f"{_rules(LIGHT)}@media (prefers-color-scheme: dark) {{\n{_rules(DARK)}}}\n"


def _rules(colours: Mapping[str, str]) -> str:
    return "".join(
        f".{name} {{ fill: {colour}; }} .of-{name} {{ stroke: {colour}; }}\n" for name, colour in colours.items()
    )
