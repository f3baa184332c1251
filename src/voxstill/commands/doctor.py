"""voxstill doctor."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from voxstill.core.command import CommonOptions, command
from voxstill.core.result import Result


@command("doctor", panel="Start", position=5)
def doctor(
    options: CommonOptions,
    where: Annotated[
        str | None,
        Argument(metavar="WORK_OR_EXP", show_default=False, help="A corpus or a training; without it, this machine."),
    ] = None,
    batch: Annotated[
        str | None, Option("--batch", metavar="FILE", help="Replay a step that EXP skipped: a file of its `skipped`.")
    ] = None,
) -> Result:
    """Find what is slow or wrong with this machine, a corpus or a training, and what to do about it."""
    if batch is None:
        from voxstill.core import config, world
        from voxstill.pipeline.doctor import look

        # not by `options.load`, which serves metrics: whether their port is free is a question here
        return look.doctor(where, config.load(options.config, list(options.overrides), world.environment()))
    from voxstill.pipeline import replay

    return replay.replay(where or ".", batch)
