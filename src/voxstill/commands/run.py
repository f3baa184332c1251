"""voxstill run."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, BadParameter, Option

from voxstill.core.command import AllowTeacherOption, CommonOptions, command
from voxstill.core.result import Result


@command("run", panel="Start", position=2, resumes=True)
def run(
    options: CommonOptions,
    config_file: Annotated[str, Argument(metavar="CONFIG", show_default=False)],
    max_batches: Annotated[
        int | None, Option("--max-batches", metavar="N", help="Train at most N steps, to test the whole pipeline.")
    ] = None,
    rehearse: Annotated[
        bool, Option("--rehearse", "--dry-run", help="Run on a few files for a few steps, in separate folders.")
    ] = False,
    allow_teacher: AllowTeacherOption = None,
) -> Result:
    """Run all steps from raw audio to an evaluated student; finished steps are skipped."""
    if rehearse and allow_teacher:
        raise BadParameter("`--rehearse` labels a few files only: leave `--allow-teacher` out")
    limit = [] if max_batches is None or rehearse else [f"train.steps={max_batches}"]
    cfg = options.load(*limit, base=config_file)
    from voxstill.pipeline import dry_run, end_to_end

    return dry_run.dry_run(cfg, max_batches) if rehearse else end_to_end.run(cfg, allow_teacher=allow_teacher or ())
