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
        int | None, Option("--max-chunks", metavar="N", help="Stop after N chunks; the same command resumes.")
    ] = None,
    limit_hours: Annotated[
        float | None,
        Option("--limit-hours", metavar="H", help="Stop after H hours of audio; the same command resumes."),
    ] = None,
    part: PartOption = None,
    retry_failed: Annotated[
        bool, Option("--retry-failed", help="Also make failed labels again; run the later steps after it.")
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
