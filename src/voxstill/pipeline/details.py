"""evaluate --by, --show: error rates by any field of the manifest, and alignments of the worst utterances."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from voxstill.core.config import Config, sources_of
from voxstill.core.errors import ConfigError
from voxstill.core.terminal import MOST_NAME, one_line
from voxstill.evaluation import recognition, results, summary, tables
from voxstill.evaluation.results import Evaluation, Row
from voxstill.scoring import figures as scoring
from voxstill.scoring import words
from voxstill.text import transcripts
from voxstill.text.normalize import normalizer
from voxstill.text.normalize import words as split_words

MOST_ASKED = 100
"""Groups of a field that was asked for."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """An utterance with what is known of it, and its texts after normalising."""

    row: Row
    reference: str
    hypothesis: str


def with_text(cfg: Config, evaluation: Evaluation, by: Sequence[str] = (), show: int = 0) -> Evaluation:
    """The evaluation with its text for people, and with error rates by further fields.

    ConfigError where fields or alignments are asked of a student that writes no text, and for an unknown field.
    """
    figures = evaluation.figures
    if "wer" not in figures or results.HYPOTHESES not in evaluation.files:
        if by or show:
            raise ConfigError(
                f"`--{'by' if by else 'show'}` is of recognisers",
                why=f"`{figures.get('model')}` writes no text",
                fix="leave it out; `--json` has every class",
            )
        is_known = {"accuracy", "macro_f1", "classes", "rtfx", "parameters", "scorer"} <= figures.keys()
        return replace(evaluation, text=summary.text_of(figures, ())) if is_known else evaluation
    judged = _judged(evaluation)
    groups = {f"by_{field}": _by(cfg, judged, field) for field in by if f"by_{field}" not in figures}
    evaluation = replace(evaluation, figures={**figures, **groups})
    shown = by or [name for name in recognition.PROPERTIES if len(figures[f"by_{name}"]) > 1]
    text = summary.text_of(evaluation.figures, shown, MOST_ASKED if by else summary.MOST_GROUPS)
    return replace(evaluation, text="\n".join([*alignments(judged, show), text]))


def _judged(evaluation: Evaluation) -> list[_Judged]:
    alike = normalizer(evaluation.figures["normalizer"])
    rows = {
        name: [json.loads(line) for line in evaluation.files[name].split("\n") if line]
        for name in (results.REFERENCES, results.HYPOTHESES)
    }
    texts = {row["id"]: row["text"] for row in rows[results.HYPOTHESES]}
    return [_Judged(row, alike(row["text"]), alike(texts[row["id"]])) for row in rows[results.REFERENCES]]


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


def _by(cfg: Config, judged: Sequence[_Judged], field: str) -> dict[str, dict[str, object]]:
    """Error rates by the values of a field of the utterances, or of a column of the manifest."""
    if any(field in one.row for one in judged) and field not in ("id", "text", "start_ms", "end_ms"):
        values: Mapping[str, object] = {one.row["id"]: one.row[field] for one in judged}
    else:
        values = _column(cfg, field)
    named = {id_: str(value) for id_, value in values.items() if value is not None}
    if not any(one.row["id"] in named for one in judged):
        raise ConfigError(
            f"no utterance has a field `{field}`",
            why="neither the table nor a JSONL manifest of `source.uri` that names ids has it",
            fix="fields of the table are " + ", ".join(f"`{name}`" for name in recognition.FIELDS),
        )
    scored = [words.score(one.row["id"], one.reference, one.hypothesis) for one in judged]
    return scoring.to_dicts(scoring.rates(words.group_by(scored, lambda row: named.get(row.id))))


def _column(cfg: Config, field: str) -> dict[str, object]:
    """A column of the JSONL manifests of the source, by the id of the utterance."""
    values: dict[str, object] = {}
    for source in sources_of(cfg.source):
        for uri in [source.uri] if isinstance(source.uri, str) else source.uri:
            if uri.endswith(".jsonl"):
                values |= transcripts.column(uri, field)
    return values
