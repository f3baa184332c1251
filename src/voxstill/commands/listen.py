"""voxstill listen."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from voxstill.core.command import CommonOptions, command


@command("listen", panel="Inference", position=6)
def listen(
    options: CommonOptions,
    target: Annotated[
        str, Argument(metavar="MODEL_OR_URL", show_default=False, help="A model, or the address of a server.")
    ],
    source: Annotated[
        str | None,
        Option("--from", metavar="FILE", help="A recording, or - for standard input, instead of the microphone."),
    ] = None,
    paced: Annotated[bool, Option("--paced", help="Read the recording at real-time speed.")] = False,
) -> None:
    """Transcribe the microphone while you speak: a line for each segment, with --json each word as it comes."""
    from voxstill.core import monitor
    from voxstill.pipeline import listen as live

    words = options.show if options.json else live.log_words
    with monitor.describing(lambda: None):  # who listens to silence has nothing to say
        live.listen(options.load(), target, source, paced=paced, words=words, segment=options.show)
