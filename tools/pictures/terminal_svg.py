"""A recording of a terminal as a drawing that plays once and then shows the end.

Where animations are off, or a viewer knows none, the end is all there is.
"""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.ansi import AnsiDecoder
from rich.style import Style
from rich.text import Text

import palette

COLUMNS, ROWS = 100, 38
"""Of the window."""
SPEED, FRAME_S = 20, 5.0
"""How many times as fast it plays, and the seconds of the recording from one frame to the next."""
LETTER, LINE, EDGE, BAR = 8.4, 18, 16, 34
"""Width of a letter, height of a line, the space around them, and the bar above, in pixels."""
PAPER, INK, SOFT = "#171c1f", "#e6e8e6", "#9aa4ab"
_TOKEN = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|[\r\n]|[^\x1b\r\n]+")


@dataclass(frozen=True, slots=True)
class Output:
    """What a program wrote, in seconds since its start."""

    at_s: float
    text: str


class Terminal:
    """The lines of a terminal, with their colours as it was told them.

    It knows what rich and plain programs write: text, line feeds, erased lines and the cursor moved up to one.
    """

    def __init__(self) -> None:
        self.lines = [""]
        self._at = 0
        self._returned = False

    def write(self, text: str) -> None:
        """Take what a program wrote."""
        for token in _TOKEN.finditer(text):
            argument, control = token[1], token[2]
            if token[0] == "\r":
                self._returned = True
            elif token[0] == "\n":
                self._down()
            elif control == "A":
                self._at = max(self._at - int(argument or 1), 0)
            elif control == "K":
                self._set("")
            elif control in (None, "m"):
                self._set(token[0] if self._returned else self.lines[self._at] + token[0])

    def _set(self, line: str) -> None:
        self.lines[self._at] = line
        self._returned = False

    def _down(self) -> None:
        self._at += 1
        self._returned = False
        if self._at == len(self.lines):
            self.lines.append("")


def drawing(command: str, outputs: Sequence[Output]) -> str:
    """The SVG of a command and what it wrote."""
    films = [_window(lines) for lines in _moments(f"$ {command}\n", outputs)]
    width, height = round(COLUMNS * LETTER) + 2 * EDGE, ROWS * LINE
    total = height + BAR + 2 * EDGE
    end = -(len(films) - 1) * height
    seconds = len(films) * FRAME_S / SPEED
    style = f"""text {{ font: 14px {palette.MONO}; white-space: pre; fill: {INK}; }}
@media (prefers-reduced-motion: no-preference) {{
.film {{ animation: play {seconds:.2f}s steps({len(films)}, jump-none) 1; }}
}}
@keyframes play {{ from {{ transform: translateY(0); }} to {{ transform: translateY({end}px); }} }}
"""
    title = f"A terminal in which {command} has run to its end"
    return palette.svg(width, total, title, style, _parts(films, command, width, total, end))


def _parts(films: Sequence[Sequence[Text]], command: str, width: int, total: int, end: int) -> Iterator[str]:
    yield f'<rect width="{width}" height="{total}" rx="10" fill="{PAPER}"/>'
    for place, colour in enumerate(("#e0695f", "#dba95c", "#5fae6b")):
        yield f'<circle cx="{EDGE + 6 + 20 * place}" cy="{BAR // 2 + 3}" r="6" fill="{colour}"/>'
    yield f'<text x="{width / 2}" y="{BAR // 2 + 8}" text-anchor="middle" style="fill: {SOFT}">{command}</text>'
    lines = {text.markup: text for film in films for text in film if text.plain.strip()}
    names = {markup: f"l{number}" for number, markup in enumerate(lines)}
    yield "<defs>"
    for markup, text in lines.items():
        yield f'<text id="{names[markup]}" textLength="{len(text) * LETTER:.1f}">{_spans(text)}</text>'
    yield "</defs>"
    yield f'<svg x="{EDGE}" y="{BAR + EDGE}" width="{width - 2 * EDGE}" height="{ROWS * LINE}">'
    yield f'<g class="film" transform="translate(0 {end})">'
    for number, film in enumerate(films):
        for row, text in enumerate(film):
            if text.plain.strip():
                yield f'<use href="#{names[text.markup]}" y="{(number * ROWS + row) * LINE + 13}"/>'
    yield "</g>"
    yield "</svg>"


def _moments(prompt: str, outputs: Sequence[Output]) -> Iterator[list[str]]:
    """The lines of the terminal every few seconds, and at the end."""
    terminal = Terminal()
    terminal.write(prompt)
    due_s = 0.0
    for output in outputs:
        while output.at_s > due_s:
            yield list(terminal.lines)
            due_s += FRAME_S
        terminal.write(output.text)
    yield list(terminal.lines)


def _window(lines: Sequence[str]) -> list[Text]:
    """The last lines, as many as the window has; those that are longer than it is wide go on in the next one."""
    decoder = AnsiDecoder()
    rows: list[Text] = []
    for line in lines:
        text = decoder.decode_line(line)
        text.rstrip()
        rows += text.divide(range(COLUMNS, len(text), COLUMNS)) if len(text) > COLUMNS else [text]
    while len(rows) > 1 and not rows[-1].plain:
        rows.pop()
    return rows[-ROWS:]


def _spans(text: Text) -> str:
    """The letters of a line, those of another colour in spans of their own."""
    parts = []
    ends = sorted({0, len(text), *(end for span in text.spans for end in (span.start, span.end))})
    for start, end in itertools.pairwise(ends):
        letters = html.escape(text.plain[start:end])
        look = _look([span.style for span in text.spans if span.start <= start and span.end >= end])
        parts.append(f'<tspan style="{look}">{letters}</tspan>' if look else letters)
    return "".join(parts)


def _look(styles: Sequence[str | Style]) -> str:
    style = Style.combine([Style.null(), *(style for style in styles if isinstance(style, Style))])
    rules = []
    if style.color is not None and not style.color.is_default:
        rules.append(f"fill: {style.color.get_truecolor().hex}")
    if style.bold:
        rules.append("font-weight: bold")
    return "; ".join(rules)
