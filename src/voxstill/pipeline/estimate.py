"""estimate: memory, time, cost and disk of a training before it starts, and the largest batches that fit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from voxstill.core import memory, scratch
from voxstill.core.config import Config
from voxstill.core.monitor import clock
from voxstill.core.result import Result
from voxstill.nn import students
from voxstill.pipeline import estimate_corpus, estimate_time
from voxstill.pipeline.estimate_corpus import Corpus
from voxstill.pipeline.estimate_time import Basis, Duration
from voxstill.pipeline.pretrain import check_crop
from voxstill.storage import workdir
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.tasks import pretraining, registry
from voxstill.training import cards, fits, parallel
from voxstill.training.cards import Card
from voxstill.training.check import check
from voxstill.training.experiment import train_settings, with_defaults
from voxstill.training.fits import gib
from voxstill.training.footprint import largest_budget, states_of
from voxstill.training.setup import TrainingSetup
from voxstill.training.step_memory import Shapes

_FLAC_BYTES_PER_S = 20_000
"""Of 16 kHz speech, of which raw samples are 32,000."""
_OTHER_CHECKPOINTS = 2
"""Than the best: the last one, and the one that is being written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateResult(Result):
    """What a training takes. `basis` says of each figure whether it was measured, probed or assumed."""

    parameters: int
    memory_bytes: Mapping[str, int]
    """On each device, by part, with the largest batch."""
    total_memory_bytes: int
    memory_limit_bytes: int
    """Of the device, for its process and all that it holds; of this machine what is free, shared by its processes."""
    device: str
    precision: str
    largest_batch: Mapping[str, float]
    """Its utterances, and the seconds that they are padded to."""
    largest_budget_ms: int | None
    """None if not even a second of audio fits."""
    devices_needed: int
    """So many share the model, where one alone cannot hold it."""
    label_seconds: float | None
    train_seconds: float | None
    cost: float | None
    """Of labelling and training, where a price is given and both times are known."""
    disk_bytes: int
    disk_bytes_by_part: Mapping[str, int]
    basis: Mapping[str, Basis]
    about: Mapping[str, str] = field(default_factory=dict)
    """Where the figures come from, in words."""

    @property
    def fits(self) -> bool:
        """Whether the training fits with its batches as they are configured."""
        return self.total_memory_bytes <= fits.safe_bytes(self.memory_limit_bytes, on_gpu=self.is_of_gpu)

    @property
    def is_of_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device != THIS_MACHINE

    def to_text(self) -> str:
        """One line for each figure, with how it is known."""
        return "\n".join(_lines(self))


THIS_MACHINE = "this machine"


class _OneProcess:
    """What a task asks of Fabric, of the only process: to import Lightning takes a second."""

    global_rank, world_size, device = 0, 1, torch.device("cpu")

    def rank_zero_first(self) -> contextlib.AbstractContextManager[None]:
        """Nothing else waits."""
        return contextlib.nullcontext()


@dataclass(frozen=True, slots=True)
class _Device:
    """What is trained on: its name, its memory, and the precision there."""

    name: str
    memory_bytes: int
    precision: str
    card: Card | None


def estimate(
    cfg: Config, *, gpu: str | None = None, price: float | None = None, probe: bool = False, pretrain: bool = False
) -> EstimateResult:
    """Say what a training of this configuration takes, on a named GPU or on this machine.

    `price` is that of an hour of one GPU, or of this machine. With `probe` a minute of labelling is tried where no
    chunk has labels. Where there are no shards yet, lengths are those of the
    indexed utterances, or assumed. ConfigError if the GPU is not known, or where the training could not begin.
    """
    card = None if gpu is None else cards.find(gpu)
    check(cfg)
    if pretrain:
        check_crop(cfg)
    device = _device(cfg, card)
    with scratch.folder() as folder:
        corpus = estimate_corpus.corpus_of(cfg, str(folder / "work"), pretrain=pretrain)
        settings = pretraining.settings if pretrain else train_settings
        at = cfg.model_copy(update={"work": corpus.work})
        at = with_defaults(at, corpus.figures, settings, None, is_pretraining=pretrain)
        setup = _setup(at, corpus, RunDir(folder / "run"), pretrain=pretrain)
        no_labels = Duration(0.0, "measured", "pre-training needs no labels")
        label = no_labels if pretrain else estimate_time.label_duration(cfg, probe=probe)
        return _estimated(at, corpus, setup, device, label, price)


def _estimated(
    cfg: Config, corpus: Corpus, setup: TrainingSetup, device: _Device, label: Duration, price: float | None
) -> EstimateResult:
    plan = setup.data.plan(0, ascending=True)
    ranks = cfg.train.devices
    footprint = fits.footprint_of(setup.model, setup.task, cfg, plan, ranks, device.precision)
    shapes = Shapes.of_plan(plan)
    worst = shapes.at(footprint.worst(shapes))
    longest_ms = getattr(getattr(setup.task, "frontend", None), "max_duration_ms", None)
    lengths = fits.lengths_of(plan, cfg, longest_ms)
    on_gpu = device.name != THIS_MACHINE
    safe = fits.safe_bytes(device.memory_bytes, on_gpu=on_gpu)
    train = estimate_time.train_duration(cfg, plan, corpus.hours, setup, footprint, device.card)
    disk = _disk(cfg, corpus, setup, train)
    shapes_basis: Basis = "probed" if corpus.is_real else "assumed"
    return EstimateResult(
        parameters=students.num_parameters(setup.model),
        memory_bytes=footprint.parts(worst),
        total_memory_bytes=int(footprint.total(worst)[0]),
        memory_limit_bytes=device.memory_bytes,
        device=device.name,
        precision=device.precision,
        largest_batch={
            "utterances": int(worst.num_utterances_N[0]),
            "seconds": float(worst.duration_ms_N[0]) / 1000,
        },
        largest_budget_ms=largest_budget(footprint, lengths, safe),
        devices_needed=(fits.ranks_needed(footprint, lengths, safe) if on_gpu else None) or 1,
        label_seconds=label.seconds,
        train_seconds=train.seconds,
        cost=_cost(label, train, price, cfg),
        disk_bytes=sum(disk.values()),
        disk_bytes_by_part=disk,
        basis={
            "parameters": "measured" if corpus.is_real else "assumed",
            "memory_bytes": shapes_basis,
            "largest_budget_ms": shapes_basis,
            "label_seconds": label.basis,
            "train_seconds": train.basis,
            "cost": _weaker(label.basis, train.basis),
            "disk_bytes": "measured" if corpus.is_real else "assumed",
        },
        about={
            "corpus": corpus.about,
            "label_seconds": label.about,
            "train_seconds": train.about,
            "model": setup.about,
        },
    )


