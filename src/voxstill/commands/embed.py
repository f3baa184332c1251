"""voxstill embed."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from voxstill.core.command import CommonOptions, command
from voxstill.core.result import Result


@command("embed", panel="Inference", position=3)
def embed(
    options: CommonOptions,
    model: Annotated[str, Argument(metavar="MODEL", help="An experiment, or the `model` folder in it.")],
    audio: Annotated[
        list[str],
        Argument(metavar="AUDIO...", show_default=False, help="Files, folders, addresses, or - for standard input."),
    ],
    output: Annotated[
        str | None, Option("--output", metavar="FILE", help="A .npz or .jsonl, instead of standard output.")
    ] = None,
    compare: Annotated[bool, Option("--compare", help="Whether two recordings are of the same speaker.")] = False,
) -> Result:
    """Embed voices with a speaker student: a vector of unit length for each file; or compare two."""
    from voxstill.pipeline import classify as inference
    from voxstill.pipeline.audio_input import log_faults

    result = inference.embed(options.load(), model, audio, output, compare=compare)
    log_faults(result.embeddings)
    return result
