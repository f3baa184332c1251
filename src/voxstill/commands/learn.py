"""train: shards become a student in an experiment folder; the same command again goes on where it stopped."""

from __future__ import annotations

import datetime
import functools
import json
import logging
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import voxstill
from voxstill import config, legacy, workdir, world
from voxstill import shards as sidecars
from voxstill.commands import upload
from voxstill.commands.prepare import finished_shards
from voxstill.config import Config, Decode, Student
from voxstill.errors import ConfigError, DataError, Interrupted
from voxstill.monitor import log, start_logging
from voxstill.nn import freezing, students
from voxstill.nn.freezing import Frozen
from voxstill.nn.hearing import Hearing
from voxstill.nn.waves import Sounds
from voxstill.records import fingerprint
from voxstill.rundir import RunDir
from voxstill.store import Store, shown
from voxstill.tasks.ctc import CtcTask
from voxstill.tasks.seq2seq import Seq2SeqTask
from voxstill.tasks.task import Task
from voxstill.tasks.transducer import TransducerTask
from voxstill.text import tokenizer
from voxstill.text.normalize import normalizer
from voxstill.text.pretrained import Pretrained
from voxstill.text.tokenizer import Spelling, Vocabulary
from voxstill.train import checkpoint, loop, parallel, sounds
from voxstill.train.data import Corpus

TASKS: dict[students.Kind, Any] = {
    "ctc": CtcTask,
    "rnnt": TransducerTask,
    "tdt": TransducerTask,
    "seq2seq": Seq2SeqTask,
}
_MANY_TO_A_FRAME_MS = 40  # CTC needs a frame for each piece, and people say up to 15 characters a second
PACKAGES = ("torch", "transformers", "lightning-fabric", "numpy", "pyarrow", "ray", "pocketsphinx", "soundfile", "av")


@dataclass(frozen=True, slots=True)
class Lesson:
    """What is learnt, from what, and what is left of it: all that the loop and its folder need to know."""

    model: Any
    task: Task
    corpus: Corpus
    about: str
    """What begins, in words."""
    notes: Mapping[str, Any]
    """For `environment.json`."""
    error: str
    """What the summary calls the least error on the dev split."""
    save: Callable[[RunDir, dict[str, torch.Tensor]], None]
    """Writes what is handed over, given all weights."""
    frozen: Frozen = field(default_factory=Frozen)
    """What stays as it is, for good or for a while."""


Teach = Callable[[Any, Config, RunDir, Store, str], Lesson]
"""Makes a lesson on this rank of a fabric: configuration, experiment folder, work and the prefix of its shards."""


def train(cfg: Config) -> dict[str, Any]:
    """A student trained on the kept labels, or on what the manifest says: its folder, steps, seconds and loss.

    In a process that was started as one of several, these are empty but for the first.
    """
    check(cfg)
    if cfg.student.task == "recognition":
        return learn(cfg, finished_shards, recognition, train_settings(cfg))
    from voxstill.commands import classify  # it builds on this page

    return learn(cfg, classify.shards_of, classify.lesson, train_settings(cfg))


def learn(
    cfg: Config, shards_of: Callable[[Config], dict[str, Any]], teach: Teach, settings: dict[str, Any]
) -> dict[str, Any]:
    """A lesson in an experiment folder of its own, from its beginning or from where it was stopped: its figures.

    `settings` are those that change what is learnt. What is left of it is brought to `train.upload`.
    """
    figures = _learnt(cfg, shards_of, teach, settings)
    if figures and cfg.train.upload:
        upload.upload(RunDir(Path(figures["path"])), cfg.train.upload)
    return figures


def _learnt(
    cfg: Config, shards_of: Callable[[Config], dict[str, Any]], teach: Teach, settings: dict[str, Any]
) -> dict[str, Any]:
    ranks = world.ranks()
    cfg = parallel.among(ranks, cfg) if ranks else cfg
    shards = shards_of(cfg)
    if ranks:
        return _as_one_of(ranks, cfg, shards, teach, settings)
    run = open_run(cfg, shards, settings)
    done = summary(run)
    if done is not None:
        log.info("train: nothing to do, %s is finished", run.path)
        return done
    if cfg.train.launcher == "ray":
        from voxstill.train import cluster  # Ray is not where one machine trains

        run = RunDir(run.path.absolute())
        cluster.train(functools.partial(_on_ray, cfg, run, shards, teach, Path.cwd()), cfg.train.devices, cfg.engine)
        return summary(run) or _stopped(run)
    fabric = parallel.fabric(cfg.train)
    # bound, not passed: Fabric looks into the arguments of what it launches and refuses frozen dataclasses
    with parallel.ranks_told(run, cfg.train.devices):
        figures = fabric.launch(functools.partial(train_rank, cfg=cfg, run=run, shards=shards, teach=teach))
    return figures or summary(run) or _stopped(run)


