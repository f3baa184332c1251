"""voxstill clean."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from voxstill.core.command import CommonOptions, command, work_override
from voxstill.core.result import Result


@command("clean", panel="Corpus", position=9)
def clean(
    options: CommonOptions,
    work: Annotated[str, Argument(metavar="WORK", help="Work folder, or prefix of a bucket.")],
) -> Result:
    """List the tables that nothing of the configuration uses; with --yes, delete them."""
    from voxstill.pipeline import clean as cleaning

    return cleaning.clean(options.load(work_override(work)), delete=options.yes)
