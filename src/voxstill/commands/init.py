"""voxstill init."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from voxstill.core.command import CommonOptions, command
from voxstill.core.result import Result


@command("init", "create-config", panel="Start", position=3)
def init(
    options: CommonOptions,
    output: Annotated[
        str | None, Option("--output", metavar="FILE", help="File to write instead of standard output.")
    ] = None,
) -> Result:
    """Print a commented configuration."""
    from voxstill.pipeline import template

    return template.create_config(output, overwrite=options.yes)
