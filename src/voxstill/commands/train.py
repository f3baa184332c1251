"""voxstill train."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from voxstill.core.command import CommonOptions, command
from voxstill.core.result import Result


@command("train", panel="Training", position=3, resumes=True)
def train(
    options: CommonOptions,
    config_file: Annotated[str, Argument(metavar="CONFIG", show_default=False)],
    experiment: Annotated[
        str | None,
        Option(
            "--continue",
            metavar="EXP",
            help="Go on with this experiment, or from this checkpoint of it, with other options.",
        ),
    ] = None,
) -> Result:
    """Train a student in an experiment folder; the same command again resumes it."""
    cfg = options.load(base=config_file)
    from voxstill.pipeline import train as training  # after a wrong option is reported: it loads torch

    return training.train(cfg, experiment)
