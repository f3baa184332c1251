"""voxstill init."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from voxstill.core.command import CommonOptions, command
from voxstill.core.result import ReportResult, Result


@command("init", "create-config", panel="Start", position=3)
def init(
    options: CommonOptions,
    output: Annotated[
        str | None, Option("--output", metavar="FILE", help="Write it there instead of to standard output.")
    ] = None,
) -> Result:
    """Print a commented configuration."""
    from pathlib import Path

    from voxstill.core import config
    from voxstill.core.errors import ConfigError
    from voxstill.storage.store import Store

    text = config.template()
    if output is None:
        return ReportResult(figures={"template": text}, text=text.rstrip())
    path = Path(output)
    if path.exists() and not options.yes:
        raise ConfigError(f"`{path}` exists", why="it would be overwritten", fix="name another file, or add --yes")
    Store(str(path.parent)).replace(path.name, text.encode())
    return ReportResult(figures={"path": str(path)})
