"""An extension of Griffe for the API reference: examples of docstrings become blocks of code."""

from __future__ import annotations

from typing import Any

import griffe


class Examples(griffe.Extension):
    """Fences the lines of a docstring from `>>>` to the next empty line."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Change the docstring of an object that was read."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(docstring: str) -> str:
    """The docstring with each example in a fence."""
    lines: list[str] = []
    is_example = False
    for line in [*docstring.splitlines(), ""]:
        if line.lstrip().startswith(">>>") and not is_example:
            lines.append("```pycon")
            is_example = True
        elif not line.strip() and is_example:
            lines.append("```")
            is_example = False
        lines.append(line)
    return "\n".join(lines[:-1])
