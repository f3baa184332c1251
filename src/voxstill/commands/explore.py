"""voxstill explore."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from voxstill.core.command import CommonOptions, WorkArgument, command


@command("explore", panel="Corpus", position=10)
def explore(
    options: CommonOptions,
    work: WorkArgument = None,
    experiments: Annotated[
        list[str] | None,
        Argument(metavar="[EXP]...", show_default=False, help="Experiments whose students are shown side by side."),
    ] = None,
    port: Annotated[int, Option("--port", min=0, max=65_535, help="0: the system chooses a free port.")] = 0,
    edit: Annotated[
        bool, Option("--edit", help="Judge labels and correct texts; without it the explorer is read-only.")
    ] = False,
    judge: Annotated[
        str | None, Option("--judge", metavar="NAME", help="Name of the annotator; default: the user of this machine.")
    ] = None,
) -> None:
    """Explore a corpus in a browser: search, sort, listen, compare, judge."""
    from voxstill.core import monitor
    from voxstill.pipeline import explore as exploring

    cfg = options.load_work(work)
    with monitor.describing(lambda: None):  # nothing happens while no page is open
        exploring.explore(cfg, experiments or (), port, options.show, edit=edit, judge=judge)
