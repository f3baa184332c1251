"""voxstill explain."""

from __future__ import annotations

from typing import Annotated, Literal

from typer import Argument, Option

from voxstill.core.command import CommonOptions, command
from voxstill.core.result import ReportResult, Result


@command("explain", panel="Start", position=4)
def explain(
    options: CommonOptions,
    section: Annotated[str | None, Argument(metavar="SECTION|CODE", show_default=False)] = None,
    hear: Annotated[
        Literal["augment"] | None,
        Option("--hear", help="Write audio of the source before and after augmentation."),
    ] = None,
    output: Annotated[str, Option("--output", metavar="FOLDER", help="Folder for that audio.")] = "heard",
) -> Result:
    """Print every option with its unit, default and meaning, or what the code of an error means."""
    import dataclasses
    import json
    from pathlib import Path

    if hear:
        from voxstill.pipeline import preview_augmentation

        return preview_augmentation.augmentation(options.load(), Path(output))
    from voxstill.core.explanations import as_text, explanations

    if section is not None and (explanation := explanations().get(section)) is not None:
        text = as_text(explanation)
        return ReportResult(figures={"code": section, "explanation": text}, text=text)
    from voxstill.pipeline.options import explained

    rows = explained(section)
    lines = []
    for row in rows:
        unit = f" [{row.unit}]" if row.unit else ""
        limits = f", {row.limits}" if row.limits else ""
        lines.append(f"{row.path}{unit} = {json.dumps(row.default, ensure_ascii=False)}")
        lines.append(f"    {row.meaning} ({row.type}{limits})")
    return ReportResult(figures={"options": [dataclasses.asdict(row) for row in rows]}, text="\n".join(lines))
