"""What holds up a training, judged by measured waits alone: one judgement for its log and for `voxstill doctor`.

The order matters. On a machine with too little of a core for each process everything looks slow, decoding above all,
and more processes make it slower. So whether threads waited for a core is asked first, and only then what they did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from statistics import median

LITTLE_WAITING = 0.03
"""Share of the time that a training may wait for batches."""
SOME_WAITING = 0.1
"""The same where no part of the line is busy: less is no reason to look for another limit than the model."""
BUSY = 0.5
"""A part of the line that is busy for a smaller share of its time holds up nothing."""
CORE_WAIT = 0.15
"""Share of the time that a thread which trains may wait for a core."""
FEEDING_CORE_WAIT = 0.25
"""Share of their work that those which read and prepare batches may wait for a core."""
WORTH_A_WORKER = 0.5
"""Cores that must be free for one more process to make a training faster."""
STRAGGLER = 1.3
"""A rank is a straggler where it takes so many times as long as the others for what it does by itself."""
STRAGGLER_COST = 0.1
"""And where that is so much of a step."""


class Limit(StrEnum):
    """The part of a training that decides how fast it is."""

    MACHINE = "machine"
    STORAGE = "storage"
    DECODING = "decoding"
    TRANSFER = "transfer"
    AUGMENTATION = "augmentation"
    START_OF_WORKERS = "start of workers"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class LoaderTimes:
    """Seconds that the training waited for batches, that all workers together spent reading tars and decoding, and that
    the one thread which prepares batches spent on copying them and on their augmentation and features.

    `core_wait_s` of all these seconds the workers and that thread waited for a core.
    """

    waited_s: float = 0.0
    read_s: float = 0.0
    decode_s: float = 0.0
    prepare_s: float = 0.0
    transfer_s: float = 0.0
    core_wait_s: float = 0.0

    def __add__(self, other: LoaderTimes) -> LoaderTimes:
        return LoaderTimes(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def __sub__(self, other: LoaderTimes) -> LoaderTimes:
        return LoaderTimes(*(getattr(self, field.name) - getattr(other, field.name) for field in fields(self)))

    @property
    def work_s(self) -> float:
        """Seconds of work, and of waiting for a core to do it."""
        return self.read_s + self.decode_s + self.prepare_s + self.transfer_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Where the seconds of the steps of one rank went.

    `computing_s` and `core_wait_s` are of the thread that trains. In `own_s` it waits for no other rank: those of the
    batch, of the forward pass, and of the update after the gradients are exchanged.
    """

    steps: int = 0
    seconds: float = 0.0
    computing_s: float = 0.0
    core_wait_s: float = 0.0
    own_s: float = 0.0
    loader: LoaderTimes = LoaderTimes()

    def __add__(self, other: Waits) -> Waits:
        return Waits(
            steps=self.steps + other.steps,
            seconds=self.seconds + other.seconds,
            computing_s=self.computing_s + other.computing_s,
            core_wait_s=self.core_wait_s + other.core_wait_s,
            own_s=self.own_s + other.own_s,
            loader=self.loader + other.loader,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a training asks of its machine, and the cores that it may use there."""

    cores: float
    ranks: int = 1
    """On this machine."""
    threads: int = 1
    loader_workers: int = 1
    is_remote: bool = False
    """Whether the shards lie in a bucket."""

    @property
    def wanted(self) -> int:
        """Cores that it keeps busy where it is not held up."""
        return self.ranks * (self.threads + self.loader_workers)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What decides the speed, the figures that say so, and what to do; no `fix` where nothing is wrong."""

    limit: Limit
    reason: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.reason}; {self.fix}" if self.fix else self.reason


