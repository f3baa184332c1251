"""The data loader: item k of the dataset is this rank's part of step k, so reading is a pure function of the plan.

Audio is read from the tars by offset and decoded off the training process. An utterance that cannot be read never
shortens an epoch: a neighbour from its batch stands in for it with weight 0. Resuming is starting at another k.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import signal
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from voxstill.audio import codec
from voxstill.core import cpu_time
from voxstill.core.errors import DataError, StorageError, VoxstillError
from voxstill.core.monitor import log
from voxstill.core.records import Batch
from voxstill.data import transfer
from voxstill.data.batching import Ints, Rows
from voxstill.data.bottleneck import LoaderTimes
from voxstill.data.plan import EpochPlan
from voxstill.data.prefetch import CacheDir, Prefetch, path_in, shard_uses
from voxstill.data.shard_index import ShardIndex
from voxstill.data.transfer import Step
from voxstill.storage.fetch import fetch
from voxstill.storage.uri import is_local, local_path

_MAX_OPEN = 256  # tars kept open by a process
_NEAR_BYTES = 64 * 1024  # ranges that are nearer to each other in a bucket are read in one request
_REQUESTS = 8  # to a bucket at a time
_PR_SET_PDEATHSIG = 1
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Make = Callable[[int, list[Batch]], Any]


class Batches(Dataset[Step]):
    """Item k is this rank's part of step k of the plan; the same bytes in give the same tensors out."""

    def __init__(
        self, corpus: ShardIndex, plan: EpochPlan, *, rank: int = 0, ranks: int = 1, cache_dir: CacheDir | None = None
    ) -> None:
        plan.batches_of(0, rank, ranks)  # raises where ranks do not divide the batches of a step
        self.corpus, self.plan, self.rank, self.ranks = corpus, plan, rank, ranks
        self.cache_dir = cache_dir if corpus.is_far else None
        self._tars = _Tars(corpus, self.cache_dir.folder if self.cache_dir else None)
        self._decoded_S: NDArray[np.int16] = np.empty(0, np.int16)
        """The samples of a step one after another, overwritten by the next: fresh memory would cost more time."""

    def __len__(self) -> int:
        return self.plan.steps

    def __getitem__(self, step: int) -> Step:
        batches = self.plan.batches_of(step, self.rank, self.ranks)
        rows = np.concatenate(batches)
        before, start = cpu_time.of_this_thread(), time.perf_counter()
        audio, unread, read_s = self._audio(rows)
        decode_s = time.perf_counter() - start - read_s
        bounds = np.cumsum([0, *map(len, batches)])
        parts = [audio[start:end] for start, end in pairwise(bounds)]
        padded = [self._batch(rows, part) for rows, part in zip(batches, parts, strict=True)]
        core_wait_s = (cpu_time.of_this_thread() - before).core_wait_s
        return Step(padded, unread, read_s, decode_s, core_wait_s)

    def _audio(self, rows: Rows) -> tuple[list[NDArray[np.int16] | None], list[str], float]:
        """Samples of each row, None if they cannot be read, a line for each of those, and the seconds of reading.

        They are read in the order of their tars, and are overwritten by the next call.
        """
        corpus = self.corpus
        order = np.lexsort((corpus.offset[rows], corpus.shard[rows]))
        in_order = rows[order]
        stored = self._tars.read(corpus.shard[in_order], corpus.offset[in_order], corpus.num_bytes[in_order])
        bounds = np.cumsum([0, *corpus.num_samples[rows].tolist()]).tolist()
        if len(self._decoded_S) < bounds[-1]:
            self._decoded_S = np.empty(bounds[-1], np.int16)
        audio: list[NDArray[np.int16] | None] = [None] * len(rows)
        unread, read_s = [], 0.0
        for i in order.tolist():
            start = time.perf_counter()
            data = next(stored)
            read_s += time.perf_counter() - start
            try:
                if isinstance(data, Exception):
                    raise data
                audio[i] = _decoded(data, self._decoded_S[bounds[i] : bounds[i + 1]], int(corpus.crc32[rows[i]]))
            except Exception as error:
                reason = error.what if isinstance(error, VoxstillError) else f"{type(error).__name__}: {error}"
                unread.append(f"{corpus.describe(int(rows[i]))}: {reason}")
        return audio, unread, read_s

    def _batch(self, rows: Rows, audio: list[NDArray[np.int16] | None]) -> Batch:
        """Collate a padded batch; utterances that could not be read are replaced by a neighbour, with weight 0.

        Where none could be read the batch is silence of the planned length.
        """
        corpus, tempo_N, crops = self.corpus, self.plan.tempo_N, self.plan.crops
        weight_B = corpus.weight[rows].copy()
        readable = [i for i, samples_T in enumerate(audio) if samples_T is not None]
        rows = rows.copy()
        for i, samples_T in enumerate(audio):
            if samples_T is None:
                weight_B[i] = 0
                if readable:
                    nearest = min(readable, key=lambda j: abs(j - i))
                    rows[i], audio[i] = rows[nearest], audio[nearest]
        start_B, audio_len_B = np.zeros(len(rows), np.int64), corpus.num_samples[rows]
        if crops is not None:
            start_B, audio_len_B = crops.start_N[rows], crops.lengths(audio_len_B)
        audio_BT = np.zeros((len(rows), audio_len_B.max()), np.int16)
        token_len_B = corpus.num_tokens[rows]
        tokens_BU = np.full((len(rows), token_len_B.max()), -1, np.int64)
        times_BU2 = np.full((*tokens_BU.shape, 2), -1, np.int64)
        for i, (row, samples_T) in enumerate(zip(rows.tolist(), audio, strict=True)):
            if samples_T is not None:
                audio_BT[i, : audio_len_B[i]] = samples_T[start_B[i] : start_B[i] + audio_len_B[i]]
            tokens_BU[i, : token_len_B[i]], times_BU2[i, : token_len_B[i]] = corpus.tokens_of(row)
        return Batch(
            ids=tuple(map(corpus.id_of, rows.tolist())),
            audio_BT=torch.from_numpy(audio_BT),
            audio_len_B=torch.from_numpy(audio_len_B),
            tokens_BU=torch.from_numpy(tokens_BU),
            token_len_B=torch.from_numpy(token_len_B),
            times_BU2=torch.from_numpy(times_BU2),
            tempo_B=torch.ones(len(rows)) if tempo_N is None else torch.from_numpy(tempo_N[rows]),
            weight_B=torch.from_numpy(weight_B),
        )


