"""The folder of an experiment: found by its recipe or made, with its configuration, environment, summary and model."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import functools
import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from voxstill.core import config, legacy
from voxstill.core.atomic import atomic_folder, write_atomically
from voxstill.core.config import Config, Normalization, Optimizer
from voxstill.core.errors import ConfigError, DataError, VoxstillError
from voxstill.core.monitor import log
from voxstill.core.records import fingerprint
from voxstill.decoding.checkpoint_files import model_folder
from voxstill.nn import checkpoints, loading
from voxstill.nn.frontends import Frontend
from voxstill.storage import lease, manifest, workdir
from voxstill.storage import shard_format as sidecars
from voxstill.storage.figures import ShardFigures
from voxstill.storage.redaction import redact_options, redact_uri
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.training import checkpoint, environment
from voxstill.training.summary import TrainingSummary

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_FIRST_OPTIMIZER = ("optimizer", "adamw")
"""The only one before there was a choice."""
_FOLDER = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d(-\d+)?")
"""The name of an experiment folder before its `train.name`: when it started, and a number where several did."""


def open_run(cfg: Config, shards: ShardFigures, settings: Mapping[str, object], command: str = "train") -> RunDir:
    """The experiment folder of these settings on these shards: the one that is there, or a new one.

    StorageError if another process makes it just now.
    """
    recipe = fingerprint("train", settings, shards.recipe)
    root = Path(cfg.train.root)
    version = _version_of(cfg, shards)
    opening = root.absolute() / f".{recipe}"
    if run := _same_experiment(cfg, shards, settings, version):
        shutil.rmtree(opening, ignore_errors=True)  # a process that was killed here left it
        return run
    own = lease.acquire(Store(str(opening)), "experiment", command, waits=True)
    try:
        run = _same_experiment(cfg, shards, settings, version)
        return run or _new_experiment(cfg, shards, recipe, version(), opening / "experiment")
    finally:
        own.release()
        shutil.rmtree(opening, ignore_errors=True)


def _new_experiment(cfg: Config, shards: ShardFigures, recipe: str, version: str, draft: Path) -> RunDir:
    """Make an experiment folder, whole or not at all; this process alone writes the draft."""
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    run = RunDir(draft)
    write_snapshot(run.config, cfg)
    shutil.copytree(environment.PACKAGE, run.source / "voxstill", ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    listed = manifest.content(Store(cfg.work), workdir.prefix(shards.kind, shards.recipe))
    data = {**shards.to_dict(), "sidecars_sha256": version, "content": listed}
    note(
        run,
        recipe=recipe,
        data=data,
        command=environment.command_line(),
        commits=environment.commits(),
        versions=environment.versions(),
        machine=environment.machine(),
    )
    return _placed(run, Path(cfg.train.root), cfg.train.name)


@contextlib.contextmanager
def removed_if_refused(run: RunDir) -> Iterator[None]:
    """Around the first training in a folder: the folder goes where that is refused before its loop begins.

    A refusal is an error of the configuration or the data, or too little memory. What holds more than was made for this
    training, or a log of another, stays.
    """
    is_first = not run.log.exists()
    try:
        yield
    except VoxstillError as error:
        is_refusal = isinstance(error, ConfigError | DataError) or error.code == "out-of-memory"
        if is_first and is_refusal and _is_of_no_step(run):
            shutil.rmtree(run.path, ignore_errors=True)
        raise


def named(cfg: Config) -> list[RunDir]:
    """The experiments of the name of this configuration, the newest first."""
    paths = Path(cfg.train.root).glob("*")
    names = (path for path in paths if _FOLDER.fullmatch(path.name.removesuffix(f"_{cfg.train.name}")))
    return [RunDir(path) for path in sorted(names, reverse=True)]


def _is_of_no_step(run: RunDir) -> bool:
    """Whether a folder holds nothing but what is written before the loop of a training begins."""
    before = {run.config, run.environment, run.source, run.log, run.corpus, run.ranks, run.path / "leases"}
    return before.issuperset(run.path.iterdir())


def is_trained_on(run: RunDir, cfg: Config, shards: ShardFigures) -> bool:
    """Whether an experiment has these shards, or had others of the same content: removed ones that are made again."""
    return _is_trained_on(run, cfg, shards, _version_of(cfg, shards))


def write_snapshot(path: Path, cfg: Config) -> None:
    """Write a configuration as YAML, whole or not at all and read-only, without what signs or opens addresses."""
    write_atomically(path, snapshot(cfg))
    path.chmod(0o444)


def recipe_of(run: RunDir, settings: Mapping[str, object]) -> str:
    """The recipe of these settings on the shards of an experiment."""
    return fingerprint("train", settings, _noted_data(run).get("recipe"))


def _version_of(cfg: Config, shards: ShardFigures) -> Callable[[], str]:
    prefix = workdir.prefix(shards.kind, shards.recipe)
    return functools.cache(lambda: sidecars.version(Store(cfg.work), prefix))


def _same_experiment(
    cfg: Config, shards: ShardFigures, settings: Mapping[str, object], version: Callable[[], str]
) -> RunDir | None:
    """The newest experiment of these settings on these shards; None if there is none."""
    experiments = [run for run in named(cfg) if _is_trained_on(run, cfg, shards, version)]
    for is_same in (_is_same_training, _is_same_in_0_1):
        for run in experiments:
            if is_same(run, cfg, settings):
                return run
    return None


def _placed(run: RunDir, root: Path, name: str) -> RunDir:
    """An experiment folder, under a name that no other has."""
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d_%H-%M-%S")
    for number in itertools.count(1):
        path = root / (f"{stamp}_{name}" if number == 1 else f"{stamp}-{number}_{name}")
        try:
            run.path.rename(path)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                continue
            raise
        return RunDir(path)
    raise AssertionError("the steps do not end")


def _is_trained_on(run: RunDir, cfg: Config, shards: ShardFigures, version: Callable[[], str]) -> bool:
    """Whether an experiment has these shards, by their recipe and content.

    The recipe alone is not enough: two corpora may have one, as where weights, speakers or all of the audio are others.
    """
    data = _noted_data(run)
    if shards.recipe == data.get("recipe"):
        listed = manifest.content(Store(cfg.work), workdir.prefix(shards.kind, shards.recipe))
        if None in (listed, data.get("content")) or listed == data["content"]:  # earlier versions did not note it
            return True
    return "recipe" in data and version() == data.get("sidecars_sha256")


def _is_same_training(run: RunDir, cfg: Config, settings: Mapping[str, object]) -> bool:
    return noted(run).get("recipe") == recipe_of(run, settings)


def _is_same_in_0_1(run: RunDir, cfg: Config, settings: Mapping[str, object]) -> bool:
    is_same = noted(run).get("recipe") == legacy.experiment(cfg, settings, str(_noted_data(run).get("recipe")))
    if is_same:
        log.info("train: version 0.1 started `%s`: it is continued, not trained again", run.path)
    return is_same


def _noted_data(run: RunDir) -> Mapping[str, object]:
    """What an experiment notes of its shards."""
    data = noted(run).get("data")
    return data if isinstance(data, Mapping) else {}


def snapshot(cfg: Config) -> str:
    """The configuration as YAML that may be shown to everyone: addresses without what signs or opens them."""

    def plain(value: object) -> object:
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items()}
        if isinstance(value, list):
            return [plain(item) for item in value]
        return redact_uri(value) if isinstance(value, str) else value

    return config.dump(Config.model_validate(plain(redact_options(cfg.model_dump()))))


def train_settings(cfg: Config) -> dict[str, object]:
    """What decides what is learnt: the seed and the identity of each section."""
    teacher = cfg.train.distill.checkpoint
    student = config.identity(cfg.student)
    if student.get("normalization") == "utterance" and cfg.student.checkpoint is None:  # the only one before
        del student["normalization"]
    train = {name: value for name, value in config.identity(cfg.train).items() if (name, value) != _FIRST_OPTIMIZER}
    distilled = {} if teacher is None else {"distill": checkpoints.weights_digest(str(model_folder(teacher)))}
    return {
        **distilled,
        "seed": cfg.seed,
        "student": {**student, "weights": checkpoints.weights_digest(cfg.student.checkpoint)},
        "plan": config.identity(cfg.plan),
        "augment": config.identity(cfg.augment),
        "train": train,
    }


def with_defaults(
    cfg: Config,
    shards: ShardFigures,
    settings_of: Callable[[Config], Mapping[str, object]],
    run: RunDir | None,
    *,
    is_pretraining: bool,
) -> Config:
    """The configuration with what `student.normalization`, `train.optimizer` and `plan.window` are, where they are not
    set.

    A new recogniser has `level`, or `none` where it streams, and `muon`; the window is `config.default_window`. An
    experiment keeps its own: `run`, which continues, and the one of these settings from before there was a choice.
    """
    is_new = cfg.student.checkpoint is None and cfg.student.task == "recognition"
    normalizations: Sequence[Normalization | None] = ["level", "utterance"] if is_new else [None]
    if is_new and cfg.student.streaming:
        normalizations = ["none"]
    optimizers: Sequence[Optimizer] = ["muon", "adamw"] if is_new and not is_pretraining else ["adamw"]
    windows: Sequence[int] = list(dict.fromkeys([config.default_window(cfg.plan), cfg.plan.window]))
    if run is not None:
        kept = config.load_snapshot(str(run.config)) if run.config.is_file() else None
        normalizations = [kept.student.normalization or normalizations[0]] if kept and is_new else normalizations[:1]
        optimizers = [kept.train.optimizer or "adamw"] if kept else optimizers[:1]
        windows = [kept.plan.window] if kept else windows[:1]
    if cfg.student.normalization is not None:
        normalizations = [cfg.student.normalization]
    if cfg.train.optimizer is not None:
        optimizers = [cfg.train.optimizer]
    if "window" in cfg.plan.model_fields_set:
        windows = [cfg.plan.window]
    choices = [config.with_choices(cfg, *choice) for choice in itertools.product(normalizations, optimizers, windows)]
    version = _version_of(cfg, shards)
    for one in choices if len(choices) > 1 else ():
        same = _same_experiment(one, shards, settings_of(one), version)
        if same is not None and (one is choices[0] or _had_no_choice(same, one, choices[0])):
            return one
    return choices[0]


def _had_no_choice(run: RunDir, cfg: Config, today: Config) -> bool:
    """Whether an experiment is from before there were the options in which its configuration differs from today's."""
    differ = {
        "student.normalization": cfg.student.normalization != today.student.normalization,
        "train.optimizer": cfg.train.optimizer != today.train.optimizer,
    }
    names = {name for name, is_other in differ.items() if is_other}
    return not run.config.is_file() or not names & config.options_in_snapshot(str(run.config))


