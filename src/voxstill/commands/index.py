"""voxstill index."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, BadParameter, Option

from voxstill.core.command import CommonOptions, PartOption, command, override, work_override
from voxstill.core.result import Result


@command("index", panel="Corpus", position=1)
def index(
    options: CommonOptions,
    work: Annotated[str, Option("--work", metavar="WORK", help="Folder or bucket prefix of the tables.")],
    source: Annotated[
        list[str] | None,
        Argument(
            metavar="SOURCE",
            help="Folder, audio file, manifest, tar, list or Kaldi directory; default: `source` of the configuration.",
        ),
    ] = None,
    part: PartOption = None,
) -> Result:
    """Find recordings and cut them into utterances."""
    from voxstill.core.config import sources_of

    cfg = options.load(work_override(work), *([override("source.uri", source)] if source else []))
    if not any(one.uri for one in sources_of(cfg.source)):
        raise BadParameter("there is no SOURCE: name one, or set `source` in the configuration")
    from voxstill.pipeline import index as indexing

    return indexing.index(cfg, part=part)