def _as_one_of(
    ranks: world.Ranks, cfg: Config, shards: dict[str, Any], teach: Teach, settings: dict[str, Any]
) -> dict[str, Any]:
    """This process as one of those that torchrun, srun or Ray has started; rank 0 opens the folder for all."""
    fabric = parallel.fabric(cfg.train, ranks)
    fabric.launch()
    run = RunDir(parallel.of_first(fabric, lambda: open_run(cfg, shards, settings).path))
    _must_see(run)
    if parallel.of_first(fabric, lambda: summary(run)) is None:
        _train_rank(fabric, cfg, run, shards, teach)
    figures = parallel.of_first(fabric, lambda: summary(run) or _stopped(run))
    return figures if ranks.rank == 0 else {}


def _on_ray(cfg: Config, run: RunDir, shards: dict[str, Any], teach: Teach, where: Path) -> None:
    """This worker of Ray as a rank of the training; it was begun `where`, and relative paths are meant from there."""
    _must_see(run)
    if where.is_dir():
        os.chdir(where)
    ranks = world.ranks()
    fabric = parallel.fabric(cfg.train.model_copy(update={"devices": ranks.num_here if ranks else 1}), ranks)
    fabric.launch()
    _train_rank(fabric, cfg, run, shards, teach)


def _must_see(run: RunDir) -> None:
    if not run.path.is_dir():
        raise ConfigError(
            f"`{run.path}` is not there on {platform.node()}",
            why="all machines of a training write into one experiment folder",
            fix="set `train.root` to a folder that all of them see; `work` must be seen by all, too",
        )


def _stopped(run: RunDir) -> dict[str, Any]:
    step = json.loads((run.last / "state.json").read_text())["step"]
    raise Interrupted(
        f"training was stopped at step {step:,}",
        why="a signal asked for it; the checkpoint of that step is whole",
        fix="the same command goes on from there",
    )


def check(cfg: Config) -> None:
    """ConfigError where the training would have no end, cannot be what `seed_mode` promises, or could not be judged.

    StorageError where nothing can be brought to `train.upload`; where `decode.lm` is no language model, the error is
    that of `lm.check`.
    """
    if cfg.train.upload:
        upload.check(cfg.train.upload)
    limits = (cfg.train.steps, cfg.train.epochs, cfg.train.max_minutes)
    if all(limit is None for limit in limits):
        raise ConfigError(
            "the training has no end",
            why="none of `train.steps`, `train.epochs` and `train.max_minutes` is set",
            fix="set one of them",
        )
    for option, needs in (("units", cfg.student.units == "checkpoint"), ("kind", cfg.student.kind == "seq2seq")):
        if needs and cfg.student.checkpoint is None:
            raise ConfigError(
                f"`student.{option}: {getattr(cfg.student, option)}` has no checkpoint to start from",
                why="`student.checkpoint` is not set",
                fix=f"set it, or another `student.{option}`",
            )
    if cfg.student.freeze_layers and cfg.student.checkpoint is None:
        raise ConfigError(
            f"`student.freeze_layers: {cfg.student.freeze_layers:g}` has no checkpoint to keep",
            why="the layers of a new student have learnt nothing, and would never",
            fix="set `student.checkpoint`, or `student.freeze_layers: 0`, also beside `train.preset`",
        )
    if cfg.train.unfreeze_share and not cfg.student.freeze_layers:
        raise ConfigError(
            f"`train.unfreeze_share: {cfg.train.unfreeze_share:g}` has nothing to unfreeze",
            why="`student.freeze_layers` is 0: no layer is frozen",
            fix="set `student.freeze_layers` to a share of the layers, or leave `train.unfreeze_share` out",
        )
    helped = {"the section `decode`": cfg.decode != Decode(), "`evaluate.lm_order`": cfg.evaluate.lm_order is not None}
    for name in (each for each, is_set in helped.items() if is_set and cfg.student.kind == "seq2seq"):
        raise ConfigError(
            f"{name} has no use", why="a `seq2seq` student writes its texts by itself", fix="leave it out"
        )
    if cfg.decode.lm is not None:
        from voxstill.text import lm  # compiled code: training does without

        lm.check(cfg.decode.lm)  # what is judged last would tell it last
    if cfg.train.seed_mode == "debug" and cfg.train.max_minutes is not None:
        raise ConfigError(
            "`train.seed_mode: debug` cannot follow a clock",
            why="`train.max_minutes` makes the schedule depend on the speed of the machine",
            fix="set `train.steps` or `train.epochs` instead of `train.max_minutes`",
        )
    ranks = world.ranks()
    cfg, num = (parallel.among(ranks, cfg), ranks.num) if ranks else (cfg, cfg.train.devices)
    if cfg.plan.batches_per_step % num:
        told = "`train.devices` is" if ranks is None else f"{ranks.by} has started"
        raise ConfigError(
            f"`plan.batches_per_step` is {cfg.plan.batches_per_step} and {told} {num}",
            why="the batches of a step are shared out evenly between the devices",
            fix=f"set `plan.batches_per_step` to a multiple of {num}",
        )


