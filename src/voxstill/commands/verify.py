"""voxstill verify."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from voxstill.core.command import CommonOptions, command
from voxstill.core.result import Result


@command("verify", panel="Corpus", position=7)
def verify(
    options: CommonOptions,
    where: Annotated[
        str | None,
        Argument(metavar="WORK_OR_EXP", show_default=False, help="Default: `work` of the configuration."),
    ] = None,
    repair: Annotated[bool, Option("--repair", help="Make again only what is broken.")] = False,
) -> Result:
    """Compare what is on disk with what was written, to the last byte of the shards."""
    from voxstill.pipeline import verify as verifying

    cfg = options.load_work(where)
    return verifying.verify(cfg.work, cfg, repair=repair)
