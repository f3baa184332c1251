"""voxstill control."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from voxstill.core.command import CommonOptions, command, work_override
from voxstill.core.result import Result


@command("control", panel="Corpus", position=3)
def control(
    options: CommonOptions,
    work: Annotated[str, Argument(metavar="WORK", show_default=False)],
    clear: Annotated[bool, Option("--clear", help="Take back every change asked for before.")] = False,
) -> Result:
    """Change a running labelling job: `--set teacher.revision=...`."""
    from voxstill.core import config, world
    from voxstill.pipeline import control as job_control

    # `--set` is for the job; and `options.load` would open the port of the job's metrics
    cfg = config.load(options.config, [work_override(work)], world.environment())
    return job_control.control(cfg, options.overrides, clear=clear)
