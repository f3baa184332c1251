"""voxstill reap."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from voxstill.core.command import CommonOptions, command
from voxstill.core.result import Result


@command("reap", panel="Training", position=7)
def reap(
    options: CommonOptions,
    folder: Annotated[str | None, Argument(metavar="EXP|WORK", show_default=False)] = None,
) -> Result:
    """List what ended runs left behind: processes, shared memory, folders; with --yes, end and remove it."""
    from voxstill.pipeline import reap as reaping

    return reaping.reap(folder, end=options.yes)