def train_rank(
    fabric: Any, cfg: Config, run: RunDir, shards: dict[str, Any], teach: Teach | None = None
) -> dict[str, Any] | None:
    """One process of the training, of a student where nothing else is taught; rank 0 writes what is handed over. None
    where a signal has stopped it."""
    with parallel.errors_kept(run, fabric):
        return _train_rank(fabric, cfg, run, shards, teach or recognition)


def _train_rank(fabric: Any, cfg: Config, run: RunDir, shards: dict[str, Any], teach: Teach) -> dict[str, Any] | None:
    if not log.handlers or fabric.global_rank > 0:  # a process of its own; one of them tells what all do
        start_logging("info" if fabric.global_rank == 0 else "warning")
    world.pin_threads(cfg.train.threads)
    world.keep_memory()
    torch.set_num_threads(cfg.train.threads)
    torch.use_deterministic_algorithms(cfg.train.seed_mode == "debug", warn_only=True)
    first = fabric.global_rank == 0
    handler = _log_to(run.log) if first else None
    try:
        lesson = teach(fabric, cfg, run, Store(cfg.work), workdir.prefix("shards", shards["recipe"]))
        model, corpus = lesson.model, lesson.corpus
        plan = corpus.plan(0, ascending=True)
        log.info(
            "train: %s of %.2f million parameters; precision %s, because %s",
            lesson.about,
            students.num_parameters(model) / 1e6,
            *parallel.precision(cfg.train),
        )
        if first:
            _note(run, plan_hash=plan.sha256(), precision=parallel.precision(cfg.train)[0], **lesson.notes)
        steps = [n for n in (cfg.train.steps, cfg.train.epochs and cfg.train.epochs * plan.steps) if n]
        minutes = cfg.train.max_minutes
        budget = loop.Budget(min(steps) if steps else None, minutes * 60 if minutes else None, cfg.train.patience)
        start = time.perf_counter()
        state = loop.train(fabric, model, lesson.task, corpus, cfg, run, budget, lesson.frozen)
        log.info("train: %s", corpus.limit(time.perf_counter() - start))
        if state is None:
            return None
        corpus.finish()
        figures = {
            "path": str(run.path),
            "steps": state.step,
            "epochs": state.epoch,
            "seconds": state.seconds,
            "loss": state.loss,
            lesson.error: state.best_error,
            "parameters": students.num_parameters(model),
            "skipped": state.skipped,
            "replaced": state.replaced,
            "utterances": plan.statistics()["utterances"],
            "dropped": dict(plan.dropped),
        }
        weights = checkpoint.whole_weights(model)
        if first:
            lesson.save(run, weights)
            _write_whole(run.summary, figures)
            shutil.rmtree(run.corpus, ignore_errors=True)
        return figures
    finally:
        if handler is not None:
            log.removeHandler(handler)
            handler.close()


