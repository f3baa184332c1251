"""evaluate: inference of a finished model on one split of its WORK, and its error rates."""

from __future__ import annotations

from pathlib import Path

from voxstill.core.config import Config
from voxstill.evaluation import results
from voxstill.evaluation.results import Evaluation
from voxstill.pipeline.judged_split import of_split
from voxstill.storage.rundir import RunDir
from voxstill.tasks import registry


def evaluate(cfg: Config, target: str) -> Evaluation:
    """Judge a model by the task that it is of; the figures of an experiment are kept in its folder."""
    task = registry.task_of(target)
    split = of_split(cfg)
    evaluation = task.evaluate(cfg, target, split.utterances).of(split.corpus, warnings=split.warnings)
    run = RunDir(Path(target))
    if run.config.is_file():
        results.write(run.evaluation, evaluation)
    return evaluation


def own_config(model: str) -> str | None:
    """The configuration in an experiment folder; None of a model folder or a name on the Hub, which have none."""
    file = RunDir(Path(model)).config
    return str(file) if file.is_file() else None
