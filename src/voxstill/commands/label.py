"""voxstill label."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from voxstill.core.command import AllowTeacherOption, CommonOptions, PartOption, WorkArgument, command
from voxstill.core.result import Result


@command("label", panel="Corpus", position=2, resumes=True)
def label(
    options: CommonOptions,
    work: WorkArgument = None,
    max_chunks: Annotated[
        int | None, Option("--max-chunks", metavar="N", help="Stop after N chunks; the same command goes on.")
    ] = None,
    limit_hours: Annotated[
        float | None,
        Option("--limit-hours", metavar="H", help="Stop after H hours of audio; the same command goes on."),
    ] = None,
    part: PartOption = None,
    retry_failed: Annotated[
        bool, Option("--retry-failed", help="Make labels that failed again, too; later steps then follow.")
    ] = False,
    allow_teacher: AllowTeacherOption = None,
) -> Result:
    """Label every utterance with a teacher."""
    cfg = options.load_work(work)
    from voxstill.pipeline import label as labelling

    return labelling.label_utterances(
        cfg,
        max_chunks=max_chunks,
        limit_hours=limit_hours,
        retry_failed=retry_failed,
        part=part,
        allow_teacher=allow_teacher or (),
    )
