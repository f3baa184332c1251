"""voxstill train."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from voxstill.core.command import CommonOptions, ContinueOption, command
from voxstill.core.result import Result


@command("train", panel="Training", position=3, resumes=True)
def train(
    options: CommonOptions,
    config_file: Annotated[str, Argument(metavar="CONFIG", show_default=False)],
    experiment: ContinueOption = None,
) -> Result:
    """Train a student in an experiment folder; the same command again resumes it."""
    cfg = options.load(base=config_file)
    from voxstill.pipeline.marks import marked_as

    with marked_as("train", cfg):  # before torch is loaded: `reap` finds a rank by its work folder from here on
        from voxstill.pipeline import train as training

        return training.train(cfg, experiment)
