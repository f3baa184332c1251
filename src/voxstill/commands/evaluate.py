"""voxstill evaluate."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from voxstill.core.command import CommonOptions, Split, command, work_override
from voxstill.core.result import Result


@command("evaluate", panel="Evaluation", position=1)
def evaluate(
    options: CommonOptions,
    model: Annotated[str, Argument(metavar="EXP_OR_MODEL", show_default=False)],
    on: Annotated[Split | None, Option("--on", metavar="SPLIT", help="Default: evaluate.split.")] = None,
    work: Annotated[
        str | None, Option("--work", help="Where the utterances are; default: the WORK of the experiment.")
    ] = None,
    by: Annotated[
        list[str] | None,
        Option("--by", metavar="FIELD", help="Error rates per value of a field: speaker, dataset, gender, ..."),
    ] = None,
    show: Annotated[
        int, Option("--show", metavar="N", min=0, help="Show the alignments of the N utterances with the most errors.")
    ] = 0,
) -> Result:
    """Measure the error rates of a student with confidence intervals, or how well it classifies."""
    from voxstill.pipeline import evaluate as evaluation

    overrides = [f"evaluate.split={on}"] if on else []
    overrides += [work_override(work)] if work else []
    cfg = options.load(*overrides, base=options.config or evaluation.own_config(model))
    return evaluation.evaluate(cfg, model, by or (), show)
