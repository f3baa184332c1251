"""voxstill compare."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from typer import Argument, Option

from voxstill.core.command import (
    CommonOptions,
    FormOption,
    LanguageOption,
    NormalizerOption,
    Split,
    command,
)
from voxstill.core.result import Result


@command("compare", panel="Evaluation", position=2)
def compare(
    options: CommonOptions,
    first: Annotated[
        str, Argument(metavar="RUN_A", help="An evaluated experiment, one of its results, or a file of hypotheses.")
    ],
    second: Annotated[str, Argument(metavar="RUN_B", help="The second one, of the same kinds.")],
    ref: Annotated[str | None, Option("--ref", metavar="REF", help="References; experiments have their own.")] = None,
    report: Annotated[
        str | None, Option("--report", metavar="FILE", help="Write a page with both hypotheses of every utterance.")
    ] = None,
    on: Annotated[Split | None, Option("--on", metavar="SPLIT", help="Default: evaluate.split.")] = None,
    form: FormOption = None,
    lang: LanguageOption = None,
    normalizer: NormalizerOption = None,
) -> Result:
    """Test whether one of two recognisers makes fewer errors, with a p-value."""
    cfg = options.load(*([f"evaluate.split={on}"] if on else []))
    from voxstill.pipeline import compare as comparison

    both = comparison.sides(cfg, first, second, ref, form=form, language=lang, normalizer=normalizer)
    result = comparison.runs(cfg, both)
    if report is None:
        return result
    from voxstill.pipeline import compare_page  # torch comes with it
    from voxstill.storage.files import write_page

    return dataclasses.replace(result, report=write_page(compare_page.comparison(cfg, both, result.to_dict()), report))
