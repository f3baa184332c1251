"""voxstill control."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from voxstill.core.command import CommonOptions, command, work_override
from voxstill.core.result import Result


@command("control", panel="Corpus", position=3)
def control(
    options: CommonOptions,
    folder: Annotated[
        str | None,
        Argument(metavar="WORK_OR_EXP", show_default=False, help="Default: `work` of the configuration."),
    ] = None,
    clear: Annotated[bool, Option("--clear", help="Withdraw all changes requested before.")] = False,
    stop_after_epoch: Annotated[
        bool, Option("--stop-after-epoch", help="Let a training end after the current epoch, as finished.")
    ] = False,
) -> Result:
    """Change a running labelling job or training: `--set teacher.revision=...`, `--set train.steps=...`."""
    from voxstill.core import config, world
    from voxstill.core.errors import ConfigError
    from voxstill.pipeline import control as job_control
    from voxstill.pipeline import control_training as training_control

    if folder is None:
        folder = options.with_work(config.load(options.config, (), world.environment())).work
    if training_control.is_experiment(folder):
        return training_control.control_training(
            folder, options.overrides, clear=clear, stop_after_epoch=stop_after_epoch
        )
    if stop_after_epoch:
        raise ConfigError(
            f"`{folder}` is not an experiment",
            code="no-experiment",
            why="only training runs have epochs",
            fix="give a folder below `train.root`",
        )
    # `--set` is for the job; and `options.load` would open the port of the job's metrics
    cfg = config.load(options.config, [work_override(folder)], world.environment())
    return job_control.control(cfg, options.overrides, clear=clear)
