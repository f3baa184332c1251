"""voxstill align."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from voxstill.core.command import CommonOptions, command
from voxstill.core.result import Result


@command("align", panel="Corpus", position=8)
def align(
    options: CommonOptions,
    audio: Annotated[str, Argument(metavar="AUDIO", help="Long recording.")],
    text: Annotated[str, Argument(metavar="TEXT", help="Its transcript: a text file of one or more lines.")],
    output: Annotated[str, Option("--output", metavar="MANIFEST", help="JSONL file of the utterances.")],
    model: Annotated[
        str | None, Option("--model", metavar="MODEL", help="CTC model, folder or Hub name; default: filter.aligner.")
    ] = None,
) -> Result:
    """Cut long audio with its transcript into labelled utterances, by forced alignment."""
    cfg = options.load()
    from voxstill.pipeline import align as alignment

    return alignment.align(cfg, audio, text, output, model=model, overwrite=options.yes)
