"""Evaluation of classification: accuracy and F1 of classes, equal error rate of speakers, and a page of confusions."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.monitor import Progress, log
from voxstill.core.records import ErrorCounts, Utterance
from voxstill.core.result import Figures
from voxstill.decoding.checkpoint_files import model_folder
from voxstill.decoding.classes import LoadedClassifier, classify
from voxstill.decoding.loaded import Samples, padded
from voxstill.decoding.recognizer import batches_by_length
from voxstill.evaluation.recognition import audio_parts, hidden_texts, unread_warnings, with_text
from voxstill.evaluation.report import classes as report
from voxstill.evaluation.results import Evaluation
from voxstill.nn import classifiers, students
from voxstill.nn.heads import Task
from voxstill.nn.loading import load_config
from voxstill.scoring import classes as class_scores
from voxstill.scoring import figures as scoring
from voxstill.scoring import stats, verification
from voxstill.scoring.classes import ClassificationFigures
from voxstill.scoring.figures import Stamp
from voxstill.scoring.words import Scored
from voxstill.text.normalize import normalizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Errors of telling whether two utterances have one speaker; None if the trials are not of both kinds."""

    eer: float | None
    min_dcf: float | None
    trials: int
    threshold: float | None
    """The cosine from which two utterances are of one speaker, at the equal error rate."""

    def to_dict(self) -> dict[str, float | None]:
        """The fields."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByClass:
    """Accuracy, F1 and confusion over the classes that were learnt."""

    scores: ClassificationFigures
    interval: tuple[float, float] | None
    """Of the accuracy; None if nothing was scored."""
    interval_over: Literal["speakers", "utterances"]
    unknown: int
    """Utterances of classes that were never learnt."""

    def to_dict(self) -> dict[str, object]:
        """All figures side by side."""
        return {
            "accuracy": self.scores.accuracy,
            "interval": self.interval,
            "interval_over": self.interval_over,
            "macro_f1": self.scores.macro_f1,
            "unknown": self.unknown,
            "classes": {name: dataclasses.asdict(row) for name, row in self.scores.per_class.items()},
            "confusion": self.scores.confusion,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierFigures(Figures):
    """The figures of a student of classes or speakers, on one split."""

    model: str
    split: str
    task: Task | None
    target: str
    """The property of an utterance that is its class."""
    utterances: int
    verification: Verification | None
    """None if the student gives no embeddings."""
    by_class: ByClass
    rtfx: float
    """Seconds of audio in a second of one thread."""
    parameters: int
    unread: Mapping[str, str]
    """Why utterances could not be read, by their id."""
    warnings: Sequence[str]
    stamp: Stamp

    def to_dict(self) -> dict[str, object]:
        """All figures side by side."""
        return {
            "model": self.model,
            "split": self.split,
            "task": self.task,
            "target": self.target,
            "utterances": self.utterances,
            **({} if self.verification is None else self.verification.to_dict()),
            **self.by_class.to_dict(),
            "rtfx": self.rtfx,
            "parameters": self.parameters,
            "unread": dict(self.unread),
            "warnings": list(self.warnings),
            **self.stamp.to_dict(),
        }


def task_of(target: str) -> Task | None:
    """Return what the student of an experiment or a model folder was trained for; None if it is not a classifier.

    A classifier that does not say what its classes are of (`target`) is one of another package.
    """
    try:
        config = load_config(model_folder(target))
    except (ConfigError, OSError, ValueError):
        return None
    return classifiers.task_of(config) if hasattr(config, "target") else None


def evaluate(cfg: Config, target: str, utterances: Sequence[Utterance]) -> Evaluation:
    """Classify utterances, or compare their speakers; return figures, the speed on one thread, and a page."""
    folder = model_folder(target)
    student = LoadedClassifier(folder, cfg.augment)
    config = student.model.config
    judged = _judged(cfg, config.target, config.text, utterances)
    torch.set_num_threads(1)
    outputs = _outputs(cfg, student, judged)
    warnings = unread_warnings(outputs.unread, len(judged))
    rows = [row for row in judged if row.id in outputs.classes]
    audio_s = sum(row.duration_ms for row in rows) / 1000
    figures = ClassifierFigures(
        model=target,
        split=cfg.evaluate.split,
        task=classifiers.task_of(config),
        target=config.target,
        utterances=len(rows),
        verification=_verified(rows, outputs.embedded, cfg) if outputs.embedded else None,
        by_class=_by_class(rows, outputs.classes, set(student.names), cfg),
        rtfx=audio_s / max(outputs.model_s, 1e-9),
        parameters=students.num_parameters(student.model),
        unread=outputs.unread,
        warnings=warnings,
        stamp=scoring.stamp(config.text if config.target == "text" else "none", {}),
    )
    page = {"page.html": report.page(_page_of(figures))}
    return Evaluation(figures=figures.to_dict(), detail=("classes", "confusion"), files=page)


@dataclass(slots=True)
class _Outputs:
    """The class and the embedding (E,) of each utterance by its id, or why it has none, and the time of the model."""

    classes: dict[str, str] = field(default_factory=dict)
    embedded: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    model_s: float = 0.0


def _outputs(cfg: Config, student: LoadedClassifier, judged: Sequence[Utterance]) -> _Outputs:
    """Classify utterances, of which a part is in memory at once."""
    outputs, num_frames = _Outputs(), student.frontend.num_frames
    with Progress("evaluate", len(judged), "utterances") as bar:
        for part in audio_parts(cfg, judged):
            outputs.unread |= part.unread
            lengths = [len(samples_T) if num_frames(len(samples_T)) else 0 for _, samples_T in part.audio]
            outputs.unread |= {
                row.id: "too short" for (row, _), num in zip(part.audio, lengths, strict=True) if not num
            }
            for members in batches_by_length(lengths, student.batch_ms):
                _add_batch(outputs, student, [part.audio[member] for member in members])
            bar.advance(len(part.audio) + len(part.unread))
    return outputs


def _add_batch(outputs: _Outputs, student: LoadedClassifier, audio: Sequence[tuple[Utterance, Samples]]) -> None:
    ids = [row.id for row, _ in audio]
    begin = time.perf_counter()
    with torch.inference_mode():
        audio_BT, len_B = padded([samples_T for _, samples_T in audio], student.device)
        hypotheses, embedding_BE = classify(student.model, student.frontend, student.names, audio_BT, len_B, ids)
    outputs.model_s += time.perf_counter() - begin
    outputs.classes |= {hypothesis.id: hypothesis.text for hypothesis in hypotheses}
    if embedding_BE is not None:
        outputs.embedded |= dict(zip(ids, embedding_BE.numpy(), strict=True))


def _judged(cfg: Config, column: str, text: str, utterances: Sequence[Utterance]) -> list[Utterance]:
    """Return those of the split that have a class, with it as their text; DataError if none has."""
    if column == "text":
        texts, normalize = hidden_texts(cfg), normalizer(text)
        known = [with_text(row, texts) for row in utterances]
        known = [dataclasses.replace(row, text=normalize(row.text)) for row in known if row.text]
    else:
        known = [dataclasses.replace(row, text=getattr(row.info, column)) for row in utterances]
    judged = sorted((row for row in known if row.text), key=lambda row: row.id)
    if not judged:
        raise DataError(
            f"nothing can be evaluated on the split `{cfg.evaluate.split}`",
            code="nothing-to-judge",
            why=f"{len(utterances)} utterances are in it, and none has a {column}",
            fix="choose another split with `--on`, or add it to the manifest",
        )
    if len(judged) < len(utterances):
        log.info("evaluate: %d of %d utterances have a %s", len(judged), len(utterances), column)
    return judged


def _by_class(rows: Sequence[Utterance], classes: Mapping[str, str], names: set[str], cfg: Config) -> ByClass:
    """Return accuracy, F1 and confusion over the classes that were learnt, and how many utterances are of others."""
    known = [row for row in rows if row.text in names]
    pairs = [(row.text or "", classes[row.id]) for row in known]
    strange = sorted({row.text or "" for row in rows} - names)
    if strange and (known or cfg.student.task != "speakers"):
        log.warning(
            "evaluate: %d of %d utterances are of classes that were not in training (%s): not scored by class",
            len(rows) - len(known),
            len(rows),
            ", ".join(strange[:5]),
        )
    by_class = class_scores.score(pairs)
    counts = [ErrorCounts(hits=int(ref == hyp), substitutions=int(ref != hyp)) for ref, hyp in pairs]
    scored = [Scored(id=row.id, words=one, characters=one) for row, one in zip(known, counts, strict=True)]
    blocks = stats.blocks(scored, {row.id: row.info.speaker for row in known})
    errors = stats.interval(blocks.counts, cfg.evaluate.bootstrap_draws, cfg.seed) if known else None
    return ByClass(
        scores=by_class,
        interval=None if errors is None else (1 - errors[1], 1 - errors[0]),
        interval_over=blocks.unit,
        unknown=len(rows) - len(known),
    )


def _verified(rows: Sequence[Utterance], embedded: Mapping[str, NDArray[np.float32]], cfg: Config) -> Verification:
    """Return the errors of telling whether two utterances have one speaker; None if there is one speaker alone."""
    embedding_ND = np.stack([embedded[row.id] for row in rows])
    score_N, same_N = verification.compare(embedding_ND, [row.text for row in rows], cfg.seed)
    if same_N.all() or not same_N.any():
        log.warning(
            "evaluate: the split does not have trials of both kinds: it needs two speakers, one of them with two "
            "utterances"
        )
        return Verification(eer=None, min_dcf=None, trials=len(same_N), threshold=None)
    return Verification(
        eer=verification.eer(score_N, same_N),
        min_dcf=verification.min_dcf(score_N, same_N),
        trials=len(same_N),
        threshold=verification.eer_threshold(score_N, same_N),
    )


def _page_of(figures: ClassifierFigures) -> report.Figures:
    by_class = figures.by_class
    page = report.Figures(
        title=f"{figures.target}: {figures.model}",
        split=figures.split,
        utterances=figures.utterances,
        accuracy=by_class.scores.accuracy,
        interval=by_class.interval,
        interval_over=by_class.interval_over,
        macro_f1=by_class.scores.macro_f1,
        per_class={
            name: report.ClassFigures(precision=row.precision, recall=row.recall, f1=row.f1, count=row.count)
            for name, row in by_class.scores.per_class.items()
        },
        confusion=by_class.scores.confusion,
    )
    if figures.verification is not None:
        page |= {
            "eer": figures.verification.eer,
            "min_dcf": figures.verification.min_dcf,
            "trials": figures.verification.trials,
        }
    return page
