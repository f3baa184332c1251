"""voxstill transcribe."""

from __future__ import annotations

from typing import Annotated, Literal

from typer import Argument, Option

from voxstill.core.command import CommonOptions, command
from voxstill.core.result import Result


@command("transcribe", panel="Inference", position=1)
def transcribe(
    options: CommonOptions,
    model: Annotated[str, Argument(metavar="MODEL", show_default=False)],
    audio: Annotated[list[str], Argument(metavar="AUDIO", show_default=False)],
    form: Annotated[Literal["text", "srt", "vtt", "json"], Option("--format", help="Format of the output.")] = "text",
    output: Annotated[
        str | None,
        Option("--output", metavar="FOLDER", help="One file for each audio file, instead of standard output."),
    ] = None,
) -> Result:
    """Transcribe audio files: text, subtitles or JSON with word times."""
    from pathlib import Path

    from voxstill.core.monitor import log
    from voxstill.pipeline import transcribe as inference

    transcripts = inference.transcribe(options.load(), model, audio)
    for transcript in transcripts:
        if transcript.error is not None:
            log.error("%s: %s", transcript.audio, transcript.error)
    if output is not None:
        paths = inference.write_all(transcripts, form, Path(output))
        return inference.TranscribeResult(transcripts=transcripts, text="\n".join(map(str, paths)))
    with_name = form == "text" and len(audio) > 1
    texts = [
        (f"{transcript.audio}: " if with_name else "") + transcript.render(form)
        for transcript in transcripts
        if transcript.error is None
    ]
    return inference.TranscribeResult(transcripts=transcripts, text="\n".join(texts) or " ")
