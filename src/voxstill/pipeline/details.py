"""evaluate --by, --show: error rates by any field of the manifest, and alignments of the worst utterances."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from voxstill.core.config import Config
from voxstill.core.errors import ConfigError
from voxstill.core.records import Utterance
from voxstill.core.terminal import MOST_NAME, one_line
from voxstill.evaluation import recognition, results, summary, tables
from voxstill.evaluation.results import Evaluation, Row
from voxstill.indexing import manifest_column
from voxstill.scoring import figures as scoring
from voxstill.scoring import words
from voxstill.text.normalize import normalizer
from voxstill.text.normalize import words as split_words

MOST_ASKED = 100
"""Groups of a field that was asked for."""
Fields = Mapping[str, Mapping[str, str]]
"""Values by utterance id, of each field."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """An utterance with what is known of it, and its texts after normalising."""

    row: Row
    reference: str
    hypothesis: str


def with_text(
    evaluation: Evaluation, by: Sequence[str] = (), fields: Fields | None = None, show: int = 0
) -> Evaluation:
    """The evaluation with its text for people, and with error rates by further `fields`; the text has those of `by`.

    ConfigError if fields or alignments are asked of a student that writes no text.
    """
    figures = evaluation.figures
    if "wer" not in figures or results.HYPOTHESES not in evaluation.files:
        if by or show:
            raise ConfigError(
                f"`--{'by' if by else 'show'}` is for recognisers",
                code="option-unused",
                why=f"`{figures.get('model')}` does not output text",
                fix="leave it out; `--json` has every class",
            )
        is_known = {"accuracy", "macro_f1", "classes", "rtfx", "parameters", "scorer"} <= figures.keys()
        return replace(evaluation, text=summary.text_of(figures, ())) if is_known else evaluation
    judged = _judged(evaluation)
    groups = {f"by_{name}": _by(judged, field) for name, field in (fields or {}).items()}
    evaluation = replace(evaluation, figures={**figures, **groups})
    shown = by or [name for name in recognition.PROPERTIES if len(figures[f"by_{name}"]) > 1]
    text = summary.text_of(evaluation.figures, shown, MOST_ASKED if by else summary.MOST_GROUPS)
    return replace(evaluation, text="\n".join([*alignments(judged, show), text]))


def _judged(evaluation: Evaluation) -> list[_Judged]:
    normalize = normalizer(evaluation.figures["normalizer"])
    rows = {
        name: [json.loads(line) for line in evaluation.files[name].split("\n") if line]
        for name in (results.REFERENCES, results.HYPOTHESES)
    }
    texts = {row["id"]: row["text"] for row in rows[results.HYPOTHESES]}
    return [_Judged(row, normalize(row["text"]), normalize(texts[row["id"]])) for row in rows[results.REFERENCES]]


def alignments(judged: Sequence[_Judged], num: int) -> list[str]:
    """The utterances with most errors, aligned; none without an error."""
    lines: list[str] = []
    scored = [(words.count(one.reference.split(), one.hypothesis.split()), one) for one in judged] if num else []
    scored.sort(key=lambda pair: (-pair[0].errors, pair[1].row["id"]))
    for counts, one in scored[:num]:
        if counts.errors:
            _, pairs = words.align(split_words(one.reference), split_words(one.hypothesis))
            lines.append(
                f"{one_line(one.row['id'], MOST_NAME)}: {counts.errors:,} errors in {counts.reference:,} words"
            )
            lines += [*tables.alignment(pairs), ""]
    return lines


def fields_of(cfg: Config, utterances: Sequence[Utterance], names: Sequence[str]) -> Fields:
    """The fields of utterances that are asked for, but for those that every evaluation has.

    They are those of the table, or columns of the manifests of `source`. ConfigError for one that nothing has.
    """
    return {name: _field(cfg, utterances, name) for name in names if name not in recognition.PROPERTIES}


def _field(cfg: Config, utterances: Sequence[Utterance], name: str) -> dict[str, str]:
    if name in recognition.FIELDS:
        known: Mapping[str, object] = {row.id: getattr(row.info, name) for row in utterances}
    else:
        known = manifest_column.column(cfg.source, name, utterances)
    values = {id_: str(value) for id_, value in known.items() if value is not None}
    if values:
        return values
    if name in recognition.FIELDS:
        raise ConfigError(
            f"errors cannot be broken down by `{name}`",
            code="field-missing",
            why=f"none of the {len(utterances):,} utterances of the split has it",
            fix="leave it out, or index a manifest with it into another work folder",
        )
    raise ConfigError(
        f"no utterance of the split has a field `{name}`",
        code="field-missing",
        why="neither the table nor a JSONL, JSON, CSV, TSV or Parquet manifest of `source.uri` has it for any "
        "utterance",
        fix="give the manifest of these utterances, `--set source.uri=FILE`; fields of the table are "
        + ", ".join(f"`{field}`" for field in recognition.FIELDS),
    )


def _by(judged: Sequence[_Judged], field: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """Error rates by the values of a field, which are by utterance id."""
    scored = [words.score(one.row["id"], one.reference, one.hypothesis) for one in judged]
    return scoring.to_dicts(scoring.rates(words.group_by(scored, lambda row: field.get(row.id))))
