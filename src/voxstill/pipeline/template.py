"""init: a commented configuration to begin with."""

from __future__ import annotations

from pathlib import Path

from voxstill.core import config
from voxstill.core.atomic import is_stream
from voxstill.core.errors import ConfigError
from voxstill.core.result import ReportResult
from voxstill.storage.files import write_file


def create_config(output: str | None = None, *, overwrite: bool = False) -> ReportResult:
    """The commented configuration as `template`; with `output` it is written there, and the result has its `path`.

    ConfigError if the file exists, unless it may be overwritten.
    """
    text = config.template()
    if output is None:
        return ReportResult(figures={"template": text}, text=text.rstrip())
    path = Path(output)
    if path.exists() and not overwrite and not is_stream(path):
        raise ConfigError(
            f"`{path}` exists",
            code="output-exists",
            why="it would be overwritten",
            fix="give another file, or add --yes",
        )
    write_file(path, text.encode())
    return ReportResult(figures={"path": str(path)})
