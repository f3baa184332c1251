"""The recipes of a configuration, of every kind, where nothing has been made yet."""

from __future__ import annotations

import shutil
from pathlib import Path

from voxstill.core import legacy
from voxstill.core.config import Config
from voxstill.core.records import fingerprint
from voxstill.indexing.recipe import utterances_recipe
from voxstill.labelling import label
from voxstill.pipeline import recipes as named
from voxstill.storage.figures import IndexFigures, LabelFigures, VerdictFigures
from voxstill.storage.store import Store
from voxstill.tasks import pretraining
from voxstill.teachers import registry
from voxstill.training.experiment import train_settings

UTTERANCES, VERDICTS = IndexFigures(recipe="utterances"), VerdictFigures(recipe="verdicts")
LABELS = LabelFigures(recipe="labels", sha256="0")
"""What each is made from has a fixed name here, so that a recipe tells of its own step alone."""


def recipes(cfg: Config) -> dict[str, str]:
    """Name of the table, or experiment, of each kind; `cfg.work` is a folder to be written to."""
    recipe = utterances_recipe(cfg)
    indexed = Path(cfg.work) / "utterances"
    Store(cfg.work).write_json(f"utterances/{recipe}/_SUCCESS.json", UTTERANCES.to_dict())
    unlabelled = named.unlabelled_recipe(cfg)
    shutil.rmtree(indexed)
    return {
        "utterances": recipe,
        "labels": label.task(cfg.teacher).recipe,
        "scores": named.scores_recipe(cfg, UTTERANCES, LABELS),
        "verdicts": named.verdicts_recipe(cfg, UTTERANCES, LABELS),
        "shards": named.shard_recipe(cfg, VERDICTS),
        "unlabelled": unlabelled,
        "train": fingerprint("train", train_settings(cfg), "shards"),
        "pretrain": fingerprint("train", pretraining.settings(cfg), "shards"),
    }


def recipes_of_0_1(cfg: Config) -> dict[str, str | None]:
    """The names that version 0.1 gave to the same."""
    scores = named.scores_recipe(cfg, UTTERANCES, LABELS)
    task = label.task(cfg.teacher)
    return {
        "utterances": legacy.recipe("segment", cfg.segment, cfg.source, cfg.seed),
        "labels": legacy.labels(task.name, cfg.teacher, registry.options(cfg.teacher)),
        "scores": scores,
        "verdicts": legacy.recipe("filter", cfg.filter, scores),
        "shards": legacy.recipe("shard", cfg.shard, "verdicts", cfg.seed),
        "unlabelled": legacy.recipe("unlabelled", cfg.shard, "utterances", cfg.seed),
        "train": legacy.experiment(cfg, train_settings(cfg), "shards"),
        "pretrain": legacy.experiment(cfg, pretraining.settings(cfg), "shards"),
    }