def finished_summary(run: RunDir) -> TrainingSummary | None:
    """The summary of a finished training; None if it has not ended.

    Its folder is that of `run`: it may have been moved or copied since.
    """
    if not run.summary.is_file() or not run.model.is_dir():
        return None
    summary = TrainingSummary.from_dict(json.loads(run.summary.read_text(encoding="utf-8")))
    return dataclasses.replace(summary, path=str(run.path))


def describe(statistics: dict[str, Any], hours_by_dataset: Mapping[str, float], more: str = "") -> str:
    """A corpus and its plan in one sentence."""
    dropped = ", ".join(f"{count} {reason}" for reason, count in statistics["dropped"].items() if count)
    return (
        f"{statistics['utterances']:,} utterances, {statistics['hours']:.2f} h, "
        f"{statistics['steps']:,} steps an epoch, {statistics['padding']:.1%} padding"
        f"{more}"
        + (f"; {dataset_hours(hours_by_dataset)}" if len(hours_by_dataset) > 1 else "")
        + (f"; dropped: {dropped}" if dropped else "")
    )


def dataset_hours(hours_by_dataset: Mapping[str, float]) -> str:
    """The hours of each data set in words."""
    return ", ".join(f"{name or 'no data set'} {hours:.2f} h" for name, hours in hours_by_dataset.items())


