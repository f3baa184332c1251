"""How figures are written on pages and in Markdown, and the Jinja environment with these functions as filters."""

from __future__ import annotations

import base64
import functools
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


def percent(rate: float | None) -> str:
    """0.1234 as `12.3 %`, None as a dash."""
    return "–" if rate is None else f"{rate * 100:.1f}\u202f%"


def points(rate: float) -> str:
    """A difference of two rates: 0.0123 as `+1.23`."""
    return f"{100 * rate:+.2f}".replace("-", "\u2212")


def number(value: float | str | None) -> str:
    """Whole numbers with thin spaces, others to three figures, words as they are, None as a dash."""
    if value is None or isinstance(value, bool | str):
        return "–" if value is None else str(value)
    if isinstance(value, int) or (abs(value) >= 100 and math.isfinite(value)):
        return f"{round(value):,}".replace(",", "\u202f")
    return f"{value:.3g}"


def magnitude(value: float | None) -> str:
    """1,640,000 as `1.6 M`."""
    if value is None:
        return "–"
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.1f}\u202f{letter}" if value < 100 * limit else f"{value / limit:.0f}\u202f{letter}"
    return number(value)


def duration(seconds: float) -> str:
    """95 as `1 min 35 s`."""
    if seconds < 60:
        return f"{seconds:.1f}\u202fs" if seconds < 10 else f"{seconds:.0f}\u202fs"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}\u202fmin {rest}\u202fs"
    return f"{minutes // 60}\u202fh {minutes % 60}\u202fmin"


def data_uri(audio: bytes) -> str:
    """Encode an audio file as a `data:` URI; the first bytes determine its type."""
    kinds = {b"RIFF": "wav", b"fLaC": "flac", b"OggS": "ogg"}
    return f"data:audio/{kinds.get(audio[:4], 'mpeg')};base64,{base64.b64encode(audio).decode()}"


_SHARES = frozenset(
    {"wer", "wer_with_lm", "cer", "kept", "wer_before", "wer_after", "padding", "efficiency", "data_wait"}
)


def figure(value: float | str | None, name: str) -> str:
    """Format a figure of a step by its name: rates and shares in percent."""
    return percent(value) if name in _SHARES and isinstance(value, int | float) else number(value)


@functools.cache
def environment() -> Environment:
    """The Jinja environment of all pages, with the functions of this module as filters."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("voxstill.evaluation.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(
        percent=percent,
        points=points,
        number=number,
        magnitude=magnitude,
        duration=duration,
        data_uri=data_uri,
        figure=figure,
    )
    return templates
