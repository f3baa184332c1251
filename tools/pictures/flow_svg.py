"""The flow of a corpus through all steps, with what each reads and writes.

    python tools/pictures/flow_svg.py

A test compares the drawing with what this writes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import palette

OUTPUT = Path(__file__).parents[2] / "docs/images/flow.svg"
WIDTH, TOP, PITCH, BOX = 520, 44, 84, 48
"""Of the drawing, of the middle of its first row, from one row to the next, and of a box."""
STEP_X, STEP_WIDTH, DATA_X, DATA_WIDTH = 12, 172, 248, 228
STYLE = f"""text {{ font-family: {palette.SANS}; }}
.step {{ font-size: 16px; font-weight: 650; }} .small {{ font-size: 12px; }}
.data {{ font: 600 14px {palette.MONO}; }}
.frame {{ fill: none; stroke-width: 1.2; stroke-dasharray: 4 4; }}
.arrow {{ fill: none; stroke-width: 1.6; }} .box {{ stroke-width: 1.2; }}
{palette.themed()}"""


@dataclass(frozen=True, slots=True)
class Row:
    """A step with what it reads, what it writes, and what that holds; the first row is what there was before."""

    step: str
    reads: str
    writes: str
    holds: str
    colour: str = "edge"


ROWS = (
    Row("", "", "your audio", "folders, manifests, tars, buckets"),
    Row("index", "reads your audio", "recordings, utterances", "a row for each file, each stretch"),
    Row("label", "reads utterances", "labels", "the teacher's texts, confidence", "teacher"),
    Row("filter", "reads labels", "scores, verdicts", "kept or dropped, and the reason"),
    Row("shard", "reads verdicts", "shards", "tars of audio, Parquet sidecars"),
    Row("train", "reads shards", "checkpoints, model", "the student, for transformers", "student"),
    Row("evaluate", "reads model, test split", "evaluation, report.html", "error rates with intervals", "student"),
    Row("ship", "reads model, evaluation", "model.onnx, tokens.txt", "with a model card", "student"),
)
FOLDERS = (("work folder", 1, 4), ("experiment", 5, 6), ("export", 7, 7))
"""Where it is written: the name of the folder, its first row and its last."""


def drawing() -> str:
    """The SVG."""
    height = TOP + PITCH * (len(ROWS) - 1) + TOP
    title = "The steps of voxstill: index, label, filter, shard, train, evaluate, ship, and what they read and write"
    return palette.svg(WIDTH, height, title, STYLE, _parts(height))


def _parts(height: int) -> Iterator[str]:
    head = '<path d="M1 1 9 5 1 9Z" class="edge"/>'
    size = 'viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" markerHeight="7"'
    yield f'<defs><marker id="head" {size} orient="auto">{head}</marker></defs>'
    yield palette.box("paper", 0, 0, WIDTH, height, 10)
    for name, first, last in FOLDERS:
        top, bottom = _middle(first) - BOX // 2 - 9, _middle(last) + BOX // 2 + 9
        yield palette.box("frame of-edge", DATA_X - 10, top, DATA_WIDTH + 20, bottom - top, 10)
        turned = f"translate({DATA_X + DATA_WIDTH + 26} {(top + bottom) // 2}) rotate(90)"
        yield f'<g transform="{turned}">{palette.text("small soft", 0, 0, name, "middle")}</g>'
    for number, row in enumerate(ROWS):
        yield from _data(number, row)
        if row.step:
            yield from _step(number, row)


def _step(number: int, row: Row) -> Iterator[str]:
    """The box of a step, the arrow from what it reads, and the one to what it writes."""
    middle, right, centre = _middle(number), STEP_X + STEP_WIDTH, STEP_X + STEP_WIDTH // 2
    top, between, turn = middle - BOX // 2, middle - PITCH // 2, (right + DATA_X) // 2
    down = f"H{turn + 8}q-8 0 -8 8V{between - 8}q0 8 -8 8" if number > 1 else f"H{turn}"
    read = f"M{DATA_X} {between - PITCH // 2 + 15}{down}H{centre + 8}q-8 0 -8 8V{top - 3}"
    for line in (read, f"M{right} {middle}H{DATA_X - 3}"):
        yield f'<path class="arrow of-edge" marker-end="url(#head)" d="{line}"/>'
    yield palette.box(f"box card of-{row.colour}", STEP_X, top, STEP_WIDTH, BOX, BOX // 2)
    ink = "ink" if row.colour == "edge" else row.colour
    yield palette.text(f"step {ink}", centre, middle - 2, row.step, "middle")
    yield palette.text("small soft", centre, middle + 15, row.reads, "middle")


def _data(number: int, row: Row) -> Iterator[str]:
    """The box of what a step writes."""
    middle = _middle(number)
    yield palette.box("box card of-line", DATA_X, middle - BOX // 2, DATA_WIDTH, BOX, 6)
    yield palette.text("data ink", DATA_X + 12, middle - 2, row.writes)
    yield palette.text("small soft", DATA_X + 12, middle + 15, row.holds)


def _middle(number: int) -> int:
    return TOP + PITCH * number


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else OUTPUT).write_text(drawing(), encoding="utf-8")
