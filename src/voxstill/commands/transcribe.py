"""voxstill transcribe."""

from __future__ import annotations

from typing import Annotated, Literal

from typer import Argument, Option

from voxstill.core.command import CommonOptions, command
from voxstill.core.result import Result


@command("transcribe", panel="Inference", position=1)
def transcribe(
    options: CommonOptions,
    model: Annotated[
        str, Argument(metavar="MODEL", help="An experiment, a model folder, an exported student, or a name on the Hub.")
    ],
    audio: Annotated[
        list[str] | None,
        Argument(metavar="[AUDIO]...", show_default=False, help="Files, folders, addresses, or - for standard input."),
    ] = None,
    form: Annotated[Literal["text", "srt", "vtt", "json"], Option("--format", help="Format of the output.")] = "text",
    output: Annotated[
        str | None,
        Option("--output", metavar="FOLDER", help="One file for each audio file, instead of standard output."),
    ] = None,
    microphone: Annotated[
        float | None, Option("--microphone", metavar="SECONDS", min=0.1, help="Record this long from the microphone.")
    ] = None,
) -> Result:
    """Transcribe files, folders or a microphone: text, subtitles or JSON with word times."""
    from pathlib import Path

    from voxstill.core.terminal import one_line
    from voxstill.pipeline import transcribe as inference
    from voxstill.pipeline.audio_input import log_faults

    files = None if output is None else inference.TranscriptFiles(Path(output), form)
    transcripts, num_skipped = inference.transcribe(options.load(), model, audio or [], microphone, files)
    log_faults(transcripts)
    if files is not None:
        text = "\n".join(one_line(str(path)) for path in files.paths)
    else:
        with_name = form == "text" and len(transcripts) > 1
        text = "\n".join(
            one_line(f"{transcript.audio}: {transcript.text}") if with_name else transcript.render(form)
            for transcript in transcripts
            if transcript.error is None
        )
    return inference.TranscribeResult(transcripts=transcripts, skipped=num_skipped, text=text)
