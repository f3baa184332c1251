"""voxstill index."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from voxstill.core.command import CommonOptions, PartOption, command, override, work_override
from voxstill.core.result import Result


@command("index", panel="Corpus", position=1)
def index(
    options: CommonOptions,
    source: Annotated[
        list[str], Argument(metavar="SOURCE", help="Folder, audio file, manifest, tar, list or Kaldi directory.")
    ],
    work: Annotated[str, Option("--work", metavar="WORK", help="Folder or bucket prefix of the tables.")],
    part: PartOption = None,
) -> Result:
    """Find recordings and cut them into utterances."""
    cfg = options.load(work_override(work), override("source.uri", source))
    from voxstill.pipeline import index as indexing

    return indexing.index(cfg, part=part)
