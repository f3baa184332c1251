"""voxstill train-lm."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from voxstill.core.command import CommonOptions, command
from voxstill.core.result import Result


@command("train-lm", panel="Training", position=4)
def train_lm(
    options: CommonOptions,
    output: Annotated[str, Option("--output", metavar="FILE", help="ARPA file; gzipped where it ends in .gz.")],
    source: Annotated[
        str | None,
        Argument(
            metavar="SOURCE",
            show_default=False,
            help="Text file, folder of .txt files, or work folder with shards; default: `work` of the configuration.",
        ),
    ] = None,
    order: Annotated[int, Option("--order", min=1, max=7, metavar="N", help="Longest n-gram.")] = 3,
) -> Result:
    """Train an n-gram language model for decoding, from texts or the labels of a corpus."""
    cfg = options.load()
    from voxstill.pipeline import language_model

    source = options.with_work(cfg).work if source is None else source
    return language_model.train_lm(cfg, source, output, order)
