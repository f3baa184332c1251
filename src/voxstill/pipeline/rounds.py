"""The rounds of `voxstill run`: label, train, and label again with teacher and student together.

The first student learns from the labels of the teacher. Each later one learns from those of them that the student of
the previous round agrees with, and is a new student in an experiment of its own. A round is a configuration like any
other, so what is finished of it is found by its recipes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from voxstill import engine
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, DataError, TeacherError
from voxstill.evaluation import recognition
from voxstill.evaluation import results as stored
from voxstill.evaluation.recognition import StudentFigures
from voxstill.evaluation.report.round_table import RoundResult
from voxstill.nn import loading
from voxstill.pipeline import filter as filtering
from voxstill.pipeline import filter_report, tuned_weights
from voxstill.pipeline import index as indexing
from voxstill.pipeline import label as labelling
from voxstill.pipeline import shard as sharding
from voxstill.pipeline.judged_split import of_split
from voxstill.pipeline.steps import Steps
from voxstill.pipeline.train import train
from voxstill.storage.figures import LabelFigures, VerdictFigures
from voxstill.storage.rundir import RunDir
from voxstill.storage.uri import is_same_root
from voxstill.training import experiment
from voxstill.training.summary import TrainingSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A finished round: its configuration, the verdicts on its labels, and its student."""

    number: int
    of: int
    cfg: Config
    verdicts: VerdictFigures
    trained: TrainingSummary


def check(cfg: Config) -> None:
    """Raise ConfigError if later rounds make no sense, or would learn the same as the first."""
    if cfg.rounds == 1:
        return
    refused = (
        (
            cfg.teacher.name == "reference",
            "teacher: reference",
            "the labels are human texts: wherever the student disagrees, the student is wrong",
            "leave `rounds` out, or set another teacher",
        ),
        (
            cfg.filter.second_teacher is not None,
            "filter.second_teacher",
            "from the second round on, the second teacher is the student of the previous round",
            "leave one of them out; the teacher `consensus` joins the labels of several teachers",
        ),
        (
            bool(cfg.train.corpora),
            "train.corpora",
            "these shards would be the same in every round, and so would the student",
            "leave one of them out; `source` may be a list of several",
        ),
    )
    for is_refused, name, why, fix in refused:
        if is_refused:
            raise ConfigError(
                f"`rounds: {cfg.rounds}` and `{name}` cannot be combined", code="option-conflict", why=why, fix=fix
            )


def run(cfg: Config, steps: Steps, allow_teacher: Sequence[str] = ()) -> list[Round]:
    """Index once; then label, filter, shard and train in every round. What is finished is skipped.

    The teachers of `allow_teacher` may take over in the first round.
    """
    finished: list[Round] = []
    for number in range(1, cfg.rounds + 1):
        try:
            if finished:
                by_student = cfg.model_copy(update={"teacher": _student(finished[-1])})
                labels = _label(by_student, steps, step_name("label", number, cfg.rounds))
                own = of_round(as_begun(cfg, finished[0]), number, second_teacher=labels.recipe)
            else:
                _index(cfg, steps)
                _label(cfg, steps, step_name("label", number, cfg.rounds), allow_teacher)
                own = of_round(cfg, number)
            verdicts = _filter(own, steps, step_name("filter", number, cfg.rounds))
            _shard(own, steps, step_name("shard", number, cfg.rounds))
        finally:
            engine.shutdown()  # Ray's processes would take their share of the cores while training
        trained = _train(own, steps, step_name("train", number, cfg.rounds))
        finished.append(Round(number=number, of=cfg.rounds, cfg=own, verdicts=verdicts, trained=trained))
    return finished


def as_begun(cfg: Config, first: Round) -> Config:
    """The configuration with what the student of the first round has where nothing is set: all learn in one way."""
    kept = config.load_snapshot(str(RunDir(Path(first.trained.path)).config))
    student = cfg.student.model_copy(update={"normalization": kept.student.normalization})
    train = cfg.train.model_copy(update={"optimizer": kept.train.optimizer})
    return cfg.model_copy(update={"student": student, "train": train})


def of_round(cfg: Config, number: int, second_teacher: str | None = None) -> Config:
    """The configuration of one round, which is of one round itself; that of the first makes what `rounds: 1` makes.

    `second_teacher` is the recipe of the labels of the student before it, None in the first round. A label that it
    agrees with is kept however unsure the teacher was, so `filter.keep_share` is of the first round alone. Only the
    last student is uploaded.
    """
    if cfg.rounds == 1:
        return cfg
    train_options: dict[str, object] = {} if number == cfg.rounds else {"upload": None}
    filter_options: dict[str, object] = {}
    if second_teacher is not None:
        train_options["name"] = _name(cfg, number)
        filter_options = {"second_teacher": second_teacher, "keep_share": 1.0}
    sections = {
        "train": cfg.train.model_copy(update=train_options),
        "filter": cfg.filter.model_copy(update=filter_options),
    }
    return cfg.model_copy(update={**sections, "rounds": 1})


def later(cfg: Config) -> list[Config]:
    """The configurations of the rounds after the first that have started to train on this work folder."""
    names = [_name(cfg, number) for number in range(2, cfg.rounds + 1)]
    trains = [cfg.train.model_copy(update={"name": name}) for name in names]
    runs = [run for train_ in trains for run in experiment.named(cfg.model_copy(update={"train": train_}))]
    begun = (config.load_snapshot(str(run.config)) for run in runs if run.config.is_file())
    return [own for own in begun if is_same_root(own.work, cfg.work)]


def _name(cfg: Config, number: int) -> str:
    """The `train.name` of a round after the first."""
    return f"{cfg.train.name}-round-{number}"


