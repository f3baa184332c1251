"""voxstill estimate."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from voxstill.core.command import CommonOptions, command, price
from voxstill.core.result import Result


@command("estimate", panel="Training", position=6)
def estimate(
    options: CommonOptions,
    config_file: Annotated[str, Argument(metavar="CONFIG", show_default=False)],
    gpu: Annotated[
        str | None, Option("--gpu", metavar="NAME", help="h200, h100, a100-80, l4, ...; default: this machine.")
    ] = None,
    price_per_hour: Annotated[
        float | None, Option("--price", metavar="X", parser=price, help="Price of one GPU per hour.")
    ] = None,
    probe: Annotated[
        bool, Option("--probe", help="If no chunk is labelled yet, label for a minute to measure; nothing is kept.")
    ] = False,
    pretrain: Annotated[bool, Option("--pretrain", help="Estimate `voxstill pretrain`, not `train`.")] = False,
) -> Result:
    """Estimate memory, time, cost and disk of a training before it starts."""
    from voxstill.core import world

    cfg = options.load(base=config_file)
    with world.collection_paused():
        from voxstill.pipeline import estimate as estimation  # after a wrong option is reported: it loads torch

        return estimation.estimate(cfg, gpu=gpu, price=price_per_hour, probe=probe, pretrain=pretrain)
