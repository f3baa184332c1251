"""report: the page of an experiment, from its training and the results of its evaluations."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic

from voxstill.core import config
from voxstill.core.atomic import write_atomically
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, StorageError, VoxstillError
from voxstill.core.monitor import log
from voxstill.core.result import Result
from voxstill.evaluation import grammar_table, recognition, results
from voxstill.evaluation.against_teacher import AgainstTeacher
from voxstill.evaluation.grammar_table import GrammarTable
from voxstill.evaluation.report import formatting, html, plain
from voxstill.evaluation.report.round_table import RoundResult
from voxstill.evaluation.results import Corpus, StoredResult
from voxstill.pipeline import compare, meetings
from voxstill.pipeline.recipes import finished_verdicts
from voxstill.pipeline.report_parts import Aligned, confusions, entry, funnel, sound_of
from voxstill.pipeline.run_result import StepResult
from voxstill.scoring import words
from voxstill.storage.figures import VerdictFigures
from voxstill.storage.redaction import redact_uri
from voxstill.storage.rundir import RunDir
from voxstill.text.normalize import normalizer
from voxstill.text.normalize import words as split_words
from voxstill.training import environment, experiment, segments

KINDS = {"ctc": "FastConformer-CTC", "rnnt": "FastConformer-RNN-T", "tdt": "FastConformer-TDT", "seq2seq": "Whisper"}
"""What a student of each `student.kind` is, where it starts from no checkpoint."""
RATES = ("wer", "accuracy", "eer")
"""The figure that a line of a result shows: the first of these that there is."""
_NUMBERS = ("step", "loss", "wer", "lr", "grad_norm", "audio_seconds_per_second")
_METRIC = pydantic.TypeAdapter(dict[str, float | None], config={"strict": True})
_JUDGED = ("wer", "cer", "interval", "interval_over", "utterances", "words", "normalizer")
"""Figures that every result of a recogniser has."""
_LABELS = {"ctc": "CTC", "rnnt": "RNN-T", "tdt": "TDT", "seq2seq": "Whisper"}


class _Step(pydantic.BaseModel):
    """A step in an earlier report."""

    model_config = pydantic.ConfigDict(strict=True)

    name: str
    seconds: float
    figures: dict[str, float | int | str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentReport(Result):
    """The page of an experiment, and a line for each of its results.

    `against_teacher` is the paired test of the student and its teacher; None if one of them was not judged.
    """

    report: str | None
    """None if the folder cannot be written."""
    results: Sequence[Mapping[str, Any]]
    against_teacher: AgainstTeacher | None
    grammar: GrammarTable | None = None
    """Both with and without a grammar, where the student is decoded along one."""
    meetings: Mapping[str, Any] | None = None
    """The fields of a `MeetingScores` of the teacher's labels, where `evaluate.meetings` has human words."""

    @property
    def exit_code(self) -> int:
        """That of a StorageError, where the page is not written."""
        return StorageError.exit_code if self.report is None else 0

    def to_text(self) -> str:
        """The results as a table, the test, and where the page is."""
        head = ("corpus", "split", "recogniser", "decoding", "normalizer", "utterances", "rate", "95 % interval")
        rows = [head, *(tuple(plain.result_line(line)) for line in self.results)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        if self.against_teacher is not None:
            lines += ["", html.against_teacher(self.against_teacher.to_dict())]
        if self.grammar is not None:
            lines += ["", self.grammar.to_text()]
        if self.meetings is not None:
            num, rate = len(self.meetings["sessions"]), formatting.percent(self.meetings["cpwer"])
            lines += ["", f"cpWER of the teacher's labels: {rate} over {num} {'meeting' if num == 1 else 'meetings'}"]
        return "\n".join([*lines, "", f"report: {self.report or 'not written'}"])


def report(experiment: str) -> ExperimentReport:
    """Write the page of an experiment that was trained, from what is in its folder and in its WORK.

    ConfigError if the folder is not an experiment.
    """
    run = RunDir(Path(experiment))
    if not run.config.is_file():
        raise ConfigError(
            f"`{experiment}` is not an experiment",
            code="no-experiment",
            why="there is no config.yaml in it",
            fix="give a folder below exp/",
        )
    cfg = config.load_snapshot(str(run.config))
    try:
        filtered = finished_verdicts(cfg)
    except VoxstillError as error:
        log.info("report: nothing is reported about the filter: %s", error.what)
        filtered = None
    steps, rounds = _earlier(run)
    return _written(cfg, run, facts_of(cfg, run, steps, filtered, rounds))


def _earlier(run: RunDir) -> tuple[list[html.Step], list[RoundResult]]:
    """The steps and the rounds in the report that `voxstill run` left; none without one."""
    try:
        facts = json.loads(run.report.with_suffix(".json").read_text(encoding="utf-8"))
        for step in facts["steps"]:
            _Step.model_validate(step)
        steps: list[html.Step] = facts["steps"]
        rounds = [RoundResult.from_dict(row) for row in facts.get("rounds", ())]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, VoxstillError):
        return [], []
    return steps, rounds


