"""Item k of the dataset is everything this rank needs for step k: reading is a function of the plan, without chance.

The index is held as columns (a million utterances are a few arrays, shared with the workers), audio is read from the
tars by offset and decoded off the training process. An utterance that cannot be read never shortens an epoch: a
neighbour from its batch stands in for it with weight 0. Resuming is starting at another k.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from voxstill import shards
from voxstill.audio import codec
from voxstill.batches.plan import EpochPlan, Ints, Times, mixture
from voxstill.config import Plan
from voxstill.errors import ConfigError, DataError, StorageError, VoxstillError
from voxstill.monitor import log
from voxstill.records import Batch, Word
from voxstill.store import Store, is_local, local_path

Encode = Callable[[str, Sequence[Word]], tuple[Sequence[int], Sequence[tuple[int, int]]]]
"""Token ids of a text and start and end of each in milliseconds, (-1, -1) where the words have no times."""
_MAX_OPEN = 256  # tars kept open by a process
_NEAR_BYTES = 64 * 1024  # what lies nearer together in a bucket is read in one request
_REQUESTS = 8  # to a bucket at a time
_PR_SET_PDEATHSIG = 1


class Corpus:
    """The index of some shards as columns, with texts as tokens; row numbers are those of the plan.

    `encode` is called once for each row, here; None where no texts are learnt. `index` comes from `shards.read_index`.
    """

    def __init__(self, store: Store, prefix: str, index: Any, encode: Encode | None) -> None:
        self.store, self.prefix = store, prefix
        self.ids = index["id"].combine_chunks()
        self.shard = _column(index, "shard", np.int32)
        self.offset = _column(index, "offset", np.int64)
        self.num_bytes = _column(index, "num_bytes", np.int64)
        self.num_samples = _column(index, "num_samples", np.int64)
        self.durations_ms = _column(index, "duration_ms", np.int64)
        self.weight = _column(index, "weight", np.float32)
        self.tokens, self.times, self.token_bounds = _tokens(index, encode)

    def __len__(self) -> int:
        return len(self.durations_ms)

    @property
    def num_tokens(self) -> Ints:
        """Tokens of each row."""
        num_tokens: Ints = np.diff(self.token_bounds)
        return num_tokens

    @property
    def repeats(self) -> Ints:
        """Tokens of each row that equal the one before: CTC needs a frame more for each."""
        same = np.zeros(len(self.tokens) + 1, np.int64)
        same[1:-1] = self.tokens[1:] == self.tokens[:-1]  # same[i]: token i equals token i - 1
        same[self.token_bounds] = 0  # the first of a row has none before it
        before: Ints = np.concatenate([[0], np.cumsum(same)])
        return before[self.token_bounds[1:]] - before[self.token_bounds[:-1]]

    def tokens_of(self, row: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Token ids of a row and their times: (U,) and (U, 2)."""
        span = slice(self.token_bounds[row], self.token_bounds[row + 1])
        return self.tokens[span], self.times[span]

    def describe(self, row: int) -> str:
        """Where a row lies, for messages."""
        key = f"{self.prefix}/{shards.tar_name(int(self.shard[row]))}"
        return f"utterance `{self.ids[int(row)].as_py()}` in `{self.store.uri(key)}`"


def times(index: Any, cfg: Plan) -> Times | None:
    """How often each row of an index comes in an epoch, by its data set and its dialect; None where all come once.

    ConfigError where some data sets have a weight and others have none, or where nothing has a dialect that is named.
    """
    if not cfg.weights and cfg.temperature == 1 and not cfg.dialect_times:
        return None
    names, group_N = _groups(index, "dataset")
    weights_G = _by_name("plan.weights", names, cfg.weights, None) if cfg.weights else None
    hours_G = np.bincount(group_N, _column(index, "duration_ms", np.float64), len(names)) / 3_600_000
    of_dataset_G = mixture(np.maximum(hours_G, 1e-9), weights_G, cfg.temperature)
    dialects, dialect_N = _groups(index, "dialect")
    of_dialect_G = _by_name("plan.dialect_times", dialects, cfg.dialect_times, 1.0)
    return of_dataset_G[group_N] * of_dialect_G[dialect_N]


