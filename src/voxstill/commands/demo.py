"""voxstill demo."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from voxstill.core.command import CommonOptions, command, work_override
from voxstill.core.result import Result


@command("demo", panel="Start", position=1, resumes=True)
def demo(
    options: CommonOptions,
    work: Annotated[str, Option("--work", help="Folder for the corpus and everything made from it.")] = "work/demo",
) -> Result:
    """Run all steps on a synthetic corpus: no network, no GPU, six minutes."""
    from voxstill.pipeline import end_to_end

    return end_to_end.demo(options.load(work_override(work), *end_to_end.DEMO), work)
