"""The evaluation of a run: its student and its teacher on the same utterances, and the speed of both."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from voxstill.core.config import Config
from voxstill.core.errors import DataError, TeacherError
from voxstill.core.monitor import log
from voxstill.core.records import Utterance
from voxstill.decoding import recognizer
from voxstill.decoding.loaded import Samples
from voxstill.decoding.recognizer import Recognizer
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
    """Evaluate the teacher and the student of an experiment, and time both; nothing if there are no human texts.

    A teacher that reads texts, or has not labelled all of these utterances, is not judged. All results are kept in the
    experiment.
    """
    split = of_split(cfg)
    try:
        judged = recognition.references(cfg, split.utterances)
    except DataError as error:
        log.warning("evaluate: %s (%s)", error.what, error.why)
        return Judged()
    run = RunDir(Path(path))
    weights = loading.version(run.model)

    def keep(
        figures: StudentFigures | TeacherFigures, judged: Sequence[Utterance], recogniser: str = results.STUDENT
    ) -> None:
        evaluation = recognition.evaluation_of(figures.to_dict(), judged, figures.hypotheses)
        of = weights if recogniser == results.STUDENT else None
        results.write(run.evaluation, evaluation.of(split.corpus, recogniser, split.warnings, weights=of))

    students: dict[str, StudentFigures] = {}
    transcribers: dict[str, Callable[[Audio], object]] = {}
    for name, decoding in _decodings(cfg, run).items():
        figures = tuned_weights.evaluate(decoding, path, judged)
        judged = list(figures.judged)
        students[name] = replace(figures, lm_order=cfg.evaluate.lm_order if name == "with_lm" else None)
        keep(students[name], judged)
        student = recognizer.student(_decoded_as(decoding, figures).decode, path)
        student.load()
        transcribers[name] = functools.partial(_transcribe, student)
    master = registry.create(cfg.teacher)
    if master.reads_texts or not teacher_evaluation.labels_all(judged):
        return Judged(student=students["student"], with_lm=students.get("with_lm"))
    teacher = teacher_evaluation.evaluate(cfg, judged)
    audio, _ = recognition.read_audio(cfg, judged[: 4 * cfg.evaluate.worst + 100])
    master.load()
    rates = teacher_evaluation.speeds({**transcribers, "teacher": functools.partial(_hear, master)}, audio)
    students = {name: replace(figures, rtfx=rates[name]) for name, figures in students.items()}
    teacher = replace(teacher, rtfx=rates["teacher"])
    for figures in students.values():
        keep(figures, judged)
    keep(teacher, judged, teacher.teacher)
    num_free = cfg.evaluate.teacher_without_grammar if cfg.decode.grammar is not None else 0
    if num_free and (free := getattr(master, "without_grammar", lambda: None)()) is not None:
        sample = teacher_evaluation.sample(judged, num_free, cfg.seed)
        if (without := _without_grammar(cfg, free, sample)) is not None:
            keep(without, sample, f"{without.teacher} without grammar")
    return Judged(teacher=teacher, student=students["student"], with_lm=students.get("with_lm"))


def _decodings(cfg: Config, run: RunDir) -> dict[str, Config]:
    """How the student is decoded: as configured, and where there is a choice, in others."""
    decodings = {"student": cfg}
    if cfg.decode.grammar is not None:
        decodings["without_grammar"] = tuned_weights.decoded(cfg, grammar=None)
    if cfg.evaluate.lm_order is not None:
        language_model.of_labels(cfg, str(run.lm), cfg.evaluate.lm_order)
        decodings["with_lm"] = with_lm(cfg, run.lm)
    return decodings


def _without_grammar(cfg: Config, free: Teacher, sample: Sequence[Utterance]) -> TeacherFigures | None:
    """Evaluate the teacher without its grammar; None, with a warning, where it cannot do without."""
    try:
        return teacher_evaluation.evaluate_without_grammar(cfg, free, sample)
    except (TeacherError, DataError) as error:
        log.warning("evaluate: the teacher is not evaluated without its grammar: %s (%s)", error.what, error.why)
        return None


def _transcribe(student: Recognizer, audio: Audio) -> None:
    student.transcribe_batch([samples_T for _, samples_T in audio])


def _hear(teacher: Teacher, audio: Audio) -> None:
    teacher.transcribe_batch([Clip(utterance=utterance, samples_T=samples_T) for utterance, samples_T in audio])


def with_lm(cfg: Config, path: Path) -> Config:
    """The same, decoded with this language model: by the beam of `decode`, or by one where it has none."""
    beam = BEAM if cfg.decode.beam == 1 else cfg.decode.beam
    return tuned_weights.decoded(cfg, lm=str(path), beam=beam, grammar=None)


def _decoded_as(cfg: Config, figures: StudentFigures) -> Config:
    """The same, decoded with the weights that these figures are of."""
    return tuned_weights.decoded(cfg, **figures.decode)
