"""voxstill compare-teachers."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from typer import Argument, Option

from voxstill.core.command import CommonOptions, WorkArgument, command, price
from voxstill.core.result import Result


@command("compare-teachers", panel="Corpus", position=4)
def compare_teachers(
    options: CommonOptions,
    work: WorkArgument = None,
    recipes: Annotated[
        list[str] | None, Argument(metavar="RECIPE", help="Recipes of finished labels; default: all of them.")
    ] = None,
    report: Annotated[str | None, Option("--report", metavar="FILE", help="Write a page with audio.")] = None,
    price_per_hour: Annotated[
        float | None, Option("--price-per-hour", metavar="X", parser=price, help="Price of the machine per hour.")
    ] = None,
) -> Result:
    """Compare the labels of several teachers: agreement, error rate, speed and cost."""
    cfg = options.load_work(work)
    from voxstill.pipeline import compare_teachers as comparison

    result = comparison.compared(cfg, recipes or [], price_per_hour)
    if report is None:
        return result
    from voxstill.storage.files import write_page

    return dataclasses.replace(result, report=write_page(comparison.page(cfg, result), report))