def write(
    cfg: Config,
    run: RunDir,
    steps: Sequence[StepResult],
    filtered: VerdictFigures,
    rounds: Sequence[RoundResult] = (),
) -> ExperimentReport:
    """Write the report of `voxstill run` as HTML, Markdown and JSON; what was not measured is left out."""
    rows: list[html.Step] = [{"name": row.step, "seconds": row.seconds, "figures": row.figures} for row in steps]
    return _written(cfg, run, facts_of(cfg, run, rows, filtered, rounds))


def _written(cfg: Config, run: RunDir, facts: html.Facts) -> ExperimentReport:
    path: str | None = str(run.report)
    try:
        write_atomically(run.report, html.render(facts))
        write_atomically(run.report.with_suffix(".md"), plain.markdown(facts))
        write_atomically(run.report.with_suffix(".json"), plain.as_json(facts))
    except OSError as error:
        log.warning("`%s` is not written: %s", run.report, error.strerror)
        path = None
    tested, table = facts.get("against_teacher"), facts.get("grammar")
    return ExperimentReport(
        report=path,
        results=facts.get("results", ()),
        against_teacher=None if tested is None else AgainstTeacher.from_dict(tested),
        grammar=None if table is None else GrammarTable.from_dict(table),
        meetings=facts.get("meetings"),
    )


def facts_of(
    cfg: Config,
    run: RunDir,
    steps: Sequence[html.Step],
    filtered: VerdictFigures | None,
    rounds: Sequence[RoundResult] = (),
) -> html.Facts:
    """All that the page shows; rounds are compared where there are several."""
    facts: html.Facts = {
        "title": f"voxstill: {cfg.train.name}",
        "about": f"{cfg.teacher.name} taught a student, {student_name(cfg)}, on {redact_uri(cfg.work)}",
        "steps": steps,
        "metrics": _metrics(run),
        "config": experiment.snapshot(cfg),
        "environment": _noted(run) or {**environment.versions(), **environment.machine()},
    }
    if len(rounds) > 1:
        facts["rounds"] = [row.to_dict() for row in rounds]
    if filtered is not None:
        facts["funnel"] = funnel(cfg, filtered)
    if (scores := meetings.of_teacher(cfg)) is not None:
        facts["meetings"] = scores.to_dict()
    return facts | judged_facts(cfg, run)


def _noted(run: RunDir) -> Mapping[str, object]:
    """What the training noted of itself, the changes of its options in words."""
    changed = {
        f"{number}, from step {segment.step} on": (segments.describe(segment.changed) or "nothing")
        + (" (by `voxstill control`)" if segment.requested_at else "")
        for number, segment in enumerate(segments.of(run), 1)
    }
    noted = experiment.noted(run)
    return {**noted, "segments": changed} if changed else noted


def _metrics(run: RunDir) -> list[Mapping[str, Any]]:
    """The rows of `metrics.jsonl`, without lines that are none, such as one that a training writes just now."""
    # a training of an earlier version left no line where it was shorter than `train.log_every`
    lines = run.metrics.read_bytes().splitlines() if run.metrics.is_file() else []
    rows = [row for row in map(_metric, lines) if row is not None]
    if len(rows) < len(lines):
        log.warning("report: %d lines of `%s` are not metrics, and are left out", len(lines) - len(rows), run.metrics)
    return rows


