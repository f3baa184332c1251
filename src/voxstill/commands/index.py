"""voxstill index."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, BadParameter, Option

from voxstill.core.command import CommonOptions, PartOption, command, override
from voxstill.core.result import Result


@command("index", panel="Corpus", position=1, resumes=True)
def index(
    options: CommonOptions,
    work: Annotated[
        str | None,
        Option(
            "--work",
            metavar="WORK",
            help="Folder or bucket prefix of the tables; default: that of the configuration.",
        ),
    ] = None,
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

    if source and _has_list_of_sources(options):
        raise BadParameter("`source` of the configuration is a list: leave SOURCE out, or remove the list")
    cfg = options.load_work(work, *([override("source.uri", source)] if source else []))
    if source and [one.uri for one in sources_of(cfg.source)] != [source]:
        raise BadParameter("SOURCE and `--set source` differ: give only one of them")
    if not any(one.uri for one in sources_of(cfg.source)):
        raise BadParameter("SOURCE is missing: give it, or set `source` in the configuration")
    from voxstill.pipeline import index as indexing

    return indexing.index(cfg, part=part)


def _has_list_of_sources(options: CommonOptions) -> bool:
    from voxstill.core import config, world

    return isinstance(config.load(options.config, options.overrides, world.environment()).source, list)