def recognition(fabric: Any, cfg: Config, run: RunDir, store: Store, prefix: str) -> Lesson:
    """A student that learns what the labels say."""
    alike: Callable[[str], str] = normalizer(cfg.student.text)
    with fabric.rank_zero_first():  # which makes vocabulary and index, for the others to open
        hearing = hearing_of(cfg, sounds.load(cfg.augment))
        vocabulary = vocabulary_of(run, Corpus.texts(store, prefix, "train", alike), cfg, hearing)
        corpus = Corpus(
            *(store, prefix, run.corpus, vocabulary, alike, hearing, cfg),
            rank=fabric.global_rank,
            ranks=fabric.world_size,
        )
    spelt = f", {len(vocabulary.pieces)} {vocabulary.unit}s"
    log.info("train: %s", describe(corpus.plan(0, ascending=True).statistics(), spelt))
    model = new_student(cfg, vocabulary)

    def save(run: RunDir, weights: dict[str, torch.Tensor]) -> None:
        save_student(run, model, vocabulary, hearing, weights)

    return Lesson(
        model,
        TASKS[cfg.student.kind](vocabulary, cfg.train, cfg.augment, hearing),
        corpus,
        f"`{cfg.student.checkpoint}` as a student" if cfg.student.checkpoint else f"{cfg.student.size} student",
        notes={"vocabulary": len(vocabulary.pieces)},
        error="dev_wer",
        save=save,
        frozen=freezing.freeze(model, cfg.student.freeze_layers, cfg.train.unfreeze_share),
    )


def hearing_of(cfg: Config, found: Sounds | None) -> Hearing:
    """How the student hears, from its checkpoint where it has one."""
    checkpoint = cfg.student.checkpoint
    return students.hearing(students.described(checkpoint) if checkpoint else None, cfg.augment, found, checkpoint)


def new_student(cfg: Config, vocabulary: Spelling) -> Any:
    """The student before its first step."""
    student, num_pieces = cfg.student, len(vocabulary.pieces)
    wanted: dict[str, Any] = {"seed": cfg.seed, "kind": student.kind}
    if student.checkpoint is None:
        return students.build(student.size, num_pieces, dropout=student.dropout or 0.0, **wanted)
    try:
        same_pieces = Vocabulary.load(Path(student.checkpoint)) == vocabulary
    except DataError:
        same_pieces = student.units == "checkpoint"
    wanted |= {"same_pieces": same_pieces, "dropout": student.dropout, "frozen": student.freeze_features}
    return students.from_checkpoint(student.checkpoint, num_pieces, **wanted)


def new_vocabulary(texts: Iterable[str], student: Student, hearing: Hearing) -> Vocabulary:
    """What the student spells with: made of the texts, or taken from its checkpoint, and then no text is read."""
    if student.units == "checkpoint":
        return tokenizer.of_checkpoint(student.checkpoint or "")
    otherwise: Any = "character" if hearing.frame_ms < _MANY_TO_A_FRAME_MS else "bpe"
    wanted: dict[str, Any] = {"bpe_pieces": student.bpe_pieces, "otherwise": otherwise}
    return tokenizer.train(texts, student.units, student.max_words, **wanted)


def vocabulary_of(run: RunDir, texts: Iterable[str], cfg: Config, hearing: Hearing) -> Spelling:
    """The vocabulary of the texts; what another start of this training made is taken, and no text is read."""
    if cfg.student.kind == "seq2seq":
        checkpoint = cfg.student.checkpoint or ""
        return Pretrained(checkpoint, cfg.student.language, students.described(checkpoint).vocab_size)
    path = run.corpus / "vocabulary.json"
    if path.exists():
        found = json.loads(path.read_text())
        return Vocabulary(found["unit"], tuple(found["pieces"]), tuple(map(tuple, found["merges"])))
    made = new_vocabulary(texts, cfg.student, hearing)
    run.corpus.mkdir(parents=True, exist_ok=True)
    _write_whole(path, {"unit": made.unit, "pieces": made.pieces, "merges": made.merges})
    return made


def save_student(
    run: RunDir, model: Any, vocabulary: Spelling, hearing: Hearing, weights: dict[str, torch.Tensor]
) -> None:
    """The Hugging Face folder of the student, whole or absent."""

    def rest(folder: Path) -> None:
        vocabulary.save(folder, hearing.extractor, students.kind_of(model))

    save_model(run, model, weights, rest)


