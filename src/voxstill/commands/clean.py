"""voxstill clean."""

from __future__ import annotations

from voxstill.core.command import CommonOptions, WorkArgument, command
from voxstill.core.result import Result


@command("clean", panel="Corpus", position=9)
def clean(
    options: CommonOptions,
    work: WorkArgument = None,
) -> Result:
    """List the tables that nothing of the configuration uses; with --yes, delete them."""
    from voxstill.pipeline import clean as cleaning

    return cleaning.clean(options.load_work(work), delete=options.yes)