class Loader:
    """A rank's steps from `first` on, read ahead by `workers` processes; 0 reads in this one.

    Each comes as its batches, or as what `make` makes of the step's number and its batches, ahead of time in a thread.
    `spent` says what took how long, `replaced` how many utterances could not be read; each is named in the log.
    DataError if they are more than `max_unread` of the rank's epoch, or a worker dies. Workers end with the thread
    that iterates, however it ends. Tars that lie in a bucket are fetched ahead where the batches have a cache folder.
    """

    def __init__(
        self, batches: Batches, *, first: int = 0, workers: int = 1, max_unread: float = 0.01, make: Make | None = None
    ) -> None:
        self._batches, self._first, self._workers, self._make = batches, first, workers, make or _as_read
        plan = batches.plan
        self._most = max(1, int(max_unread * len(plan.order) / batches.ranks))
        self.spent = LoaderTimes()
        self.replaced = 0

    def __iter__(self) -> Iterator[Any]:
        numbers = itertools.count(self._first)
        with contextlib.ExitStack() as stack:
            cache_dir = self._batches.cache_dir
            prefetch = stack.enter_context(self._prefetch(cache_dir)) if cache_dir else None

            def prepare(step: Step) -> tuple[Any, LoaderTimes]:
                before, start = cpu_time.of_this_thread(), time.perf_counter()
                item = self._make(next(numbers), step.batches)
                core_wait_s = (cpu_time.of_this_thread() - before).core_wait_s
                return item, LoaderTimes(prepare_s=time.perf_counter() - start, core_wait_s=core_wait_s)

            ready = transfer.DevicePrefetcher(self._read_ahead(), prepare)
            steps: Iterator[tuple[Step, tuple[Any, LoaderTimes]]] = stack.enter_context(ready)
            try:
                for k in range(self._first, len(self._batches)):
                    step, (item, prepared) = self._next(steps)
                    if prefetch is not None:
                        prefetch.step_done(k)
                    self._count(step, prepared)
                    yield item
            finally:
                del steps, ready  # ends the workers now, not when an error's traceback is freed

    def _prefetch(self, cache_dir: CacheDir) -> Prefetch:
        batches, corpus = self._batches, self._batches.corpus
        needed = shard_uses(corpus, batches.plan, rank=batches.rank, ranks=batches.ranks, first=self._first)
        return Prefetch(corpus, cache_dir, needed)

    def _next(self, steps: Iterator[tuple[Step, tuple[Any, LoaderTimes]]]) -> tuple[Step, tuple[Any, LoaderTimes]]:
        start = time.perf_counter()
        try:
            return next(steps)
        # as torch raises for a worker that was killed, also while it handed over a batch
        except (RuntimeError, ConnectionError, EOFError) as error:
            raise DataError(
                "a process that reads batches has died",
                code="out-of-memory",
                why=(str(error) or type(error).__name__).splitlines()[0],
                fix="usually memory has run out: lower `train.loader_workers` or `plan.budget_ms`",
            ) from error
        finally:
            self.spent += LoaderTimes(waited_s=time.perf_counter() - start)

    def _count(self, step: Step, prepared: LoaderTimes) -> None:
        self.spent += prepared + LoaderTimes(
            read_s=step.read_s, decode_s=step.decode_s, transfer_s=step.transfer_s, core_wait_s=step.core_wait_s
        )
        self.replaced += len(step.unread)
        for line in step.unread:
            log.warning("%s is replaced by a neighbouring utterance", line)
        if self.replaced > self._most:
            raise DataError(
                f"{self.replaced} utterances could not be read, and {self._most} are allowed",
                code="audio-unreadable",
                why=f"the last one: {step.unread[-1]}",
                fix="check the storage, or run `voxstill verify` on the shards' work folder",
            )

    def _read_ahead(self) -> Iterator[Any]:
        """Start the workers; the steps that they read, packed."""
        packed: Any = transfer.pack  # of a step, where the signature wants a list
        # a client of a bucket has threads, which do not survive a fork
        context = ("spawn" if self._batches.corpus.is_far else "fork") if self._workers else None
        reader: DataLoader[Any] = DataLoader(
            self._batches,
            sampler=range(self._first, len(self._batches)),
            batch_size=None,
            collate_fn=packed,
            num_workers=self._workers,
            generator=torch.Generator(),  # without one, a seed would be drawn from the training's generator
            multiprocessing_context=context,
            worker_init_fn=functools.partial(_die_with_parent, os.getpid()) if self._workers else None,
        )
        if context == "spawn":
            resource_tracker.ensure_running()  # where it starts meanwhile, it lets signals through again
        with _ending_signals_held() if self._workers else contextlib.nullcontext():
            return iter(reader)