def save_model(run: RunDir, model: Any, weights: dict[str, torch.Tensor], rest: Callable[[Path], None]) -> None:
    """A Hugging Face folder with these weights and what `rest` writes beside them, whole or absent."""
    from transformers.utils import logging as transformers_logging

    draft = run.model.with_name(".model.draft")
    shutil.rmtree(draft, ignore_errors=True)
    transformers_logging.disable_progress_bar()
    with checkpoint.told_as_storage(draft):
        model.save_pretrained(draft, state_dict=weights)
    rest(draft)
    shutil.rmtree(run.model, ignore_errors=True)
    draft.rename(run.model)


def open_run(cfg: Config, shards: dict[str, Any], settings: dict[str, Any]) -> RunDir:
    """The experiment folder of these settings on these shards: the one that is there, or a new one."""
    recipe = fingerprint("train", settings, shards["recipe"])
    former = legacy.experiment(cfg, settings, shards["recipe"])
    root = Path(cfg.train.root)
    experiments = [RunDir(path) for path in sorted(root.glob(f"*_{cfg.train.name}"), reverse=True)]
    for name in filter(None, (recipe, former)):
        for run in experiments:
            if noted(run).get("recipe") == name:
                if name == former:
                    log.info("train: version 0.1 began `%s`: it goes on, and is not trained again", run.path)
                return run
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d_%H-%M-%S")
    run, number = RunDir(root / f"{stamp}_{cfg.train.name}"), 1
    while run.path.exists():
        number += 1
        run = RunDir(root / f"{stamp}-{number}_{cfg.train.name}")
    run.path.mkdir(parents=True)
    run.config.write_text(snapshot(cfg), encoding="utf-8")
    run.config.chmod(0o444)
    shutil.copytree(
        Path(voxstill.__file__).parent, run.source / "voxstill", ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
    )
    version = sidecars.version(Store(cfg.work), workdir.prefix("shards", shards["recipe"]))
    data = {**shards, "sidecars_sha256": version}
    _note(run, recipe=recipe, data=data, versions=versions(), machine=machine())
    return run


def snapshot(cfg: Config) -> str:
    """The configuration as YAML that may be shown to anybody: addresses without what signs or opens them."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(each) for name, each in value.items()}
        if isinstance(value, list):
            return [plain(each) for each in value]
        return shown(value) if isinstance(value, str) else value

    return config.dump(Config.model_validate(plain(cfg.model_dump())))


def train_settings(cfg: Config) -> dict[str, Any]:
    """What decides what is learnt: the seed and the identity of each section."""
    return {
        "seed": cfg.seed,
        "student": {**config.identity(cfg.student), "weights": students.digest(cfg.student.checkpoint)},
        "plan": config.identity(cfg.plan),
        "augment": config.identity(cfg.augment),
        "train": config.identity(cfg.train),
    }


def summary(run: RunDir) -> dict[str, Any] | None:
    """Figures of a finished training; None where it has not ended."""
    if not run.summary.is_file() or not run.model.is_dir():
        return None
    figures: dict[str, Any] = json.loads(run.summary.read_text(encoding="utf-8"))
    return figures


def versions() -> dict[str, str]:
    """Versions of Python, voxstill and the packages that decide what a run computes."""
    found = {"python": platform.python_version(), "voxstill": voxstill.__version__}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """What the run has to work with."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"system": platform.system(), "processor": platform.machine(), "cores": world.num_cores(), "gpus": gpus}


def describe(statistics: dict[str, Any], more: str = "") -> str:
    """A corpus and its plan in one sentence."""
    dropped = ", ".join(f"{count} {reason}" for reason, count in statistics["dropped"].items() if count)
    return (
        f"{statistics['utterances']:,} utterances, {statistics['hours']:.2f} h, "
        f"{statistics['steps']:,} steps an epoch, {statistics['padding']:.1%} padding"
        f"{more}" + (f"; dropped: {dropped}" if dropped else "")
    )


def noted(run: RunDir) -> dict[str, Any]:
    """What `environment.json` of a training says; nothing where there is none."""
    try:
        found: dict[str, Any] = json.loads(run.environment.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def _note(run: RunDir, **facts: Any) -> None:
    _write_whole(run.environment, {**noted(run), **facts})


def _write_whole(path: Path, value: dict[str, Any]) -> None:
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    draft.replace(path)


def _log_to(path: Path) -> logging.Handler:
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    log.addHandler(handler)
    return handler
