"""evaluate: inference of a finished model on one split of its WORK, and its error rates beside those of its teacher."""

from __future__ import annotations

from pathlib import Path

from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.evaluation import recognition, results
from voxstill.evaluation import teacher as teacher_evaluation
from voxstill.evaluation.results import Evaluation
from voxstill.pipeline.judged_split import JudgedSplit, of_split
from voxstill.storage.rundir import RunDir
from voxstill.tasks import registry


def evaluate(cfg: Config, target: str) -> Evaluation:
    """Judge a model by the task that it is of; the figures of an experiment are kept in its folder.

    Beside those of a recogniser stay those of its teacher's labels, where they are there.
    """
    name, task = registry.name_of(target), registry.task_of(target)
    split = of_split(cfg)
    evaluation = task.evaluate(cfg, target, split.utterances).of(split.corpus, warnings=split.warnings)
    run = RunDir(Path(target))
    if run.config.is_file():
        results.write(run.evaluation, evaluation)
        if name == "recognition" and (teacher := _teacher(cfg, split)) is not None:
            results.write(run.evaluation, teacher)
    return evaluation


def _teacher(cfg: Config, split: JudgedSplit) -> Evaluation | None:
    """The evaluation of the teacher's labels of the same utterances; None where there are none."""
    try:
        judged = recognition.references(cfg, split.utterances)
    except DataError:
        return None
    figures = teacher_evaluation.evaluate_labels(cfg, judged)
    if figures is None:
        return None
    evaluation = recognition.evaluation_of(figures.to_dict(), judged, figures.hypotheses)
    return evaluation.of(split.corpus, figures.teacher, split.warnings)


def own_config(model: str) -> str | None:
    """The configuration in an experiment folder; None of a model folder or a name on the Hub, which have none."""
    file = RunDir(Path(model)).config
    return str(file) if file.is_file() else None
