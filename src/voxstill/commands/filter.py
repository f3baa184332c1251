"""voxstill filter."""

from __future__ import annotations

from typing import Annotated

from typer import BadParameter, Option

from voxstill.core.command import CommonOptions, PartOption, WorkArgument, command
from voxstill.core.result import Result


@command("filter", panel="Corpus", position=5, resumes=True)
def filter_labels(
    options: CommonOptions,
    work: WorkArgument = None,
    tune: Annotated[bool, Option("--tune", help="Propose thresholds from human texts; filter nothing.")] = False,
    part: PartOption = None,
    partial: Annotated[
        bool, Option("--partial", help="Filter the labels made so far, before labelling has ended.")
    ] = False,
    report: Annotated[
        str | None, Option("--report", metavar="FILE", help="Write a page of what was kept and dropped, and why.")
    ] = None,
) -> Result:
    """Judge every label: kept, or dropped with a reason."""
    if tune and (part or partial):
        raise BadParameter("`--tune` cannot run in parts: it measures all labels")
    if tune and report:
        raise BadParameter("`--tune` filters nothing, so there is nothing to report")
    cfg = options.load_work(work)
    if tune:
        from voxstill.pipeline import tune_filter

        return tune_filter.tune(cfg)
    from voxstill.pipeline import filter as filtering

    figures = filtering.filter_labels(cfg, part=part, partial=partial)
    if report is None:
        return figures
    from voxstill.pipeline import filter_report  # torch comes with it

    return filter_report.write(cfg, figures, report)