def _groups(index: Any, name: str) -> tuple[list[str], NDArray[np.int64]]:
    """The values of a column, an empty one where there is none, and which of them each row has."""
    coded = index[name].combine_chunks().fill_null("").dictionary_encode()
    return coded.dictionary.to_pylist(), np.asarray(coded.indices, np.int64)


def _by_name(option: str, names: Sequence[str], given: Mapping[str, float], otherwise: float | None) -> Times:
    """The number that is given for each name; ConfigError for a name that nothing has or that has no number."""
    unknown = sorted(set(given) - set(names))
    missing = sorted(set(names) - set(given)) if otherwise is None else []
    if unknown or missing:
        found = ", ".join(f"`{name}`" if name else "no name" for name in sorted(names))
        raise ConfigError(
            f"`{option}` names `{unknown[0]}`" if unknown else f"`{option}` has no number for `{missing[0]}`",
            why=f"in the shards there are: {found}",
            fix="name those of the shards, each of them" if otherwise is None else "name some of those",
        )
    return np.array([given.get(name, otherwise) for name in names], np.float64)


@dataclass(frozen=True, slots=True)
class Step:
    """A rank's batches of one step, and what could not be read for it, in words."""

    batches: list[Batch]
    unread: list[str]


class Batches(Dataset[Step]):
    """Item k is this rank's part of step k of the plan; the same bytes in give the same tensors out."""

    def __init__(self, corpus: Corpus, plan: EpochPlan, *, rank: int = 0, ranks: int = 1) -> None:
        plan.batches_of(0, rank, ranks)  # refuses ranks that do not divide the slots
        self.corpus, self.plan, self.rank, self.ranks = corpus, plan, rank, ranks
        self._tars = _Tars(corpus.store, corpus.prefix)

    def __len__(self) -> int:
        return self.plan.steps

    def __getitem__(self, step: int) -> Step:
        batches = self.plan.batches_of(step, self.rank, self.ranks)
        rows = np.concatenate(batches)
        audio, unread = self._audio(rows)
        bounds = np.cumsum([0, *map(len, batches)])
        parts = [audio[start:end] for start, end in pairwise(bounds)]
        return Step([self._batch(rows, part) for rows, part in zip(batches, parts, strict=True)], unread)

    def _audio(self, rows: Ints) -> tuple[list[NDArray[np.int16] | None], list[str]]:
        """Samples of each row, None where they cannot be read, and a line for each of those."""
        corpus = self.corpus
        order = np.lexsort((corpus.offset[rows], corpus.shard[rows]))  # a disk and a bucket like it in order
        sorted_rows = rows[order]
        stored = self._tars.read(corpus.shard[sorted_rows], corpus.offset[sorted_rows], corpus.num_bytes[sorted_rows])
        audio: list[NDArray[np.int16] | None] = [None] * len(rows)
        unread = []
        for i, row, data in zip(order, sorted_rows, stored, strict=True):
            try:
                if isinstance(data, Exception):
                    raise data
                audio[i] = _decoded(data, int(corpus.num_samples[row]))
            except Exception as error:
                reason = error.what if isinstance(error, VoxstillError) else f"{type(error).__name__}: {error}"
                unread.append(f"{corpus.describe(row)}: {reason}")
        return audio, unread

    def _batch(self, rows: Ints, audio: list[NDArray[np.int16] | None]) -> Batch:
        """One padded batch. Where nothing of it could be read it is silence of the planned length, of weight 0."""
        corpus = self.corpus
        weight_B = corpus.weight[rows].copy()
        heard = [i for i, samples_T in enumerate(audio) if samples_T is not None]
        rows = rows.copy()
        for i, samples_T in enumerate(audio):
            if samples_T is None:
                weight_B[i] = 0
                if heard:
                    nearest = min(heard, key=lambda j: abs(j - i))
                    rows[i], audio[i] = rows[nearest], audio[nearest]
        audio_len_B = corpus.num_samples[rows]
        audio_BT = np.zeros((len(rows), audio_len_B.max()), np.int16)
        token_len_B = corpus.token_bounds[rows + 1] - corpus.token_bounds[rows]
        tokens_BU = np.full((len(rows), token_len_B.max()), -1, np.int64)
        times_BU2 = np.full((*tokens_BU.shape, 2), -1, np.int64)
        for i, (row, samples_T) in enumerate(zip(rows, audio, strict=True)):
            if samples_T is not None:
                audio_BT[i, : len(samples_T)] = samples_T
            tokens_BU[i, : token_len_B[i]], times_BU2[i, : token_len_B[i]] = corpus.tokens_of(row)
        return Batch(
            ids=tuple(corpus.ids[int(row)].as_py() for row in rows),
            audio_BT=torch.from_numpy(audio_BT),
            audio_len_B=torch.from_numpy(audio_len_B),
            tokens_BU=torch.from_numpy(tokens_BU),
            token_len_B=torch.from_numpy(token_len_B),
            times_BU2=torch.from_numpy(times_BU2),
            weight_B=torch.from_numpy(weight_B),
        )


