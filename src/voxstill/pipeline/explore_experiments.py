"""What the explorer shows of experiments: learning curves, results, and the texts of their students."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.evaluation import results
from voxstill.evaluation.results import StoredResult
from voxstill.scoring import words
from voxstill.storage.redaction import redact_uri
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.text.normalize import normalizer

if TYPE_CHECKING:
    from voxstill.explorer.experiments import ExperimentFacts
    from voxstill.explorer.students import StudentText


def facts_of(cfg: Config, experiments: Sequence[str]) -> list[ExperimentFacts]:
    """The facts of experiments by their folders; DataError if one is none."""
    from voxstill.explorer.experiments import ExperimentFacts, curves_of
    from voxstill.explorer.students import StudentTexts

    facts: list[ExperimentFacts] = []
    work = redact_uri(Store(cfg.work).root)
    for number, path in enumerate(experiments):
        run = RunDir(Path(path))
        if not run.config.is_file():
            raise DataError(
                f"`{path}` is not an experiment",
                code="no-experiment",
                why="it has no config.yaml",
                fix="give folders that `voxstill train` made",
            )
        stored = [result for result in results.own(results.read_all(run.evaluation), None) if result.has_texts]
        here = [result for result in stored if result.corpus is None or result.corpus.work == work]
        rows: dict[str, StudentText] = {}
        for result in here:
            rows = {**_texts(result), **rows}
        name = run.path.resolve().name
        if name in ("human", *(one.name for one in facts)):  # titles of other texts
            name = str(run.path.resolve())
        facts.append(
            ExperimentFacts(
                name=name,
                curves=curves_of(_lines(run.metrics)),
                results=[_shown(result) for result in stored],
                texts=StudentTexts(number=number, name=name, rows=rows) if rows else None,
            )
        )
    return facts


def _texts(result: StoredResult) -> dict[str, StudentText]:
    from voxstill.explorer.students import StudentText

    normalize = normalizer(str(result.figures.get("normalizer") or "basic"))
    written = {str(row["id"]): str(row["text"]) for row in results.rows(result.hypotheses)}
    texts = {}
    for row in results.rows(result.references):
        if row["id"] in written:
            counts = words.wer([(normalize(row["text"]), normalize(written[row["id"]]))])
            texts[row["id"]] = StudentText(written[row["id"]], counts.errors, counts.reference)
    return texts


def _shown(result: StoredResult) -> dict[str, object]:
    names = ("split", "wer", "cer", "interval", "words", "utterances", "accuracy", "eer")
    figures = {name: result.figures[name] for name in names if name in result.figures}
    return figures | {"decoding": results.decoding(result.figures)}


def _lines(path: Path) -> list[Mapping[str, Any]]:
    """The lines of a `metrics.jsonl` that are whole: a training may be writing it."""
    if not path.is_file():
        return []
    lines: list[Mapping[str, Any]] = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            lines.append(line)
    return lines
