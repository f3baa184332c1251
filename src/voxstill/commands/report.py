"""voxstill report."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from voxstill.core.command import CommonOptions, command
from voxstill.core.result import Result


@command("report", panel="Evaluation", position=6)
def report(options: CommonOptions, experiment: Annotated[str, Argument(metavar="EXP", show_default=False)]) -> Result:
    """Write the page of a trained experiment: its results, learning curves, errors, and student against teacher."""
    options.load()
    from voxstill.pipeline import report as reporting

    return reporting.report(experiment)