class Loader:
    """A rank's steps from `first` on, read ahead by `workers` processes; 0 reads in this one.

    `waited_s` is how long the consumer waited for data, `replaced` how many utterances could not be read; each is
    named in the log. DataError where they are more than `max_unread` of the rank's epoch, or a worker dies. Workers
    end with the thread that iterates, however it ends.
    """

    def __init__(self, batches: Batches, *, first: int = 0, workers: int = 1, max_unread: float = 0.01) -> None:
        self._batches, self._first, self._workers = batches, first, workers
        plan = batches.plan
        self._most = max(1, int(max_unread * len(plan.order) / batches.ranks))
        self.waited_s = 0.0
        self.replaced = 0

    def __iter__(self) -> Iterator[list[Batch]]:
        steps = iter(self._reader())
        try:
            while (step := self._next(steps)) is not None:
                self._count(step.unread)
                yield step.batches
        finally:
            del steps  # ends the workers now: what an error's traceback keeps alive would end them late

    def _next(self, steps: Iterator[Step]) -> Step | None:
        start = time.perf_counter()
        try:
            return next(steps, None)
        # what torch says of a worker that was killed, or of one that was killed while it handed over a batch
        except (RuntimeError, ConnectionError, EOFError) as error:
            raise DataError(
                "a process that reads batches has died",
                why=(str(error) or type(error).__name__).splitlines()[0],
                fix="most often memory has run out: lower `train.loader_workers` or `plan.budget_ms`",
            ) from error
        finally:
            self.waited_s += time.perf_counter() - start

    def _count(self, unread: Sequence[str]) -> None:
        self.replaced += len(unread)
        for line in unread:
            log.warning("a neighbour stands in for %s", line)
        if self.replaced > self._most:
            raise DataError(
                f"{self.replaced} utterances could not be read, and {self._most} are allowed",
                why=f"the last one: {unread[-1]}",
                fix="check the storage, or run `voxstill shard` again",
            )

    def _reader(self) -> DataLoader[Step]:
        remote = not is_local(self._batches.corpus.store.root)
        return DataLoader(
            self._batches,
            sampler=range(self._first, len(self._batches)),
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=self._workers,
            generator=torch.Generator(),  # else an unused seed would be drawn from the training's
            # a client of a bucket has threads, which do not survive a fork
            multiprocessing_context=("spawn" if remote else "fork") if self._workers else None,
            worker_init_fn=functools.partial(_die_with_parent, os.getpid()) if self._workers else None,
        )