def _device(cfg: Config, card: Card | None) -> _Device:
    if card is not None:
        return _Device(card.name, card.memory_bytes, estimate_time.precision_on(card, cfg), card)
    precision = parallel.precision(cfg.train)[0]
    if torch.cuda.is_available():
        gpu = torch.device("cuda", 0)
        return _Device(torch.cuda.get_device_name(gpu), fits.device_bytes(gpu), precision, None)
    return _Device(THIS_MACHINE, memory.available_bytes() // cfg.train.devices, precision, None)


def _setup(cfg: Config, corpus: Corpus, run: RunDir, *, pretrain: bool) -> TrainingSetup:
    """The training as one process would begin it."""
    fabric: Any = _OneProcess()
    build = pretraining.build if pretrain else registry.find(cfg.student.task).build
    return build(fabric, cfg, run, Store(cfg.work), workdir.prefix(corpus.figures.kind, corpus.figures.recipe))


def _cost(label: Duration, train: Duration, price: float | None, cfg: Config) -> float | None:
    """What labelling and training cost at a price of an hour; None if one of them is not known."""
    if price is None or label.seconds is None or train.seconds is None:
        return None
    gpus = max(1, round((cfg.engine.teachers or 1) * cfg.engine.teacher_gpus))
    return price * (label.seconds * gpus + train.seconds * cfg.train.devices) / 3600


def _weaker(*bases: Basis) -> Basis:
    order: tuple[Basis, ...] = ("measured", "probed", "assumed")
    return max(bases, key=order.index)


def _disk(cfg: Config, corpus: Corpus, setup: TrainingSetup, train: Duration) -> Mapping[str, int]:
    """Bytes of the shards, of all checkpoints that are there at a time, and of the model."""
    states = states_of(setup.model, setup.task, cfg.train)
    num = cfg.train.keep_best + _OTHER_CHECKPOINTS
    if cfg.train.keep_every is not None and train.steps is not None:
        num += train.steps // cfg.train.keep_every
    shards = corpus.figures.num_bytes if corpus.is_real else round((corpus.hours or 0.0) * 3600 * _FLAC_BYTES_PER_S)
    return {
        "shards": shards,
        "checkpoints": num * (states.weights + states.optimizer + states.average),
        "model": states.weights,
    }


def _lines(result: EstimateResult) -> Iterator[str]:
    """The figures as people read them, each with its basis."""
    basis, about = result.basis, result.about

    def line(name: str, value: str, key: str, note: str = "") -> str:
        text = f"{name:<16}  {value:>14}  {basis[key]:<8}  {note}"
        return text.rstrip()

    batch = result.largest_batch
    yield line("parameters", f"{result.parameters / 1e6:.2f} M", "parameters", about.get("model", ""))
    for part, num_bytes in result.memory_bytes.items():
        yield line(f"  {part}", gib(num_bytes), "memory_bytes")
    shape = f"{batch['utterances']:,} utterances of {batch['seconds']:.1f} s, {result.precision}"
    yield line("memory", gib(result.total_memory_bytes), "memory_bytes", f"largest batch: {shape}")
    low, high = fits.process_bytes(result.total_memory_bytes, on_gpu=result.is_of_gpu)
    note = f"at least {gib(low)}, with libraries and allocator; {result.device} has {gib(result.memory_limit_bytes)}"
    yield line("process", f"up to {gib(high)}", "memory_bytes", note)
    if not result.fits:
        yield "it does not fit" + (
            f": one device cannot hold the model, {result.devices_needed} or more share it with `train.devices: "
            f"{result.devices_needed}` and `train.shard_above: 0`"
            if result.devices_needed > 1
            else ": lower `plan.budget_ms`"
        )
    largest = "none fits" if result.largest_budget_ms is None else f"{result.largest_budget_ms} ms"
    yield line("largest budget", largest, "largest_budget_ms", "largest `plan.budget_ms` that fits")
    for name in ("label", "train"):
        seconds = getattr(result, f"{name}_seconds")
        shown = "not known" if seconds is None else clock(seconds)
        yield line(f"time to {name}", shown, f"{name}_seconds", about.get(f"{name}_seconds", ""))
    if result.cost is not None:
        yield line("cost", f"{result.cost:,.2f}", "cost", "of labelling and training")
    parts = ", ".join(f"{name} {gib(num_bytes)}" for name, num_bytes in result.disk_bytes_by_part.items())
    yield line("disk", gib(result.disk_bytes), "disk_bytes", parts)
    yield f"corpus: {about['corpus']}" if "corpus" in about else ""
