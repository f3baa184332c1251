"""voxstill doctor."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from voxstill.core.command import CommonOptions, command
from voxstill.core.result import Result


@command("doctor", panel="Training", position=5)
def doctor(
    options: CommonOptions,
    experiment: Annotated[str, Argument(metavar="EXP", show_default=False)],
    batch: Annotated[str, Option("--batch", metavar="FILE", help="A file of its folder `skipped`.")],
) -> Result:
    """Find what was wrong with a step that training skipped."""
    from voxstill.pipeline import replay

    return replay.replay(experiment, batch)
