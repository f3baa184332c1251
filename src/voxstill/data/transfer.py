"""A step goes from a worker to the training in one piece, made ready in a thread while the one before is learnt from.

Each tensor that a worker hands over costs a file and a handshake with a thread of the worker, which waits there for its
turn beside the decoding: up to 5 ms (the switch interval of CPython) for each of the seven of a batch.
"""

from __future__ import annotations

import contextlib
import functools
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor

from voxstill.core.records import Batch

_TENSORS = [field.name for field in fields(Batch) if field.name != "ids"]
_ALIGNED = 64  # bytes
_LOOKS_S = 0.2  # between two looks whether anybody still wants steps
_ENDS_S = 10.0  # for a worker to finish what it reads
Prepared = TypeVar("Prepared")


@dataclass(frozen=True, slots=True)
class Step:
    """A rank's batches of one step, what could not be read for it, in words, and the seconds that it took.

    `core_wait_s` of them its worker waited for a core; `transfer_s` went into the copy that a GPU takes.
    """

    batches: list[Batch]
    unread: list[str]
    read_s: float
    decode_s: float
    core_wait_s: float = 0.0
    transfer_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PackedStep:
    """A step whose tensors lie side by side in one."""

    ids: list[tuple[str, ...]]
    where: list[dict[str, tuple[int, torch.dtype, torch.Size]]]
    """Of each batch, by name: the first byte of a tensor, and what it is."""
    bytes_N: Tensor
    unread: list[str]
    read_s: float
    decode_s: float
    core_wait_s: float


def pack(step: Step) -> PackedStep:
    """The step in one piece, as `unpack` takes it apart again."""
    where, parts, end = [], list[tuple[int, Tensor]](), 0
    for batch in step.batches:
        spans = {}
        for name in _TENSORS:
            tensor = getattr(batch, name)
            spans[name] = end, tensor.dtype, tensor.shape
            parts.append((end, tensor.contiguous().view(-1).view(torch.uint8)))
            end += math.ceil(parts[-1][1].numel() / _ALIGNED) * _ALIGNED
        where.append(spans)
    bytes_N = torch.empty(end, dtype=torch.uint8)
    for start, part_N in parts:
        bytes_N[start : start + len(part_N)] = part_N
    ids = [batch.ids for batch in step.batches]
    return PackedStep(ids, where, bytes_N, step.unread, step.read_s, step.decode_s, step.core_wait_s)


def unpack(packed: PackedStep, *, pinned: bool = False) -> Step:
    """The step again, its tensors views of the one piece; `pinned` where a GPU copies them while it computes."""
    start_s = time.perf_counter()
    bytes_N = packed.bytes_N.pin_memory() if pinned else packed.bytes_N
    transfer_s = time.perf_counter() - start_s

    def tensor(start: int, dtype: torch.dtype, shape: torch.Size) -> Tensor:
        return bytes_N[start : start + shape.numel() * dtype.itemsize].view(dtype).view(shape)

    batches = [
        Batch(ids=ids, **{name: tensor(start, dtype, shape) for name, (start, dtype, shape) in where.items()})
        for ids, where in zip(packed.ids, packed.where, strict=True)
    ]
    return Step(batches, packed.unread, packed.read_s, packed.decode_s, packed.core_wait_s, transfer_s)


class DevicePrefetcher(Generic[Prepared]):
    """The steps of an iterator of packed ones, each with what `make` makes of it, while the one before is in use.

    What either raises is raised in its place. Left at the end of `with`, the thread ends with it.
    """

    def __init__(self, steps: Iterator[PackedStep], make: Callable[[Step], Prepared]) -> None:
        self._taken: queue.Queue[tuple[Step, Prepared, torch.cuda.Event | None] | Exception] = queue.Queue(1)
        self._make = make
        self._ends = threading.Event()
        self._stream: torch.cuda.Stream | None = None
        if torch.cuda.is_available():
            self._stream = _preparing_stream(torch.cuda.current_device())
            self._stream.wait_stream(torch.cuda.current_stream())
        # a daemon: a process ends though its storage does not answer
        self._thread = threading.Thread(target=self._take, args=(steps,), daemon=True, name="batches")
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(_ENDS_S)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[Step, Prepared]:
        item = self._taken.get()
        if isinstance(item, Exception):
            raise item
        step, prepared, event = item
        if event is not None:
            stream = torch.cuda.current_stream()
            stream.wait_event(event)
            for tensor in tensors_in(prepared):  # its memory is free once this stream is done with it, too
                if tensor.is_cuda:
                    tensor.record_stream(stream)
        return step, prepared

    def _take(self, steps: Iterator[PackedStep]) -> None:
        if self._stream is not None:  # a new thread begins on the first GPU, and would take memory there
            torch.cuda.set_device(self._stream.device)
        with torch.cuda.stream(self._stream):
            self._put_all(steps)

    def _put_all(self, steps: Iterator[PackedStep]) -> None:
        item: Any = None
        while not self._ends.is_set() and not isinstance(item, Exception):
            try:
                step = unpack(next(steps), pinned=self._stream is not None)
                item = step, self._make(step), self._stream.record_event() if self._stream is not None else None
            except Exception as error:  # StopIteration too, which no caller waits for
                item = error
            while not self._ends.is_set():
                with contextlib.suppress(queue.Full):
                    self._taken.put(item, timeout=_LOOKS_S)
                    break


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Copy a batch to a device; int16 audio travels, floats are made there."""
    if device.type == "cpu":
        return batch
    return Batch(ids=batch.ids, **{name: getattr(batch, name).to(device, non_blocking=True) for name in _TENSORS})


@functools.cache
def _preparing_stream(gpu: int) -> torch.cuda.Stream:
    """The stream on which steps are prepared: `.item()` there waits for the preparation alone, not for the training.

    One for all prefetchers, as each stream keeps memory of its own. It has a priority because streams come by turns
    from a pool for each priority: another could be the one that captures a graph, which would take over its work.
    """
    return torch.cuda.Stream(gpu, priority=-1)  # type: ignore[no-untyped-call]


def tensors_in(item: object) -> Iterator[Tensor]:
    """The tensors in lists, tuples, mappings and dataclasses, in one another."""
    if isinstance(item, Tensor):
        yield item
    elif is_dataclass(item):
        for field in fields(item):
            yield from tensors_in(getattr(item, field.name))
    elif isinstance(item, (list, tuple)):
        for part in item:
            yield from tensors_in(part)
    elif isinstance(item, Mapping):
        yield from tensors_in(list(item.values()))
