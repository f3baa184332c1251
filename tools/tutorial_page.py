"""Writes `docs/tutorial.md` out of `examples/quickstart.ipynb`: its text, its code and what the code has printed.

    python tools/tutorial_page.py          # the page
    python tools/tutorial_page.py --run    # the cells first, in an empty folder; what they print goes into the notebook

A test compares the page with what this writes.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples/quickstart.ipynb"
PAGE = ROOT / "docs/tutorial.md"
ORIGIN = "This page is the notebook `examples/quickstart.ipynb`, with what it printed on two cores, beside other jobs."
Notebook = dict[str, Any]


def page() -> str:
    """The page, as Markdown."""
    title, *blocks = _blocks(json.loads(NOTEBOOK.read_text(encoding="utf-8")))
    heading, _, rest = title.partition("\n")
    return "\n\n".join([heading, ORIGIN, rest.strip(), *blocks]) + "\n"


def _blocks(notebook: Notebook) -> Iterator[str]:
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield text.replace("](../docs/", "](")
            continue
        yield f"```python\n{text}\n```"
        for output in cell["outputs"]:
            yield "```text\n" + "".join(output["text"]).rstrip() + "\n```"


def run(notebook: Notebook) -> Notebook:
    """The notebook with what its cells print when they are executed here, one after another."""
    names: dict[str, Any] = {}
    count = itertools.count(1)
    cells = [
        {**cell, "execution_count": next(count), "outputs": _outputs(cell, names)}
        if cell["cell_type"] == "code"
        else cell
        for cell in notebook["cells"]
    ]
    return {**notebook, "cells": cells}


def _outputs(cell: Mapping[str, Any], names: dict[str, Any]) -> list[dict[str, Any]]:
    """What a cell of code prints, as a notebook keeps it; `names` are those of the cells before."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("".join(cell["source"]), f"{NOTEBOOK.name} {cell['id']}", "exec"), names)
    lines = printed.getvalue().replace(f"{os.getcwd()}/", "").splitlines(keepends=True)
    return [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments == ["--run"]:
        before = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            after = run(before)
        NOTEBOOK.write_text(json.dumps(after, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        arguments = []
    Path(arguments[0] if arguments else PAGE).write_text(page(), encoding="utf-8")
