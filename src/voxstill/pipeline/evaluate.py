"""evaluate: inference of a finished model on one split of its WORK, and its error rates."""

from __future__ import annotations

from pathlib import Path

from voxstill.core.config import Config
from voxstill.core.records import Utterance
from voxstill.evaluation import results
from voxstill.evaluation.results import Corpus, Evaluation
from voxstill.pipeline.recipes import finished_utterances
from voxstill.storage import removals, tables, workdir
from voxstill.storage.redaction import redact_uri
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.tasks import registry


def evaluate(cfg: Config, target: str) -> Evaluation:
    """Judge a model by the task that it is of; the figures of an experiment are kept in its folder."""
    task = registry.task_of(target)
    corpus, utterances = of_split(cfg)
    evaluation = task.evaluate(cfg, target, utterances).of(corpus)
    run = RunDir(Path(target))
    if run.config.is_file():
        results.write(run.evaluation, evaluation)
    return evaluation


def own_config(model: str) -> str | None:
    """The configuration in an experiment folder; None of a model folder or a name on the Hub, which have none."""
    file = RunDir(Path(model)).config
    return str(file) if file.is_file() else None


def of_split(cfg: Config) -> tuple[Corpus, list[Utterance]]:
    """Read the utterances of `evaluate.split`, but for those that were removed, and say of which corpus they are."""
    work = Store(cfg.work)
    source = finished_utterances(cfg)
    prefix = workdir.prefix("utterances", source.recipe)
    removed = removals.of(work, prefix)
    rows = tables.read(work, prefix, Utterance)
    corpus = Corpus(work=redact_uri(work.root), utterances=source.recipe, texts=cfg.evaluate.texts)
    return corpus, [row for row in rows if row.split == cfg.evaluate.split and row.id not in removed]
