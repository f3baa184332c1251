"""voxstill classify."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from voxstill.core.command import CommonOptions, command
from voxstill.core.result import Result


@command("classify", panel="Inference", position=2)
def classify(
    options: CommonOptions,
    model: Annotated[str, Argument(metavar="MODEL", help="An experiment, or the `model` folder in it.")],
    audio: Annotated[
        list[str],
        Argument(metavar="AUDIO...", show_default=False, help="Files, folders, addresses, or - for standard input."),
    ],
    top: Annotated[int, Option("--top", metavar="K", min=1, help="Number of most likely classes to show.")] = 5,
) -> Result:
    """Classify files and folders with a class student: the most likely classes and their probabilities."""
    from voxstill.pipeline import classify as inference
    from voxstill.pipeline.audio_input import log_faults

    result = inference.classify(options.load(), model, audio, top)
    log_faults(result.results)
    return result
