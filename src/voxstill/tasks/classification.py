"""The tasks `classes` and `speakers`: a student that classifies whole utterances, or compares voices."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from voxstill.core.atomic import write_atomically
from voxstill.core.config import Config
from voxstill.core.errors import DataError, first_line
from voxstill.core.monitor import log
from voxstill.nn import checkpoints, classifiers, freezing
from voxstill.nn.augment_waveform import NoiseBank
from voxstill.nn.frontends import Frontend
from voxstill.storage import checked_json
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.tasks import noise
from voxstill.tasks.classify import ClassifyTask
from voxstill.tasks.data_classes import Classified
from voxstill.text.normalize import normalizer
from voxstill.training.experiment import describe, save_model, write_extractor
from voxstill.training.setup import TrainingSetup
from voxstill.training.task import Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_NAMES = "classes.json"


def column_of(cfg: Config) -> str:
    """Return the column that names the class of an utterance."""
    return "speaker" if cfg.student.task == "speakers" else cfg.student.target


def build(fabric: Fabric, cfg: Config, run: RunDir, store: Store, prefix: str) -> TrainingSetup:
    """Build a student that learns which class each utterance is of; DataError if all are of one."""
    column, speakers = column_of(cfg), cfg.student.task == "speakers"
    with fabric.rank_zero_first():  # which makes names and index, for the others to open
        frontend = frontend_of(cfg, noise.load(cfg.augment))
        corpus, names = corpus_of(cfg, run, store, prefix, frontend, rank=fabric.global_rank, ranks=fabric.world_size)
    counted = f", {len(names)} {'speakers' if speakers else f'classes by {column}'}"
    first = corpus.plan(0, ascending=True)
    log.info("train: %s", describe(first.statistics(), corpus.hours_by_dataset(first), counted))
    model = _new(cfg, names)

    def save(run: RunDir, weights: dict[str, torch.Tensor]) -> None:
        save_model(run, model, weights, functools.partial(write_extractor, frontend))

    about = f"`{cfg.student.checkpoint}`" if cfg.student.checkpoint else f"a {cfg.student.size} FastConformer"
    task = ClassifyTask(names, frontend, speakers=speakers, verifies=corpus.verifies, seed=cfg.seed)
    return TrainingSetup(
        model=model,
        task=task,
        data=corpus,
        about=f"{about} that distinguishes {'speakers' if speakers else 'classes'}",
        notes={"classes": len(names)},
        error=f"dev_{task.dev_figure}",
        save=save,
        frozen=freezing.freeze(model, cfg.student.freeze_layers, cfg.train.unfreeze_share),
    )


def corpus_of(
    cfg: Config, run: RunDir, store: Store, prefix: str, frontend: Frontend, *, rank: int = 0, ranks: int = 1
) -> tuple[Classified, list[str]]:
    """Open the shards below `prefix` as one rank learns from them, and the names of their classes.

    Both are written below `run` where they are not there yet. DataError if all utterances are of one class.
    """
    column = column_of(cfg)
    names = _names(run, store, prefix, cfg)
    corpus = Classified(
        store,
        prefix,
        run.corpus,
        names=names,
        normalize=normalizer(cfg.student.text) if column == "text" else str,
        frontend=frontend,
        cfg=cfg,
        rank=rank,
        ranks=ranks,
        column=column,
    )
    return corpus, names


def rebuild(cfg: Config, run: RunDir) -> tuple[Frontend, Any, Task]:
    """Build the frontend of an experiment, its model before its first step, and its task."""
    finished = run.model.is_dir()
    names = classifiers.names_of(classifiers.load(run.model)) if finished else _kept_names(run)
    frontend = frontend_of(cfg, noise.load(cfg.augment))
    task = ClassifyTask(names, frontend, speakers=cfg.student.task == "speakers")
    return frontend, _new(cfg, names), task


def frontend_of(cfg: Config, noise_bank: NoiseBank | None) -> Frontend:
    """Make the frontend of the student, that of its checkpoint where it has one."""
    start = cfg.student.checkpoint
    config = classifiers.read_config(start) if start else None
    return checkpoints.make_frontend(config, cfg.augment, noise_bank, start, cfg.student.normalization)


def _names(run: RunDir, store: Store, prefix: str, cfg: Config) -> list[str]:
    """The classes of the train split, sorted; those that another start of this training found."""
    path, column = run.corpus / _NAMES, column_of(cfg)
    if path.exists():
        return _kept_names(run)
    normalize = normalizer(cfg.student.text) if column == "text" else str
    names = sorted({name for name in Classified.texts(store, prefix, "train", normalize, column) if name})
    if len(names) < 2:
        raise DataError(
            f"there are too few classes: the train split has {len(names)} classes by `{column}`",
            code="too-few-classes",
            why=f"all are `{names[0]}`" if names else f"no utterance has a {column}",
            fix="set `student.target` to the field of the classes; docs/sources.md lists the fields of a manifest",
        )
    run.corpus.mkdir(parents=True, exist_ok=True)
    write_atomically(path, checked_json.encode({"classes": names}))
    return names


def _kept_names(run: RunDir) -> list[str]:
    """The classes that another start of a training found; DataError if the file is not what was written."""
    path = run.corpus / _NAMES
    try:
        data = path.read_bytes()
        is_earlier = data.startswith(b"[")  # earlier versions wrote the list alone
        names = json.loads(data) if is_earlier else checked_json.decode(data, str(path))["classes"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("it is not a list of names")
    except (DataError, OSError, ValueError, KeyError, RecursionError) as error:
        raise DataError(
            f"`{path}` contains no classes of a student",
            code="checkpoint-broken",
            why=error.why if isinstance(error, DataError) else first_line(error),
            fix="restore it from a copy: checkpoints are of these classes; if there are none, remove it and train "
            "again",
        ) from None
    return names


def _new(cfg: Config, names: Sequence[str]) -> Any:
    return classifiers.new(cfg.student, names, cfg.seed, {"target": column_of(cfg), "text": cfg.student.text})


def open_corpus(cfg: Config, run: RunDir, store: Store, prefix: str) -> Classified:
    """Open the shards as a training in one process learns from them."""
    return corpus_of(cfg, run, store, prefix, frontend_of(cfg, None))[0]


def save(cfg: Config, run: RunDir, weights: dict[str, torch.Tensor], output: RunDir) -> None:
    """Write the student of an experiment with other weights, those of a checkpoint."""
    frontend, model, _ = rebuild(cfg, run)
    save_model(output, model, weights, functools.partial(write_extractor, frontend))
