"""Text that is safe to show: what a model, a file or a server wrote does not move the cursor or change the terminal."""

from __future__ import annotations

import re

# controls of C0 and C1 but tab and line feed, and marks that reorder what is shown (Unicode Standard Annex 9)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""Escape control characters as JSON does: `\u001b`."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