def step_name(name: str, number: int, of: int) -> str:
    """What a step of a round is called; a run of one round does not count them."""
    return name if of == 1 else f"{name} (round {number})"


def evaluate(rounds: Sequence[Round], steps: Steps) -> list[StudentFigures | None]:
    """Judge the student of each round, and keep its result in its experiment; None if there are no human texts."""
    if not rounds:
        return []
    split = of_split(rounds[0].cfg)
    try:
        judged = recognition.references(rounds[0].cfg, split.utterances)
    except DataError:  # the evaluation of the last student reports it
        return [None] * len(rounds)
    students: list[StudentFigures | None] = []
    for finished in rounds:
        with steps.step(step_name("evaluate", finished.number, finished.of)) as result:
            run = RunDir(Path(finished.trained.path))
            student = tuned_weights.evaluate(finished.cfg, str(run.path), judged)
            evaluation = recognition.evaluation_of(student.to_dict(), student.judged, student.hypotheses)
            weights = loading.version(run.model)
            stored.write(run.evaluation, evaluation.of(split.corpus, stored.STUDENT, split.warnings, weights=weights))
            rates = student.errors.rates
            text = "" if rates.wer is None else f"student WER {rates.wer:.1%}"
            result(text, wer=rates.wer, cer=rates.cer, utterances=rates.utterances)
        students.append(student)
    return students


def results(rounds: Sequence[Round], students: Sequence[StudentFigures | None]) -> list[RoundResult]:
    """What is compared of the rounds, with the figures of the student of each."""
    return [
        RoundResult(
            round=finished.number,
            path=finished.trained.path,
            kept=finished.verdicts.kept,
            kept_hours=finished.verdicts.kept_hours,
            label_wer_before=finished.verdicts.wer_before,
            label_wer_after=finished.verdicts.wer_after,
            wer=None if student is None else student.errors.rates.wer,
            interval=None if student is None else student.errors.rates.interval,
        )
        for finished, student in zip(rounds, students, strict=True)
    ]


def _student(before: Round) -> config.Teacher:
    """The student of a round as a teacher, which decodes as it is judged but for `decode.tune`."""
    checkpoint = str(Path(before.trained.path).absolute())  # workers may run in another folder
    decode = before.cfg.decode.model_dump(exclude_defaults=True, exclude={"tune"})
    return config.Teacher.model_validate({"name": "student", "checkpoint": checkpoint, "decode": decode})


def _index(cfg: Config, steps: Steps) -> None:
    with steps.step("index") as result:
        indexed = indexing.index(cfg)
        text = f"{indexed.utterances:,} utterances, {indexed.hours:.2f} h, {indexed.damaged} damaged files"
        result(
            text,
            recordings=indexed.recordings,
            utterances=indexed.utterances,
            hours=indexed.hours,
            teacher_hours=indexed.teacher_hours if indexed.supervised else None,
            damaged=indexed.damaged,
        )
    if indexed.damaged > indexed.max_failed_share * indexed.recordings:
        raise indexing.unusable(indexed)


def _label(cfg: Config, steps: Steps, name: str, allow_teacher: Sequence[str] = ()) -> LabelFigures:
    with steps.step(name) as result:
        labelled = labelling.label_utterances(cfg, allow_teacher=allow_teacher)
        texts = f" ({labelled.supervised:,} of them texts of the source)" if labelled.supervised else ""
        text = f"{labelled.labels:,} labels{texts}, {labelled.failed} failed, {labelled.rtfx:.0f} times real time"
        figures = {"labels": labelled.labels, "failed": labelled.failed, "rtfx": labelled.rtfx}
        result(text, supervised=labelled.supervised, **figures)
    _refuse_failed_labels(cfg, labelled)
    return labelled


def _refuse_failed_labels(cfg: Config, labelled: LabelFigures) -> None:
    """TeacherError if `voxstill label` would end with its exit code."""
    if labelled.exit_code:
        raise TeacherError(
            f"{labelled.failed:,} of {labelled.labels:,} labels failed",
            code="all-failed",
            why=f"`engine.max_failed_share` allows {labelled.max_failed_share:g} of them",
            fix=f"fix the cause, then run `voxstill label {cfg.work} --retry-failed`; or raise "
            "`engine.max_failed_share` to continue with the rest",
        )


def _filter(cfg: Config, steps: Steps, name: str) -> VerdictFigures:
    with steps.step(name) as result:
        filtered = filtering.filter_labels(cfg)
        text = f"{filtered.kept:.0%} kept, {filtered.kept_hours:.2f} h"
        if any(source.supervised for source in config.sources_of(cfg.source)):
            text += f", for training: {experiment.dataset_hours(filter_report.kept_hours(cfg, filtered))}"
        result(
            text,
            judged=filtered.judged,
            kept=filtered.kept,
            wer_before=filtered.wer_before,
            wer_after=filtered.wer_after,
        )
    return filtered


def _shard(cfg: Config, steps: Steps, name: str) -> None:
    with steps.step(name) as result:
        sharded = sharding.shard(cfg)
        text = f"{sharded.shards} shards, {sharded.utterances:,} utterances"
        result(text, shards=sharded.shards, utterances=sharded.utterances, hours=sharded.hours)


def _train(cfg: Config, steps: Steps, name: str) -> TrainingSummary:
    with steps.step(name) as result:
        trained = train(cfg)
        size = f"{trained.parameters / 1e6:.2f} M parameters"
        text = f"{size}, {trained.steps:,} steps, loss {trained.loss:.3f}"
        result(
            text,
            steps=trained.steps,
            epochs=trained.epochs,
            loss=trained.loss,
            dev_wer=trained.dev_error,
            parameters=trained.parameters,
        )
    return trained
