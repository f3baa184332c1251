"""Pre-training: audio alone becomes a model that students start from."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from voxstill.core.config import Config, Normalization, identity
from voxstill.core.monitor import log
from voxstill.nn import checkpoints, self_supervised
from voxstill.nn.frontends import Frontend, LogMelFrontend
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.tasks.data_unlabelled import Unlabelled
from voxstill.tasks.pretrain import ContrastiveTask, RandomCodesTask
from voxstill.training.experiment import describe, save_model, train_settings, write_extractor
from voxstill.training.setup import TrainingSetup

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def settings(cfg: Config) -> dict[str, object]:
    """What decides what is learnt: the seed and the identity of each section."""
    own = {**identity(cfg.pretrain), "weights": checkpoints.weights_digest(cfg.pretrain.checkpoint)}
    every = train_settings(cfg)
    size = cfg.student.size if cfg.pretrain.method == "best_rq" else None
    level = {"normalization": "level"} if _normalization(cfg) == "level" else {}
    return {"pretrain": own, "size": size, **level, **{name: every[name] for name in ("seed", "plan", "train")}}


def begun(cfg: Config) -> tuple[Frontend, Any, ContrastiveTask | RandomCodesTask]:
    """Build the frontend, the model before its first step, and its task."""
    own = cfg.pretrain
    if own.method == "wav2vec2":
        model = self_supervised.wav2vec2(own, cfg.seed)
        frontend = checkpoints.make_frontend(model.config, cfg.augment, checkpoint=own.checkpoint)
        return frontend, model, ContrastiveTask(own, frontend, self_supervised.codebook(model), cfg.seed)
    model = self_supervised.best_rq(own, cfg.student.size, cfg.seed, cfg.student.normalization or "utterance")
    config = checkpoints.read_config(own.checkpoint) if own.checkpoint else None
    mels = checkpoints.make_frontend(config, cfg.augment, None, own.checkpoint, _normalization(cfg))
    assert isinstance(mels, LogMelFrontend)
    return mels, model, RandomCodesTask(own, mels, cfg.seed)


def _normalization(cfg: Config) -> Normalization | None:
    """That of a new BEST-RQ model, as of a new student; None if a checkpoint or a waveform decides."""
    is_new_best_rq = cfg.pretrain.method == "best_rq" and cfg.pretrain.checkpoint is None
    return cfg.student.normalization if is_new_best_rq else None


def build(fabric: Fabric, cfg: Config, run: RunDir, store: Store, prefix: str) -> TrainingSetup:
    """Build a model that learns by the method of the configuration."""
    own = cfg.pretrain
    frontend, model, task = begun(cfg)
    kind, size = ("wav2vec 2.0", own.size) if own.method == "wav2vec2" else ("FastConformer", cfg.student.size)
    with fabric.rank_zero_first():  # which makes the index, for the others to open
        corpus = _corpus_of(cfg, run, store, prefix, frontend, task, rank=fabric.global_rank, ranks=fabric.world_size)
    first = corpus.plan(0, ascending=True)
    log.info("pretrain: %s", describe(first.statistics(), corpus.hours_by_dataset(first)))

    def save(run: RunDir, weights: dict[str, torch.Tensor]) -> None:
        save_model(run, model, weights, functools.partial(write_extractor, frontend))

    return TrainingSetup(
        model=model,
        task=task,
        data=corpus,
        about=f"`{own.checkpoint}` as a {kind}" if own.checkpoint else f"{size} {kind}",
        notes={"method": own.method},
        error="dev_loss",
        save=save,
    )


def corpus(cfg: Config, run: RunDir, store: Store, prefix: str) -> Unlabelled:
    """Open the shards as a pre-training in one process learns from them."""
    frontend, _, task = begun(cfg)
    return _corpus_of(cfg, run, store, prefix, frontend, task)


def _corpus_of(
    cfg: Config,
    run: RunDir,
    store: Store,
    prefix: str,
    frontend: Frontend,
    task: ContrastiveTask | RandomCodesTask,
    *,
    rank: int = 0,
    ranks: int = 1,
) -> Unlabelled:
    return Unlabelled(store, prefix, run.corpus, frontend=frontend, masks=task.masks, cfg=cfg, rank=rank, ranks=ranks)
