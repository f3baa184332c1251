"""report: the page of a finished run, and the page that compares two recognisers."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from voxstill.audio import codec
from voxstill.core import config
from voxstill.core.atomic import write_atomically
from voxstill.core.config import Config
from voxstill.core.errors import DataError, VoxstillError
from voxstill.core.monitor import log
from voxstill.core.records import ErrorCounts, Label, Utterance, Verdict
from voxstill.evaluation import recognition
from voxstill.evaluation.recognition import StudentFigures
from voxstill.evaluation.report import html, plain
from voxstill.evaluation.score import duration_ms
from voxstill.evaluation.teacher import TeacherFigures
from voxstill.filtering import tuning
from voxstill.filtering.rules import current_name, rule_of
from voxstill.pipeline import tune_filter
from voxstill.pipeline.compare import DOUBTFUL, Sides
from voxstill.pipeline.evaluate import of_split
from voxstill.pipeline.recipes import utterances_recipe
from voxstill.pipeline.run_result import Judged, StepResult
from voxstill.scoring import words
from voxstill.storage import removals, tables, workdir
from voxstill.storage.figures import IndexFigures, VerdictFigures
from voxstill.storage.redaction import redact_uri
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.text.normalize import normalizer
from voxstill.text.normalize import words as split_words
from voxstill.training import experiment

MOST_CONFUSIONS = 12
"""Of each kind: another word, a word left out, a word put in."""
MOST_REJECTED = 4
"""Labels of each rule that can be listened to."""
Row = TypeVar("Row")
COMPARED: tuple[html.Role, html.Role] = ("first", "second")
Aligned = tuple[ErrorCounts, list[words.Pair]]
Figures = TeacherFigures | StudentFigures


def write(
    cfg: Config,
    run: RunDir,
    steps: Sequence[StepResult],
    filtered: VerdictFigures,
    judged: Judged,
) -> Path:
    """Write the report of a run as HTML, Markdown and JSON; what was not measured is left out."""
    # a training of an earlier version left no line where it was shorter than `train.log_every`
    metrics = run.metrics.read_text(encoding="utf-8") if run.metrics.is_file() else ""
    facts: html.Facts = {
        "title": f"voxstill: {cfg.train.name}",
        "about": f"{cfg.teacher.name} taught a {cfg.student.size} student on {cfg.work}",
        "steps": [{"name": row.step, "seconds": row.seconds, "figures": row.figures} for row in steps],
        "funnel": funnel(cfg, filtered),
        "metrics": [json.loads(line) for line in metrics.splitlines()],
        "config": experiment.snapshot(cfg),
        "environment": {**experiment.versions(), **experiment.machine()},
    }
    if judged.student is not None:
        facts |= judged_facts(cfg, judged.student, judged)
    write_atomically(run.report, html.render(facts))
    write_atomically(run.report.with_suffix(".md"), plain.markdown(facts))
    write_atomically(run.report.with_suffix(".json"), plain.as_json(facts))
    return run.report


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
    """WER of the labels kept, by the share kept at falling confidence; empty where there are no human texts."""
    try:
        return tuning.confidence_curve(tune_filter.tune(cfg))
    except DataError:
        return []


def judged_facts(cfg: Config, student: StudentFigures, figures: Judged) -> html.Facts:
    """The facts that need human texts: error rates, confusions, and every utterance aligned with its reference."""
    sides: dict[html.Role, Figures] = {} if figures.teacher is None else {"teacher": figures.teacher}
    sides["student"] = student
    rates, by = student.errors.rates, student.errors.by
    alike = normalizer(cfg.evaluate.normalizer)
    judged = recognition.references(cfg, of_split(cfg))
    pairs = {
        role: {
            utterance.id: words.align(
                split_words(alike(utterance.text or "")), split_words(alike(side.hypotheses.get(utterance.id, "")))
            )
            for utterance in judged
        }
        for role, side in sides.items()
    }
    return {
        "systems": [
            *(system(role, side, cfg) for role, side in sides.items()),
            *([] if figures.with_lm is None else [system("student with LM", figures.with_lm, cfg)]),
        ],
        "judged": {
            "split": student.split,
            "utterances": rates.utterances,
            "words": rates.counts.reference,
            "drawn": rates.interval_over,
            "resamples": cfg.evaluate.bootstrap_draws,
        },
        "breakdowns": [
            {
                "by": what,
                "groups": [
                    {
                        "name": name,
                        "words": row.counts.reference,
                        "wer": {role: side.errors.by[what][name].counts.rate for role, side in sides.items()},
                    }
                    for name, row in by[what].items()
                ],
            }
            for what in recognition.PROPERTIES
            if len(by[what]) > 1
        ],
        "confusions": confusions(pairs),
        "worst": worst(cfg, judged, pairs),
        "utterances": [
            {
                "id": utterance.id,
                "speaker": utterance.info.speaker,
                "dataset": utterance.info.dataset,
                "duration_ms": utterance.duration_ms,
                "heard": {role: aligned[utterance.id][1] for role, aligned in pairs.items()},
            }
            for utterance in judged
        ],
    }


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


def system(role: html.Role, side: Figures, cfg: Config) -> html.System:
    """Figures of one system for the head of the report."""
    if isinstance(side, TeacherFigures):
        name, parameters = side.teacher, None
    else:
        name, parameters = f"{cfg.student.size} FastConformer-CTC", side.parameters
        if side.lm_order is not None:
            name += f", a beam of {side.decode['beam']} and {side.lm_order}-grams of its labels"
    rates = side.errors.rates
    return {
        "role": role,
        "name": name,
        "wer": rates.wer,
        "interval": rates.interval,
        "cer": rates.cer,
        "parameters": parameters,
        "rtfx": side.rtfx,
    }


def worst(
    cfg: Config, judged: Sequence[Utterance], pairs: Mapping[html.Role, Mapping[str, Aligned]]
) -> list[html.Utterance]:
    """The utterances with most errors of the student, with their audio; those without an error are left out."""
    ranked = sorted(judged, key=lambda utterance: (-pairs["student"][utterance.id][0].errors, utterance.id))
    chosen = [utterance for utterance in ranked[: cfg.evaluate.worst] if pairs["student"][utterance.id][0].errors]
    audio = sound(cfg, chosen)
    return [
        entry(utterance.id, (utterance.info.speaker, utterance.info.dataset, utterance.info.dialect), pairs, audio)
        for utterance in chosen
    ]


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


def comparison(cfg: Config, both: Sides, found: Mapping[str, Any]) -> str:
    """Render the page that compares two recognisers: the figures of `compare.runs`, and every utterance of both."""
    pairs: dict[html.Role, dict[str, Aligned]] = {
        role: {id_: words.align(split_words(text), split_words(texts.get(id_, ""))) for id_, text in both.texts.items()}
        for role, texts in zip(COMPARED, both.hypotheses, strict=True)
    }
    runs = dict(zip(COMPARED, found["runs"], strict=True))
    facts: html.Facts = {
        "title": "voxstill: two compared",
        "about": " and ".join(map(redact_uri, both.runs)),
        "systems": [
            {
                "role": role,
                "name": redact_uri(row["run"]),
                "wer": row["wer"],
                "interval": row["interval"],
                "cer": row["cer"],
            }
            for role, row in runs.items()
        ],
        "judged": {
            "split": both.split,
            "utterances": found["utterances"],
            "words": runs["first"]["words"],
            "drawn": found["blocks_are"],
            "resamples": cfg.evaluate.bootstrap_draws,
        },
        "paired": {
            "difference": found["difference"],
            "interval": found["interval"],
            "p": found["p_value"],
            "surely": found["p_value"] <= DOUBTFUL,
        },
        "breakdowns": _by_speaker(runs),
        "confusions": confusions(pairs),
        "worst": differing(cfg, both, pairs),
        "utterances": [
            {
                "id": id_,
                "speaker": segment.speaker,
                "dataset": None,
                "duration_ms": duration_ms(segment),
                "heard": {role: aligned[id_][1] for role, aligned in pairs.items()},
            }
            for id_, segment in both.references.items()
        ],
    }
    return html.render(facts)


def _by_speaker(runs: Mapping[html.Role, Mapping[str, Any]]) -> list[html.Breakdown]:
    """The error rates of two recognisers by speaker; nothing where fewer than two speakers are known."""
    by_speaker = runs["first"]["by_speaker"]
    if len(by_speaker) < 2:
        return []
    groups: list[html.Group] = [
        {
            "name": name,
            "words": row["words"],
            "wer": {role: run["by_speaker"][name]["wer"] for role, run in runs.items()},
        }
        for name, row in by_speaker.items()
    ]
    return [{"by": "speaker", "groups": groups}]


def differing(cfg: Config, both: Sides, pairs: Mapping[html.Role, Mapping[str, Aligned]]) -> list[html.Utterance]:
    """The utterances whose numbers of errors differ most, with their audio where the WORK can be read."""
    first, second = pairs["first"], pairs["second"]
    unlike = [id_ for id_ in both.references if first[id_][1] != second[id_][1]]
    unlike.sort(key=lambda id_: (-abs(first[id_][0].errors - second[id_][0].errors), id_))
    chosen = unlike[: cfg.evaluate.worst]
    audio = next((clips for run in both.runs if (clips := _sound_of(run, chosen))), {})
    return [entry(id_, [both.references[id_].speaker], pairs, audio) for id_ in chosen]


def _sound_of(run: str, ids: Sequence[str]) -> dict[str, bytes]:
    """Read audio of utterances from the WORK of an experiment; empty where it cannot be read."""
    own = RunDir(Path(run)).config
    if not own.is_file():
        return {}
    try:
        cfg = config.load(str(own))
        work = Store(cfg.work)
        recipe = workdir.finished(work, IndexFigures, utterances_recipe(cfg)).recipe
        rows = tables.read(work, workdir.prefix("utterances", recipe), Utterance)
        return sound(cfg, list(_first(rows, lambda row: row.id, ids).values()))
    except VoxstillError as error:
        log.info("compare: no audio of `%s`: %s", run, error.what)
        return {}
