"""voxstill voices."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from voxstill.core.command import CommonOptions, command
from voxstill.core.result import Result


@command("voices", panel="Corpus", position=10)
def voices(
    options: CommonOptions,
    texts: Annotated[
        str, Argument(metavar="GRAMMAR_OR_TEXTS", help="JSGF grammar, or text file with a sentence in each line.")
    ],
    output: Annotated[str, Option("--output", metavar="DIR", help="Folder for the audio and its manifest.")],
    hours: Annotated[float, Option("--hours", metavar="H", help="Hours of audio.")] = 1.0,
    language: Annotated[str, Option("--language", metavar="CODE", help="Language of espeak-ng.")] = "en",
) -> Result:
    """Make synthetic speech of the sentences of a grammar or a text file, with a manifest."""
    cfg = options.load()
    from voxstill.pipeline import voices as synthesis

    return synthesis.voices(texts, output, hours, language, cfg.seed)
