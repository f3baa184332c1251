"""voxstill shard."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, BadParameter, Option

from voxstill.core.command import CommonOptions, PartOption, WorkArgument, command, override
from voxstill.core.result import Result


@command("shard", panel="Corpus", position=6, resumes=True)
def shard(
    options: CommonOptions,
    work: WorkArgument = None,
    more: Annotated[list[str] | None, Argument(metavar="SOURCE", help="More sources for `--from`.")] = None,
    source: Annotated[
        list[str] | None, Option("--from", metavar="SOURCE", help="Repack these tars or folders.")
    ] = None,
    unlabelled: Annotated[
        bool, Option("--unlabelled", help="All utterances, without labels: for `voxstill pretrain`.")
    ] = False,
    part: PartOption = None,
) -> Result:
    """Write the kept utterances as WebDataset tars with Parquet sidecars."""
    if more and not source:
        raise BadParameter("several sources need `--from`")
    if source and part:
        raise BadParameter(
            "`--from` cannot run in parts: run index, label, filter and shard in parts, one after the other"
        )
    from voxstill.pipeline import shard as sharding

    if source:
        sources = [*source, *(more or [])]
        cfg = options.load_work(work, override("source.uri", sources), *sharding.REPACK)
        return sharding.repack(cfg)
    cfg = options.load_work(work)
    return sharding.shard_unlabelled(cfg, part=part) if unlabelled else sharding.shard(cfg, part=part)
