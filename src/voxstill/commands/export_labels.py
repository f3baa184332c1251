"""voxstill export-labels."""

from __future__ import annotations

from typing import Annotated, Literal

from typer import Option

from voxstill.core.command import CommonOptions, WorkArgument, command
from voxstill.core.result import Result


@command("export-labels", panel="Corpus", position=8)
def export_labels(
    options: CommonOptions,
    output: Annotated[
        str, Option("--output", metavar="PATH", help="A file, or a folder for kaldi, srt and hf.", show_default=False)
    ],
    work: WorkArgument = None,
    form: Annotated[
        Literal["jsonl", "csv", "nemo", "lhotse", "kaldi", "srt", "stm", "hf"],
        Option("--format", help="Output format."),
    ] = "jsonl",
    scores: Annotated[bool, Option("--scores", help="Include the scores of the filter.")] = False,
    verdicts: Annotated[
        bool, Option("--verdicts", help="Include the verdicts of the filter and their reasons.")
    ] = False,
    kept: Annotated[bool, Option("--kept", help="Only labels that the filter kept.")] = False,
) -> Result:
    """Write the labels as files that other tools read."""
    from voxstill.pipeline import export_labels as exporting

    cfg = options.load_work(work)
    return exporting.export_labels(
        cfg, output, form, scores=scores, verdicts=verdicts, kept=kept, overwrite=options.yes
    )
