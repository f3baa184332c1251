"""Text that is safe to show: what a model, a file or a server wrote does not move the cursor or change the terminal."""

from __future__ import annotations

import re

# controls of C0 and C1 but tab and line feed, marks that reorder what is shown (Unicode Standard Annex 9), and halves
# of surrogate pairs, which UTF-8 cannot hold
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


_BREAK = re.compile("[\t\n\u2028\u2029]")
MOST_NAME = 60
"""Characters of the name of a group or an utterance in a table."""


def printable(text: str) -> str:
    r"""Escape control characters as JSON does: `\u001b`."""
    return _CONTROL.sub(_escaped, text)


def one_line(text: str, most: int | None = None) -> str:
    """Escape line breaks and tabs as well: a name in a table takes no line of its own. At most so many characters."""
    if most is not None and len(text) > most:
        text = f"{text[: most - 1]}…"
    return _BREAK.sub(_escaped, printable(text))


def continued(text: str, columns: int) -> str:
    """Indent further lines by so many columns, so that none of them looks like a line of ours."""
    return text.replace("\n", f"\n{' ' * columns}")


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
