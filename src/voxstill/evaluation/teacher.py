"""Evaluation of a teacher: the error rates of its labels, or of what it transcribes now, and its speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.monitor import Progress, log
from voxstill.core.records import Label, Utterance, fingerprint
from voxstill.core.result import Figures
from voxstill.decoding.loaded import Samples
from voxstill.evaluation.recognition import RecognitionErrors, audio_parts, error_figures, unread_warnings
from voxstill.labelling import label
from voxstill.storage import tables, workdir
from voxstill.storage.store import Store
from voxstill.teachers import registry
from voxstill.teachers.teacher import Clip, Teacher

SPEED_CLIPS_MS = 120_000
"""Audio on which two recognisers are timed side by side."""
SPEED_ROUNDS, SPEED_S = 3, 30.0
"""So often, or until so much time has passed: a slow teacher is timed once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherFigures(Figures):
    """The errors of a teacher's labels on one split, the labels, and its speed where that was measured."""

    teacher: str
    split: str
    errors: RecognitionErrors
    hypotheses: Mapping[str, str]
    """Labels by utterance id."""
    rtfx: float | None = None
    """Seconds of audio in a second of one CPU core."""
    without_grammar: bool = False
    """Whether they are of the teacher without its grammar, and not of its labels."""

    def to_dict(self) -> dict[str, object]:
        """All figures side by side but the labels."""
        return {
            "teacher": self.teacher,
            **({"without_grammar": True} if self.without_grammar else {}),
            "split": self.split,
            **self.errors.to_dict(),
            "rtfx": self.rtfx,
        }


def labels_all(judged: Sequence[Utterance]) -> bool:
    """Whether a teacher labels all of these utterances; a warning says where some are supervised."""
    if num := sum(bool(utterance.supervised) for utterance in judged):
        log.warning(
            "evaluate: the teacher is not evaluated, as %d of %d utterances are of supervised sources, which it "
            "does not label: "
            "with `source.split: train` there, it is evaluated on the others",
            num,
            len(judged),
        )
    return num == 0


def evaluate_labels(cfg: Config, judged: Sequence[Utterance]) -> TeacherFigures | None:
    """Return error rates of the labels that a teacher gave these utterances; None if it gave none.

    Nothing is labelled again, and the teacher need not be installed. One that reads the texts is not judged, and none
    is on a split with supervised utterances: no teacher has labelled these.
    """
    if not labels_all(judged):
        return None
    try:
        if registry.find(cfg.teacher.name).reads_texts:
            return None
    except ConfigError as error:
        log.info("evaluate: %s: its labels are evaluated anyway", error.what)
    try:
        figures = evaluate(cfg, judged)
    except DataError as error:
        log.info("evaluate: the teacher is not evaluated: %s", error.what)
        return None
    return figures if figures.hypotheses else None


def evaluate(cfg: Config, judged: Sequence[Utterance]) -> TeacherFigures:
    """Return error rates of the labels that a teacher gave these utterances; nothing is labelled again."""
    work = Store(cfg.work)
    labels = label.finished(work, cfg.teacher)
    wanted = {row.id for row in judged}
    rows = tables.read(work, workdir.prefix("labels", labels.recipe), Label)
    texts = {row.utterance_id: row.text for row in rows if row.utterance_id in wanted and row.error is None}
    return TeacherFigures(
        teacher=labels.teacher,
        split=cfg.evaluate.split,
        errors=error_figures(cfg, judged, texts),
        hypotheses=texts,
    )


def sample(judged: Sequence[Utterance], num_utterances: int, seed: int) -> list[Utterance]:
    """Draw utterances by their ids; returns them in their order."""
    drawn = sorted(judged, key=lambda row: fingerprint("without grammar", seed, row.id))[:num_utterances]
    return sorted(drawn, key=lambda row: row.id)


def evaluate_without_grammar(cfg: Config, free: Teacher, judged: Sequence[Utterance]) -> TeacherFigures:
    """Transcribe utterances with a teacher that has no grammar, in this process; return its error rates and speed.

    TeacherError if it cannot be loaded.
    """
    name = f"{cfg.teacher.name}@{free.revision()}"
    free.load()
    texts: dict[str, str] = {}
    unread: dict[str, str] = {}
    cpu_s, audio_ms = 0.0, 0
    with Progress("evaluate the teacher without its grammar", len(judged), "utterances") as bar:
        for part in audio_parts(cfg, judged):
            unread |= part.unread
            bar.advance(len(part.unread))
            for utterance, samples_T in part.audio:
                start = time.process_time()
                [result] = free.transcribe_batch([Clip(utterance=replace(utterance, text=None), samples_T=samples_T)])
                cpu_s += time.process_time() - start
                audio_ms += utterance.duration_ms
                if result.error is None:
                    texts[utterance.id] = result.text
                else:
                    unread[utterance.id] = result.error
                bar.advance(1)
    free.close()
    warnings = unread_warnings(unread, len(judged))
    errors = error_figures(cfg, judged, texts)
    return TeacherFigures(
        teacher=name,
        split=cfg.evaluate.split,
        errors=replace(errors, warnings=[*warnings, *errors.warnings]),
        hypotheses=texts,
        rtfx=audio_ms / 1000 / max(cpu_s, 1e-9),
        without_grammar=True,
    )


def speeds(
    recognizers: Mapping[str, Callable[[Sequence[tuple[Utterance, Samples]]], object]],
    audio: Sequence[tuple[Utterance, Samples]],
) -> dict[str, float]:
    """Time recognisers on the same audio, in turn, in this one process: median audio-seconds per CPU-second of each."""
    timed: list[tuple[Utterance, Samples]] = []
    total_ms = 0
    for utterance, samples_T in audio:
        if total_ms < SPEED_CLIPS_MS:
            timed.append((utterance, samples_T))
            total_ms += utterance.duration_ms
    took: dict[str, list[float]] = {name: [] for name in recognizers}
    begun = time.perf_counter()
    for number in range(SPEED_ROUNDS):
        if number and time.perf_counter() - begun > SPEED_S:
            break
        for name, transcribe in recognizers.items():
            start = time.process_time()
            transcribe(timed)
            took[name].append(time.process_time() - start)
    return {name: total_ms / 1000 / max(sorted(seconds)[len(seconds) // 2], 1e-9) for name, seconds in took.items()}