def judge(waits: Waits, resources: Resources) -> Verdict:
    """Name what holds up a rank; pure. The first of the machine, the data and the model that explains its waits."""
    seconds, loader = max(waits.seconds, 1e-9), waits.loader
    waited = loader.waited_s / seconds
    waiting = f"it waited {waited:.1%} of the time for batches"
    worker_s = max(resources.loader_workers, 1) * seconds
    shares = {
        Limit.STORAGE: loader.read_s / worker_s,
        Limit.DECODING: loader.decode_s / worker_s,
        Limit.TRANSFER: loader.transfer_s / seconds,
        Limit.AUGMENTATION: loader.prepare_s / seconds,
    }
    reading, preparing = shares[Limit.STORAGE] + shares[Limit.DECODING], loader.transfer_s + loader.prepare_s
    is_busy = max(reading, preparing / seconds) >= BUSY
    is_waiting = waited >= (LITTLE_WAITING if is_busy else SOME_WAITING)
    core_wait = waits.core_wait_s / seconds
    feeding = loader.core_wait_s / loader.work_s if loader.work_s else 0.0
    if core_wait >= CORE_WAIT or (is_waiting and feeding >= FEEDING_CORE_WAIT):
        return _of_machine(core_wait, feeding, waiting, resources)
    if not is_waiting:
        return Verdict(Limit.MODEL, f"the bottleneck is the model, not the data: {waiting}")
    waiting += (
        f", while a worker read {shares[Limit.STORAGE]:.0%} of the time and decoded {shares[Limit.DECODING]:.0%}, "
        f"copies took {shares[Limit.TRANSFER]:.0%}, and augmentation and features {shares[Limit.AUGMENTATION]:.0%}"
    )
    if not is_busy:
        reason = (
            f"epochs are so short that starting workers for each of them is the bottleneck of the training: {waiting}"
        )
        return Verdict(Limit.START_OF_WORKERS, reason, "set `train.loader_workers` to 0, or use more audio")
    if preparing / seconds > reading:
        limit = max(Limit.AUGMENTATION, Limit.TRANSFER, key=lambda name: shares[name])
    else:
        limit = max(Limit.STORAGE, Limit.DECODING, key=lambda name: shares[name])
    computing = waits.computing_s + loader.decode_s + loader.prepare_s + loader.transfer_s - loader.core_wait_s
    free = resources.cores - resources.ranks * computing / seconds
    return Verdict(limit, f"{limit} is the bottleneck of the training: {waiting}", _fix(limit, resources, free))


def _of_machine(core_wait: float, feeding: float, waiting: str, resources: Resources) -> Verdict:
    """The verdict where threads waited for a core: more processes would wait, too."""
    reason = (
        f"the machine is the bottleneck: the training waited {core_wait:.0%} of the time for a core, and what feeds it "
        f"{feeding:.0%} of its work; {waiting}. It keeps {resources.wanted} cores busy, and has {resources.cores:g}"
    )
    if resources.wanted <= resources.cores:
        fix = "train on another machine, or end the other programs"
        return Verdict(Limit.MACHINE, f"{reason}, which other programs use, too", fix)
    options = {
        "train.threads": resources.threads if resources.threads > 1 else 0,
        "train.devices": resources.ranks if resources.ranks > 1 else 0,
        "train.loader_workers": resources.loader_workers if resources.loader_workers > 1 else 0,
    }
    name, number = max(options.items(), key=lambda option: option[1])
    if not number:
        return Verdict(Limit.MACHINE, reason, "use a machine with more cores, or end other programs")
    return Verdict(Limit.MACHINE, reason, f"lower `{name}`, which is {number}, or end other programs")


def _fix(limit: Limit, resources: Resources, free: float) -> str:
    """What to do about a limit that is not a machine with too few cores; so many of these are `free`."""
    has_cores = free >= WORTH_A_WORKER
    workers = f"raise `train.loader_workers`, which is {resources.loader_workers}"
    if limit is Limit.STORAGE and resources.is_remote:
        return f"raise `cache.max_gb` so that whole tars are fetched ahead, set `plan.layout: remote`, or {workers}"
    if limit is Limit.STORAGE:
        return f"copy the shards to a faster disk, or {workers}"
    if limit is Limit.AUGMENTATION:
        return (
            "raise `train.threads`, or use less augmentation"
            if has_cores
            else "use less augmentation: no core is left for it"
        )
    if limit is Limit.TRANSFER:
        return "lower `plan.budget_ms`, or check what else uses the memory and the bus"
    return workers if has_cores else f"no core is left for another worker: use more cores, then {workers}"


@dataclass(frozen=True, slots=True)
class Straggler:
    """The rank that the others wait for: seconds of its own in a step, and those of the others."""

    rank: int
    own_s: float
    others_s: float
    step_s: float
    core_wait: float
    data_wait: float
    """Shares of its time."""


def straggler(waits: Mapping[int, Waits]) -> Straggler | None:
    """The rank that is much slower than the others in what it does by itself; None if there is none."""
    own_s = {rank: wait.own_s / wait.steps for rank, wait in waits.items() if wait.steps}
    if len(own_s) < 2:
        return None
    rank = max(own_s, key=lambda rank: own_s[rank])
    others_s = median(value for other, value in own_s.items() if other != rank)
    slow = waits[rank]
    step_s = slow.seconds / slow.steps
    if own_s[rank] < STRAGGLER * others_s or own_s[rank] - others_s < STRAGGLER_COST * step_s:
        return None
    return Straggler(
        rank, own_s[rank], others_s, step_s, slow.core_wait_s / slow.seconds, slow.loader.waited_s / slow.seconds
    )
