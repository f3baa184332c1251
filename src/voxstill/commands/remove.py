"""voxstill remove."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from voxstill.core.command import CommonOptions, command, work_override
from voxstill.core.result import Result


@command("remove", panel="Corpus", position=8)
def remove(
    options: CommonOptions,
    work: Annotated[str, Argument(metavar="WORK", help="Work folder, or prefix of a bucket.")],
    ids: Annotated[str, Option("--ids", metavar="FILE", help="File of ids of utterances or recordings, one per line.")],
    reason: Annotated[
        str | None, Option("--reason", metavar="TEXT", help="Reason, written into the record of removals.")
    ] = None,
) -> Result:
    """Leave utterances or recordings out of every later table and shard."""
    from voxstill.pipeline import remove as removing

    return removing.remove(options.load(work_override(work)), removing.read_ids(ids), reason)
