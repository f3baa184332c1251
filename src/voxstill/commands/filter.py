"""voxstill filter."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, BadParameter, Option

from voxstill.core.command import CommonOptions, PartOption, command, work_override
from voxstill.core.result import Result


@command("filter", panel="Corpus", position=5)
def filter_labels(
    options: CommonOptions,
    work: Annotated[str, Argument(metavar="WORK", show_default=False)],
    tune: Annotated[bool, Option("--tune", help="Propose thresholds by human texts; judge nothing.")] = False,
    part: PartOption = None,
) -> Result:
    """Judge every label: kept, or dropped with a reason."""
    if tune and part:
        raise BadParameter("`--tune` has no parts: it measures all labels")
    cfg = options.load(work_override(work))
    if tune:
        from voxstill.pipeline import tune_filter

        return tune_filter.tune(cfg)
    from voxstill.pipeline import filter as filtering

    return filtering.filter_labels(cfg, part=part)
