"""voxstill plan."""

from __future__ import annotations

from typing import Annotated, Literal

from typer import Argument, Option

from voxstill.core.command import CommonOptions, command, milliseconds
from voxstill.core.result import Result


@command("plan", panel="Training", position=1)
def plan(
    options: CommonOptions,
    where: Annotated[
        str | None,
        Argument(
            metavar="WORK_OR_SIDECARS",
            show_default=False,
            help="Work folder, shards, or Parquet with `duration_ms`; default: `work` of the configuration.",
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        Option("--ranks", metavar="N", help="Training processes; default for a work folder: `train.devices`."),
    ] = None,
    budget: Annotated[
        int | None,
        Option("--budget", metavar="TIME", parser=milliseconds, help="Maximum audio per batch: 300s, 5m, 90000ms."),
    ] = None,
    epoch: Annotated[int, Option("--epoch", metavar="N", help="Epoch to plan, from 0.")] = 0,
    seed: Annotated[
        int | None, Option("--seed", metavar="N", help="Seed; default: `seed` of the configuration.")
    ] = None,
    layout: Annotated[
        Literal["local", "remote"] | None, Option("--layout", help="Shuffle all utterances, or a few shards at a time.")
    ] = None,
    pretrain: Annotated[
        bool, Option("--pretrain", help="Plan the batches of `voxstill pretrain`, not of `train`.")
    ] = False,
) -> Result:
    """Show the batches of an epoch before any audio is read."""
    overrides = {"plan.budget_ms": budget, "seed": seed, "plan.layout": layout}
    cfg = options.load(*(f"{name}={value}" for name, value in overrides.items() if value is not None))
    from voxstill.pipeline import plan as planning

    where = options.with_work(cfg).work if where is None else where
    return planning.plan_(where, ranks, epoch, cfg, pretrain=pretrain)
