"""pretrain: audio alone becomes a model that students start from; the same command again goes on where it stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from voxstill.commands import prepare
from voxstill.commands.learn import Lesson, check, describe, learn, save_model, train_settings
from voxstill.config import Config, identity
from voxstill.errors import ConfigError
from voxstill.monitor import log
from voxstill.nn import students, unlabelled
from voxstill.nn.hearing import Hearing, Mels
from voxstill.rundir import RunDir
from voxstill.store import Store
from voxstill.tasks.pretrain import ContrastiveTask, RandomCodesTask
from voxstill.train.unlabelled import Unlabelled


def pretrain(cfg: Config) -> dict[str, Any]:
    """A model that has learnt from audio alone: its folder, steps, seconds and loss.

    In a process that was started as one of several, these are empty but for the first.
    """
    check(cfg)
    if cfg.pretrain.crop_ms > cfg.plan.budget_ms:
        raise ConfigError(
            f"`pretrain.crop_ms` is {cfg.pretrain.crop_ms} and `plan.budget_ms` is {cfg.plan.budget_ms}",
            why="not one utterance of that length would fit into a batch",
            fix="raise `plan.budget_ms`, or lower `pretrain.crop_ms`",
        )
    return learn(cfg, prepare.heard_shards, lesson, settings(cfg))


def settings(cfg: Config) -> dict[str, Any]:
    """What decides what is learnt: the seed and the identity of each section."""
    own = {**identity(cfg.pretrain), "weights": students.digest(cfg.pretrain.checkpoint)}
    every = train_settings(cfg)
    size = cfg.student.size if cfg.pretrain.method == "best_rq" else None
    return {"pretrain": own, "size": size, **{name: every[name] for name in ("seed", "plan", "train")}}


def begun(cfg: Config) -> tuple[Hearing, Any, ContrastiveTask | RandomCodesTask]:
    """How the model hears, itself before its first step, and its task."""
    own = cfg.pretrain
    if own.method == "wav2vec2":
        model = unlabelled.wav2vec2(own, cfg.seed)
        hearing = students.hearing(model.config, cfg.augment, checkpoint=own.checkpoint)
        return hearing, model, ContrastiveTask(own, hearing, unlabelled.codebook(model))
    model = unlabelled.fast_conformer(own, cfg.student.size, cfg.seed)
    heard = Mels(cfg.augment, num_mels=model.config.encoder_config.num_mel_bins)
    return heard, model, RandomCodesTask(own, heard, cfg.seed)


def lesson(fabric: Any, cfg: Config, run: RunDir, store: Store, prefix: str) -> Lesson:
    """A model that learns by the method of the configuration."""
    own = cfg.pretrain
    hearing, model, task = begun(cfg)
    kind, size = ("wav2vec 2.0", own.size) if own.method == "wav2vec2" else ("FastConformer", cfg.student.size)
    with fabric.rank_zero_first():  # which makes the index, for the others to open
        corpus = Unlabelled(
            *(store, prefix, run.corpus, hearing, task.masks, cfg), rank=fabric.global_rank, ranks=fabric.world_size
        )
    log.info("pretrain: %s", describe(corpus.plan(0, ascending=True).statistics()))

    def save(run: RunDir, weights: dict[str, torch.Tensor]) -> None:
        def rest(folder: Path) -> None:
            text = json.dumps(dict(hearing.extractor), indent=2) + "\n"
            (folder / "preprocessor_config.json").write_text(text, encoding="utf-8")

        save_model(run, model, weights, rest)

    return Lesson(
        *(model, task, corpus, f"`{own.checkpoint}` as a {kind}" if own.checkpoint else f"{size} {kind}"),
        notes={"method": own.method},
        error="dev_loss",
        save=save,
    )
