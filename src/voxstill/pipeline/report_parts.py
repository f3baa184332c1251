"""Parts of reports: what the filter dropped, the most frequent errors, and utterances with their audio."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from voxstill.audio import codec
from voxstill.core.config import Config
from voxstill.core.errors import DataError, VoxstillError
from voxstill.core.monitor import log
from voxstill.core.records import ErrorCounts, Label, Utterance, Verdict
from voxstill.evaluation import recognition
from voxstill.evaluation.report import html
from voxstill.filtering import tuning
from voxstill.filtering.rules import current_name, rule_of
from voxstill.indexing.recipe import utterances_recipe
from voxstill.pipeline import tune_filter
from voxstill.scoring import words
from voxstill.storage import removals, tables, workdir
from voxstill.storage.figures import IndexFigures, VerdictFigures
from voxstill.storage.store import Store

MOST_CONFUSIONS = 12
"""Of each kind: another word, a word left out, a word put in."""
MOST_REJECTED = 4
"""Labels of each rule that can be listened to."""
Row = TypeVar("Row")
Aligned = tuple[ErrorCounts, list[words.Pair]]


def funnel(cfg: Config, filtered: VerdictFigures) -> html.Funnel:
    """How many labels each rule of the filter dropped, a few of them, and the error rates of those kept."""
    examples = rejected(cfg, filtered)
    return {
        "labels": filtered.judged,
        "rules": [
            {"name": name, "why": rule_of(name).why, "dropped": dropped, "examples": examples.get(name, [])}
            for name, dropped in filtered.reasons.items()
        ],
        "curve": _curve(cfg),
    }


def rejected(cfg: Config, filtered: VerdictFigures) -> dict[str, list[html.Rejected]]:
    """A few labels that fell by each rule, with their audio where it can be read."""
    work, wanted = Store(cfg.work), {name: min(num, MOST_REJECTED) for name, num in filtered.reasons.items()}
    reasons: dict[str, str] = {}
    for verdict in tables.read(work, workdir.prefix("verdicts", filtered.recipe), Verdict):
        reason = None if verdict.reason is None else current_name(verdict.reason)
        if reason is not None and wanted[reason]:
            wanted[reason] -= 1
            reasons[verdict.utterance_id] = reason
            if not any(wanted.values()):
                break
    utterance_rows = tables.read(work, workdir.prefix("utterances", filtered.utterances), Utterance)
    utterances = _first(utterance_rows, lambda row: row.id, reasons)
    label_rows = tables.read(work, workdir.prefix("labels", filtered.labels), Label)
    labels = _first(label_rows, lambda row: row.utterance_id, reasons)
    audio = sound(cfg, list(utterances.values()))
    rejected_by_rule: dict[str, list[html.Rejected]] = {}
    for id_, reason in reasons.items():
        facts = ", ".join(fact for fact in (utterances[id_].info.speaker, utterances[id_].info.dataset) if fact)
        one: html.Rejected = {"id": id_, "about": facts, "text": labels[id_].text, "audio": audio.get(id_)}
        rejected_by_rule.setdefault(reason, []).append(one)
    return rejected_by_rule


def _first(rows: Iterable[Row], key: Callable[[Row], str], ids: Container[str]) -> dict[str, Row]:
    """Return the first row of each id."""
    first_rows: dict[str, Row] = {}
    for row in rows:
        id_ = key(row)
        if id_ in ids:
            first_rows.setdefault(id_, row)
    return first_rows


def _curve(cfg: Config) -> list[tuple[float, float]]:
    """WER of the labels kept, by the share kept at falling confidence; empty if there are no human texts."""
    try:
        return tuning.confidence_curve(tune_filter.tune(cfg))
    except DataError:
        return []


def confusions(pairs: Mapping[html.Role, Mapping[str, Aligned]]) -> dict[html.Role, list[html.Confusion]]:
    """The most frequent substitutions, deletions and insertions of each system that made any."""
    confusions_by_role: dict[html.Role, list[html.Confusion]] = {
        role: [
            {"reference": ref, "hypothesis": hyp, "count": count}
            for has_reference, has_hypothesis in ((True, True), (True, False), (False, True))
            for (ref, hyp), count in words.confusions(
                (_of_kind(one, has_reference, has_hypothesis) for _, one in aligned.values()), MOST_CONFUSIONS
            )
        ]
        for role, aligned in pairs.items()
    }
    return {role: rows for role, rows in confusions_by_role.items() if rows}


def _of_kind(pairs: Iterable[words.Pair], has_reference: bool, has_hypothesis: bool) -> Iterator[words.Pair]:
    return (pair for pair in pairs if (pair[0] is not None, pair[1] is not None) == (has_reference, has_hypothesis))


def sound(cfg: Config, utterances: Sequence[Utterance]) -> dict[str, bytes]:
    """Read the utterances that can be decoded and were not removed; return a FLAC file by utterance id."""
    removed = removals.of(Store(cfg.work))
    audio, _ = recognition.read_audio(cfg, [utterance for utterance in utterances if utterance.id not in removed])
    return {utterance.id: codec.encode(samples_T, "flac") for utterance, samples_T in audio}


def entry(
    id_: str,
    about: Iterable[str | None],
    pairs: Mapping[html.Role, Mapping[str, Aligned]],
    audio: Mapping[str, bytes],
) -> html.Utterance:
    """One utterance of the page: facts, aligned hypotheses and audio."""
    return {
        "id": id_,
        "about": ", ".join(fact for fact in about if fact),
        "heard": [
            {"role": role, "wer": aligned[id_][0].rate, "pairs": aligned[id_][1]} for role, aligned in pairs.items()
        ],
        "audio": audio.get(id_),
    }


def sound_of(cfg: Config, ids: Sequence[str]) -> dict[str, bytes]:
    """Read audio of utterances from the work folder, as `sound`; empty if it cannot be read."""
    try:
        work = Store(cfg.work)
        recipe = workdir.finished(work, IndexFigures, utterances_recipe(cfg)).recipe
        rows = tables.read(work, workdir.prefix("utterances", recipe), Utterance)
        return sound(cfg, list(_first(rows, lambda row: row.id, ids).values()))
    except VoxstillError as error:
        log.info("no audio of `%s`: %s", cfg.work, error.what)
        return {}
