"""voxstill pretrain."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from voxstill.core.command import CommonOptions, ContinueOption, command
from voxstill.core.result import Result


@command("pretrain", panel="Training", position=2, resumes=True)
def pretrain(
    options: CommonOptions,
    config_file: Annotated[str, Argument(metavar="CONFIG", show_default=False)],
    experiment: ContinueOption = None,
) -> Result:
    """Pre-train a model on audio without labels, for students to start from."""
    cfg = options.load(base=config_file)
    from voxstill.pipeline.marks import marked_as

    with marked_as("pretrain", cfg):  # before torch is loaded: `reap` finds a rank by its work folder from here on
        from voxstill.pipeline import pretrain as pretraining

        return pretraining.pretrain(cfg, experiment)
