"""What the codes of errors mean: `errors.md` beside this file, which is read only when one is asked for."""

from __future__ import annotations

import re
from importlib import resources

_HEADING = re.compile(r"^## (\S+)\n", re.MULTILINE)
_LINK = re.compile(r"\[([^]]+)\]\(([^)]+)\)")
_UP = "../"


def explanations() -> dict[str, str]:
    """The explanation of each code, as Markdown whose links start in `docs/reference`."""
    text = resources.files("voxstill.core").joinpath("errors.md").read_text(encoding="utf-8")
    _, *parts = _HEADING.split(text)
    return {code: explanation.strip() for code, explanation in zip(parts[::2], parts[1::2], strict=True)}


def as_text(explanation: str) -> str:
    """An explanation for a terminal: a link is followed by the path of its page in the repository."""
    return _LINK.sub(lambda link: f"{link[1]} ({_path(link[2])})", explanation)


def _path(target: str) -> str:
    return f"docs/{target.removeprefix(_UP)}" if target.startswith(_UP) else f"docs/reference/{target}"