def _metric(line: bytes) -> Mapping[str, Any] | None:
    try:
        row = json.loads(line)
        _METRIC.validate_python({name: row[name] for name in _NUMBERS if name in row})
        return row if isinstance(row.get("split", ""), str) else None
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def judged_facts(cfg: Config, run: RunDir) -> html.Facts:
    """The facts of the stored results: a line for each, and details of that of the student on its own corpus."""
    stored = results.read_all(run.evaluation)
    of_split = [result for result in stored if result.split == cfg.evaluate.split]
    student = next(iter(results.own(of_split, cfg)), None)
    facts: html.Facts = {"results": _lines(stored)}
    return facts | (_details(cfg, student, of_split) if student is not None and student.has_texts else {})


def _lines(stored: Sequence[StoredResult]) -> list[html.ResultLine]:
    """A line for each result; corpora of one name are distinguished by their path, or what else they differ in."""
    corpora = {result.corpus for result in stored if result.corpus is not None}
    namesakes = Counter(corpus.name for corpus in corpora)
    in_one_folder = Counter(corpus.work for corpus in corpora)

    def name(corpus: Corpus) -> str:
        if namesakes[corpus.name] == 1:
            return corpus.name
        return corpus.work if in_one_folder[corpus.work] == 1 else f"{corpus.work}, {corpus.texts or corpus.utterances}"

    return [_line(result, None if result.corpus is None else name(result.corpus)) for result in stored]


def _line(result: StoredResult, corpus: str | None) -> html.ResultLine:
    """What was judged, how, and its rate."""
    figures = result.figures
    return {
        "recogniser": result.recogniser,
        "corpus": corpus,
        "split": result.split,
        "decoding": results.decoding_in_full(figures),
        "normalizer": figures.get("normalizer"),
        "utterances": figures.get("utterances"),
        "rate": next(((name, figures[name]) for name in RATES if figures.get(name) is not None), None),
        "interval": figures.get("interval"),
    }


def _details(cfg: Config, student: StoredResult, stored: Sequence[StoredResult]) -> html.Facts:
    """What needs references and hypotheses: confusions, and every utterance aligned with its reference."""
    figures = student.figures
    beside = [result for result in stored if result.is_beside(student) and result.recogniser != results.EARLIER]
    of_teacher = (result for result in beside if "teacher" in result.figures)
    teacher = next((result for result in of_teacher if not grammar_table.is_teacher_without_grammar(result)), None)
    with_lm = next((result for result in beside if "order" in result.figures), None)
    sides: dict[html.Role, StoredResult] = {} if teacher is None else {"teacher": teacher}
    sides["student"] = student
    for side in (*sides.values(), *([] if with_lm is None else [with_lm])):
        present = side.figures.keys() - ({"normalizer"} if side.figures.get("normalizer") is None else set())
        wanted = (*_JUDGED, *(f"by_{name}" for name in recognition.PROPERTIES))
        if missing := [name for name in wanted if name not in present]:
            raise results.damaged(side.path, f"it lacks {', '.join(missing)}")
    references = results.rows(student.references)
    facts: html.Facts = {
        "systems": [
            *(system(role, side, cfg) for role, side in sides.items()),
            *([] if with_lm is None else [system("student with LM", with_lm, cfg)]),
        ],
        "judged": {
            "split": student.split,
            "utterances": figures["utterances"],
            "words": figures["words"],
            "drawn": figures["interval_over"],
            "resamples": cfg.evaluate.bootstrap_draws,
        },
        "breakdowns": _breakdowns(sides),
        **_alignments(cfg, figures["normalizer"], references, sides),
    }
    if teacher is not None and figures["words"]:
        facts["against_teacher"] = _against_teacher(cfg, teacher, student).to_dict()
    if (table := grammar_table.of_results(cfg, student, teacher, beside)) is not None:
        facts["grammar"] = table.to_dict()
    return facts


