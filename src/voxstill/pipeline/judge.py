"""The evaluation of a run: its student and its teacher on the same utterances, and the speed of both."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.core.monitor import log
from voxstill.core.records import Utterance
from voxstill.decoding.recognizer import Recognizer, Samples
from voxstill.evaluation import recognition, results
from voxstill.evaluation import teacher as teacher_evaluation
from voxstill.evaluation.recognition import StudentFigures
from voxstill.evaluation.teacher import TeacherFigures
from voxstill.nn import loading
from voxstill.pipeline import language_model, tuned_weights
from voxstill.pipeline.judged_split import of_split
from voxstill.pipeline.run_result import Judged
from voxstill.storage.rundir import RunDir
from voxstill.teachers import registry
from voxstill.teachers.teacher import Clip, Teacher

Audio = Sequence[tuple[Utterance, Samples]]
BEAM = 16
"""Texts followed side by side with the language model of `evaluate.lm_order`, where `decode` follows one."""


def judge(cfg: Config, path: str) -> Judged:
    """Evaluate the teacher and the student of an experiment, and time both; nothing where there are no human texts.

    A teacher that reads texts is not judged. All results are kept in the experiment.
    """
    split = of_split(cfg)
    try:
        judged = recognition.references(cfg, split.utterances)
    except DataError as error:
        log.warning("evaluate: %s (%s)", error.what, error.why)
        return Judged()
    run = RunDir(Path(path))
    weights = loading.version(run.model)

    def keep(figures: StudentFigures | TeacherFigures, recogniser: str = results.STUDENT) -> None:
        evaluation = recognition.evaluation_of(figures.to_dict(), judged, figures.hypotheses)
        of = weights if recogniser == results.STUDENT else None
        results.write(run.evaluation, evaluation.of(split.corpus, recogniser, split.warnings, weights=of))

    student = tuned_weights.evaluate(cfg, path, judged)
    judged = list(student.judged)
    keep(student)
    students, lm_figures = {"student": recognition.recognizer(_decoded_as(cfg, student), path)}, None
    if cfg.evaluate.lm_order is not None:
        language_model.of_labels(cfg, str(run.lm), cfg.evaluate.lm_order)
        helped = with_lm(cfg, run.lm)
        lm_figures = replace(tuned_weights.evaluate(helped, path, judged), lm_order=cfg.evaluate.lm_order)
        keep(lm_figures)
        students["with_lm"] = recognition.recognizer(_decoded_as(helped, lm_figures), path)
    master = registry.create(cfg.teacher)
    if master.reads_texts:
        return Judged(student=student, with_lm=lm_figures)
    teacher = teacher_evaluation.evaluate(cfg, judged)
    audio, _ = recognition.read_audio(cfg, judged[: 4 * cfg.evaluate.worst + 100])
    for recognizer in students.values():
        recognizer.load()
    master.load()
    transcribers: dict[str, Callable[[Audio], object]] = {
        **{name: functools.partial(_transcribe, recognizer) for name, recognizer in students.items()},
        "teacher": functools.partial(_hear, master),
    }
    rates = teacher_evaluation.speeds(transcribers, audio)
    timed = Judged(
        teacher=replace(teacher, rtfx=rates["teacher"]),
        student=replace(student, rtfx=rates["student"]),
        with_lm=None if lm_figures is None else replace(lm_figures, rtfx=rates["with_lm"]),
    )
    for figures in filter(None, (timed.student, timed.with_lm)):
        keep(figures)
    keep(replace(teacher, rtfx=rates["teacher"]), teacher.teacher)
    return timed


def _transcribe(recognizer: Recognizer, audio: Audio) -> None:
    recognizer.transcribe_batch([samples_T for _, samples_T in audio])


def _hear(teacher: Teacher, audio: Audio) -> None:
    teacher.transcribe_batch([Clip(utterance=utterance, samples_T=samples_T) for utterance, samples_T in audio])


def with_lm(cfg: Config, path: Path) -> Config:
    """The same, decoded with this language model: by the beam of `decode`, or by one where it has none."""
    beam = BEAM if cfg.decode.beam == 1 else cfg.decode.beam
    return tuned_weights.decoded(cfg, lm=str(path), beam=beam, grammar=None)


def _decoded_as(cfg: Config, figures: StudentFigures) -> Config:
    """The same, decoded with the weights that these figures are of."""
    return tuned_weights.decoded(cfg, **figures.decode)
