"""voxstill remove."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from voxstill.core.command import CommonOptions, WorkArgument, command
from voxstill.core.errors import ConfigError
from voxstill.core.result import Result


@command("remove", panel="Corpus", position=8)
def remove(
    options: CommonOptions,
    work: WorkArgument = None,
    ids: Annotated[
        str | None, Option("--ids", metavar="FILE", help="File of ids of utterances or recordings, one per line.")
    ] = None,
    speakers: Annotated[
        list[str] | None,
        Option("--speaker", metavar="NAME", help="All utterances that are there now of a speaker; may be repeated."),
    ] = None,
    reason: Annotated[
        str | None, Option("--reason", metavar="TEXT", help="Reason, written into the record of removals.")
    ] = None,
) -> Result:
    """Leave utterances, recordings or speakers out of every later table and shard."""
    from voxstill.pipeline import remove as removing

    if ids is None and not speakers:
        raise ConfigError(
            "nothing to remove",
            code="option-missing",
            why="there is neither `--ids` nor `--speaker`",
            fix="give a file of ids, one per line, or the name of a speaker",
        )
    cfg = options.load_work(work)
    listed = [] if ids is None else removing.read_ids(ids)
    return removing.remove(cfg, listed, reason, speakers=speakers or ())
