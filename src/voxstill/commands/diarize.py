"""voxstill diarize."""

from __future__ import annotations

from typing import Annotated, Literal

from typer import Argument, Option

from voxstill.core.command import CommonOptions, command
from voxstill.core.result import Result


@command("diarize", panel="Inference", position=4)
def diarize(
    options: CommonOptions,
    audio: Annotated[
        list[str],
        Argument(metavar="AUDIO...", show_default=False, help="Files, folders, addresses, or - for standard input."),
    ],
    form: Annotated[Literal["rttm", "json", "srt"], Option("--format", help="Format of the output.")] = "rttm",
) -> Result:
    """Find who speaks when in files and folders: RTTM, JSON or subtitles with speakers."""
    from voxstill.pipeline import diarize as diarization
    from voxstill.pipeline.audio_input import log_faults

    result = diarization.diarize(options.load(), audio, form)
    log_faults(result.recordings)
    return result