def noted(run: RunDir) -> dict[str, object]:
    """What `environment.json` of a training says; nothing if there is none."""
    try:
        facts: object = json.loads(run.environment.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def is_pretraining(run: RunDir) -> bool:
    """Whether an experiment that has started is a pre-training."""
    return "method" in noted(run)


def note(run: RunDir, **facts: object) -> None:
    """Add facts to `environment.json`."""
    write_whole(run.environment, {**noted(run), **facts})


def write_whole(path: Path, value: Mapping[str, object]) -> None:
    """Write JSON to a file, whole or not at all."""
    write_atomically(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def save_model(
    run: RunDir, model: PreTrainedModel, weights: dict[str, torch.Tensor], rest: Callable[[Path], None]
) -> None:
    """A Hugging Face folder with these weights and what `rest` writes beside them, whole or absent."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    with atomic_folder(run.model) as draft:
        with checkpoint.as_storage_error(draft):
            model.save_pretrained(draft, state_dict=weights)
        rest(draft)
        loading.write_sums(draft)


def write_extractor(frontend: Frontend, folder: Path) -> None:
    """Write the features of a model beside it, as the feature extractor that `transformers` loads."""
    text = json.dumps(dict(frontend.extractor), indent=2) + "\n"
    (folder / "preprocessor_config.json").write_text(text, encoding="utf-8")
