"""voxstill push."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from voxstill.core.command import CommonOptions, command
from voxstill.core.result import Result


@command("push", panel="Inference", position=8)
def push(
    options: CommonOptions,
    model: Annotated[str, Argument(metavar="EXP_OR_FOLDER", show_default=False)],
    name: Annotated[str, Argument(metavar="OWNER/NAME", show_default=False)],
) -> Result:
    """Upload a student, trained or exported, to the Hugging Face Hub with its model card."""
    from voxstill.pipeline import evaluate
    from voxstill.pipeline import push as pushing

    return pushing.push(options.load(base=options.config or evaluate.own_config(model)), model, name)
