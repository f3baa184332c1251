"""voxstill remove."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from voxstill.core.command import CommonOptions, WorkArgument, command
from voxstill.core.result import Result


@command("remove", panel="Corpus", position=8)
def remove(
    options: CommonOptions,
    ids: Annotated[str, Option("--ids", metavar="FILE", help="Ids of utterances or recordings, one a line.")],
    work: WorkArgument = None,
    reason: Annotated[str | None, Option("--reason", metavar="TEXT", help="Kept in the record.")] = None,
) -> Result:
    """Leave utterances or recordings out of every later table and shard."""
    from voxstill.pipeline import remove as removing

    return removing.remove(options.load_work(work), removing.read_ids(ids), reason)
