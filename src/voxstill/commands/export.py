"""voxstill export."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from voxstill.core.command import CommonOptions, command
from voxstill.core.result import Result


@command("export", panel="Inference", position=7)
def export(
    options: CommonOptions,
    model: Annotated[str, Argument(metavar="EXP_OR_MODEL", show_default=False)],
    to: Annotated[str, Option("--to", metavar="DIR", help="The folder to write.", show_default=False)],
    int8: Annotated[bool, Option("--int8", help="Also write int8 weights, unless that costs accuracy.")] = False,
    streaming: Annotated[
        str | None,
        Option(
            metavar="MS,...",
            help="Chunk size of a streaming student: 1120, 560, 160 or 80 ms, the first by default.",
            show_default="560",
        ),
    ] = None,
) -> Result:
    """Write a student as ONNX files for onnxruntime, sherpa-onnx and onnx-asr, compared with torch before."""
    from voxstill.pipeline import evaluate
    from voxstill.pipeline import export as exporting

    cfg = options.load(base=options.config or evaluate.own_config(model))
    chunks_ms = () if streaming is None else exporting.chunks_of(streaming)
    return exporting.export(cfg, model, to, int8=int8, streaming=chunks_ms)