def _against_teacher(cfg: Config, teacher: StoredResult, student: StoredResult) -> AgainstTeacher:
    """Compare the student with its teacher by a paired test over blocks of speakers."""
    sides = compare.of_results(teacher, student)
    test = compare.runs(cfg, sides)
    speakers = {segment.speaker for segment in sides.references.values()}
    one = len(speakers) == 1 and None not in speakers  # one speaker says nothing about others
    return AgainstTeacher(
        difference=test.difference,
        interval=None if one else test.interval,
        p=None if one else test.p,
        surely=not one and test.p <= compare.DOUBTFUL,
        units=1 if one else test.blocks,
        over="speakers" if one else test.blocks_are,
    )


def _breakdowns(sides: Mapping[html.Role, StoredResult]) -> list[html.Breakdown]:
    """The error rates of both by each property of which there are several values."""
    groups = {name: sides["student"].figures.get(f"by_{name}") or {} for name in recognition.PROPERTIES}
    return [
        {
            "by": what,
            "groups": [
                {
                    "name": name,
                    "words": row["words"],
                    "wer": {role: side.figures[f"by_{what}"].get(name, {}).get("wer") for role, side in sides.items()},
                }
                for name, row in rows.items()
            ],
        }
        for what, rows in groups.items()
        if len(rows) > 1
    ]


def _alignments(
    cfg: Config, rules: str, references: Sequence[results.Row], sides: Mapping[html.Role, StoredResult]
) -> html.Facts:
    """Every utterance aligned with its reference, the most frequent errors, and the worst utterances."""
    normalize = normalizer(rules)
    texts = {role: {row["id"]: row["text"] for row in results.rows(side.hypotheses)} for role, side in sides.items()}
    pairs: dict[html.Role, dict[str, Aligned]] = {
        role: {
            row["id"]: words.align(
                split_words(normalize(row["text"])), split_words(normalize(of_side.get(row["id"], "")))
            )
            for row in references
        }
        for role, of_side in texts.items()
    }
    return {
        "confusions": confusions(pairs),
        "worst": worst(cfg, references, pairs),
        "utterances": [
            {
                "id": row["id"],
                "speaker": row.get("speaker"),
                "dataset": row.get("dataset"),
                "duration_ms": None
                if None in (row.get("start_ms"), row.get("end_ms"))
                else row["end_ms"] - row["start_ms"],
                "heard": {role: aligned[row["id"]][1] for role, aligned in pairs.items()},
            }
            for row in references
        ],
    }


def system(role: html.Role, result: StoredResult, cfg: Config) -> html.System:
    """Figures of one system for the head of the report."""
    figures = result.figures
    if "teacher" in figures:
        name = figures["teacher"]
    else:
        name = student_name(cfg)
        if "order" in figures:
            name += f", a beam of {figures['decode']['beam']} and {figures['order']}-grams of its labels"
            name += ", weights tuned" if "tuning" in figures else ""
    return {
        "role": role,
        "name": name,
        "wer": figures["wer"],
        "interval": figures["interval"],
        "cer": figures["cer"],
        "parameters": figures.get("parameters"),
        "rtfx": figures.get("rtfx"),
    }


def student_name(cfg: Config) -> str:
    """What the student is: its size and architecture, or what it started from."""
    student = cfg.student
    if student.checkpoint is None:
        return f"{student.size} {KINDS[student.kind]}"
    return f"{_LABELS[student.kind]} from {Path(student.checkpoint).name}"


def worst(
    cfg: Config, references: Sequence[results.Row], pairs: Mapping[html.Role, Mapping[str, Aligned]]
) -> list[html.Utterance]:
    """The utterances with most errors of the student, with their audio; those without an error are left out."""
    ranked = sorted(references, key=lambda row: (-pairs["student"][row["id"]][0].errors, row["id"]))
    chosen = [row for row in ranked[: cfg.evaluate.worst] if pairs["student"][row["id"]][0].errors]
    audio = sound_of(cfg, [row["id"] for row in chosen])
    return [
        entry(row["id"], (row.get("speaker"), row.get("dataset"), row.get("dialect")), pairs, audio) for row in chosen
    ]