def _die_with_parent(parent: int, worker: int) -> None:
    """From now on this worker ends when the thread that started it ends, even by SIGKILL. Ctrl-C is the parent's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGKILL") and os.uname().sysname == "Linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def _as_it_is(step: Any) -> Any:
    return step


class _Tars:
    """Bytes of tars by offset: local ones through files kept open, remote ones by a few requests at a time."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self._prefix = store, prefix
        self._files: OrderedDict[int, int] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Tars, (self._store, self._prefix)

    def __del__(self) -> None:
        for file in self._files.values():
            os.close(file)

    def read(self, shard_N: NDArray[np.int32], offset_N: Ints, num_bytes_N: Ints) -> list[bytes | Exception]:
        """The bytes of each, or why they cannot be read. Best sorted by shard and offset."""
        members = list(zip(shard_N.tolist(), offset_N.tolist(), num_bytes_N.tolist(), strict=True))
        if is_local(self._store.root):
            return [self._read_local(*each) for each in members]
        runs: list[list[tuple[int, int, int]]] = []
        for shard, offset, num_bytes in members:
            last = runs[-1][-1] if runs else None
            if last and last[0] == shard and 0 <= offset - last[1] - last[2] <= _NEAR_BYTES:
                runs[-1].append((shard, offset, num_bytes))
            else:
                runs.append([(shard, offset, num_bytes)])
        with ThreadPoolExecutor(_REQUESTS) as pool:
            return [each for run in pool.map(self._read_remote, runs) for each in run]

    def _read_local(self, shard: int, offset: int, num_bytes: int) -> bytes | Exception:
        try:
            data = os.pread(self._open(shard), num_bytes, offset)
        except OSError as error:
            return StorageError(f"its tar cannot be read: {error.strerror}")
        return data if len(data) == num_bytes else DataError("its tar ends before it")

    def _open(self, shard: int) -> int:
        if shard not in self._files:
            path = local_path(self._store.root) / self._prefix / shards.tar_name(shard)
            self._files[shard] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if len(self._files) > _MAX_OPEN:
                os.close(self._files.popitem(last=False)[1])
        self._files.move_to_end(shard)
        return self._files[shard]

    def _read_remote(self, run: list[tuple[int, int, int]]) -> list[bytes | Exception]:
        shard, start, _ = run[0]
        length = run[-1][1] + run[-1][2] - start
        try:
            data = self._store.read_range(f"{self._prefix}/{shards.tar_name(shard)}", start, length)
        except StorageError as error:
            return [error] * len(run)
        parts = [data[offset - start : offset - start + num_bytes] for _, offset, num_bytes in run]
        return [
            part if len(part) == num_bytes else DataError("its tar ends before it")
            for part, (_, _, num_bytes) in zip(parts, run, strict=True)
        ]


def _decoded(data: bytes, num_samples: int) -> NDArray[np.int16]:
    """The samples of a stored utterance; DataError where they are not as many as the sidecar says."""
    samples_T = codec.decode(data).samples_T
    if len(samples_T) != num_samples:
        raise DataError(f"it has {len(samples_T)} samples and its sidecar says {num_samples}")
    return samples_T


def _column(index: Any, name: str, kind: Any) -> NDArray[Any]:
    return np.ascontiguousarray(index[name].combine_chunks().to_numpy(zero_copy_only=False), kind)


def _tokens(index: Any, encode: Encode | None) -> tuple[NDArray[np.int32], NDArray[np.int32], Ints]:
    """All token ids end to end, their times, and where each row begins."""
    tokens, times, bounds = array("i"), array("i"), np.zeros(len(index) + 1, np.int64)
    if encode is not None:
        row = 0
        for part in index.select(["text", "words"]).to_batches(max_chunksize=10_000):
            for text, words in zip(part["text"].to_pylist(), part["words"].to_pylist(), strict=True):
                ids, spans = encode(text, [Word(**word) for word in words])
                tokens.extend(ids)
                for span in spans:
                    times.extend(span)
                row += 1
                bounds[row] = len(tokens)
    tokens_U, times_U2 = np.array(tokens, np.int32), np.array(times, np.int32).reshape(-1, 2)
    assert len(tokens_U) == len(times_U2), "the tokenizer gave some tokens no times"
    return tokens_U, times_U2, bounds