def _as_read(_: int, batches: list[Batch]) -> list[Batch]:
    return batches


@contextlib.contextmanager
def _ending_signals_held() -> Iterator[None]:
    """Let signals that end a program wait while workers are started, which inherit that.

    One that is sent to the whole group would end a worker that has not set them aside yet, and with it the training.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _die_with_parent(parent: int, worker: int) -> None:
    """Let this worker end when the thread that started it ends, even by SIGKILL, and by a SIGTERM of the parent alone:
    signals that others send to the whole group are left to the parent."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGHUP])
    threading.Thread(target=_end_by, args=(parent,), name="sigterm", daemon=True).start()
    if hasattr(signal, "SIGKILL") and os.uname().sysname == "Linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it had ended before the call
        os._exit(1)


def _end_by(parent: int) -> None:
    """End this process once the parent sends it SIGTERM."""
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != parent:
        pass
    os._exit(128 + signal.SIGTERM)


class _Tars:
    """Reads tars by offset: local ones, or those in `folder` by now, through open files; others by range requests."""

    def __init__(self, corpus: ShardIndex, folder: Path | None) -> None:
        self._corpus, self._folder = corpus, folder
        self._files: OrderedDict[int, int] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Tars, (self._corpus, self._folder)

    def __del__(self) -> None:
        for file in self._files.values():
            os.close(file)

    def read(self, shard_N: NDArray[np.int32], offset_N: Ints, num_bytes_N: Ints) -> Iterator[bytes | Exception]:
        """The bytes of each utterance, or the error, one after another; fastest when sorted by shard and offset.

        What lies far away is requested at once.
        """
        members = list(zip(shard_N.tolist(), offset_N.tolist(), num_bytes_N.tolist(), strict=True))
        local: Iterable[bytes | Exception | None] = itertools.starmap(self._read_local, members)
        remote: Iterator[bytes | Exception] = iter(())
        if self._corpus.is_far:
            local = list(local)
            missing = [member for member, data in zip(members, local, strict=True) if data is None]
            remote = iter(self._read_remote(missing))
        for data in local:
            yield next(remote) if data is None else data

    def _read_local(self, shard: int, offset: int, num_bytes: int) -> bytes | Exception | None:
        """None if its tar is not on this machine."""
        try:
            file = self._open(shard)
            data = None if file is None else os.pread(file, num_bytes, offset)
        except OSError as error:
            return StorageError(f"its tar cannot be read: {error.strerror}", code="audio-unreadable")
        return (
            data
            if data is None or len(data) == num_bytes
            else DataError("its tar ends before it", code="audio-unreadable")
        )

    def _open(self, shard: int) -> int | None:
        if shard not in self._files:
            uri = self._corpus.tar(shard)
            if not is_local(uri) and self._folder is None:
                return None
            path = local_path(uri) if self._folder is None or is_local(uri) else path_in(self._folder, shard)
            try:
                self._files[shard] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                if is_local(uri):
                    raise
                return None  # it is not fetched yet, or could not be
            # a fetched tar that was deleted takes space on the disk as long as it is open
            deleted = [number for number, file in self._files.items() if not os.fstat(file).st_nlink]
            for number in deleted or list(self._files)[:-_MAX_OPEN]:
                os.close(self._files.pop(number))
        self._files.move_to_end(shard)
        return self._files[shard]

    def _read_remote(self, members: list[tuple[int, int, int]]) -> list[bytes | Exception]:
        runs: list[list[tuple[int, int, int]]] = []
        for shard, offset, num_bytes in members:
            last = runs[-1][-1] if runs else None
            if last and last[0] == shard and 0 <= offset - last[1] - last[2] <= _NEAR_BYTES:
                runs[-1].append((shard, offset, num_bytes))
            else:
                runs.append([(shard, offset, num_bytes)])
        if not runs:
            return []
        with ThreadPoolExecutor(_REQUESTS) as pool:
            return [data for run in pool.map(self._read_run, runs) for data in run]

    def _read_run(self, run: list[tuple[int, int, int]]) -> list[bytes | Exception]:
        shard, start, _ = run[0]
        length = run[-1][1] + run[-1][2] - start
        try:
            data = fetch(f"{self._corpus.tar(shard)}#{start}+{length}").data
        except StorageError as error:
            return [error] * len(run)
        parts = [data[offset - start : offset - start + num_bytes] for _, offset, num_bytes in run]
        return [
            part if len(part) == num_bytes else DataError("its tar ends before it", code="audio-unreadable")
            for part, (_, _, num_bytes) in zip(parts, run, strict=True)
        ]


def _decoded(data: bytes, out: NDArray[np.int16], crc32: int) -> NDArray[np.int16]:
    """Decode a stored utterance; DataError if its bytes or its samples are not as its sidecar says.

    The samples may lie in `out`, which is as long as the sidecar says; `crc32` is -1 where it has no checksum.
    """
    if crc32 not in (-1, zlib.crc32(data)):
        raise DataError("the checksum of its audio is not that of its sidecar", code="audio-unreadable")
    samples_T = codec.decode_stored(data, out).samples_T
    if len(samples_T) != len(out):
        raise DataError(f"it has {len(samples_T)} samples and its sidecar says {len(out)}", code="audio-unreadable")
    return samples_T
