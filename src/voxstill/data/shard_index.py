"""The index of a set of shards as memory-mapped columns: opened at once, shared by all processes, of constant RAM.

Sidecars are Parquet, texts are words: reading and tokenizing them takes minutes for ten million utterances, and tokens
are larger than all other columns. So it is done once, sidecar by sidecar, and the result is memory-mapped.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from voxstill.core.config import Plan
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.monitor import log
from voxstill.core.records import MOST_WEIGHT, Split, Word, fingerprint
from voxstill.data.batching import Ints
from voxstill.data.blocks import in_threads
from voxstill.data.plan import EpochPlan, SamplingRate, mixture_rates
from voxstill.storage import checked_json, shard_format
from voxstill.storage.arrays import numpy_array
from voxstill.storage.redaction import redact_uri
from voxstill.storage.store import Store
from voxstill.storage.uri import is_local

if TYPE_CHECKING:
    import pyarrow as pa

Encode = Callable[[str, Sequence[Word]], tuple[Sequence[int], Sequence[tuple[int, int]]]]
"""Token ids of a text and start and end of each in milliseconds, (-1, -1) where the words have no times."""
_FORMAT = 4
_SUMS, _PART = "xxh3", 1 << 18  # read at a time: larger parts are slower, they leave the cache of the processor
_ABOUT = "about.json"  # written last: a folder without it is not an index
_KINDS = {
    **dict.fromkeys(("offset", "num_bytes", "crc32", "num_samples", "duration_ms", "num_tokens", "repeats"), np.int64),
    **dict.fromkeys(("id_end", "text_end", "token_end"), np.int64),
    **dict.fromkeys(("shard", "dataset", "dialect", "token", "time"), np.int32),
    **dict.fromkeys(("id", "text"), np.uint8),
    "weight": np.float32,
}
_ROWS = 10_000
MOST_UTTERANCES = 1_000_000_000
"""In an epoch; weights that differ by more than a corpus can bear would fill the memory with repetitions."""


@dataclass(frozen=True, slots=True)
class LossWeights:
    """How much the loss of an utterance counts, by names: 1 where none is named; the numbers are multiplied."""

    dialects: Mapping[str, float] = field(default_factory=dict)
    datasets: Mapping[str, float] = field(default_factory=dict)
    classes: Mapping[str, float] | Literal["balanced"] = field(default_factory=dict)
    """By the one token of an utterance; `balanced`: all classes count alike together, and 1 is the mean."""
    class_names: Sequence[str] = ()


NO_WEIGHTS = LossWeights()


class ShardIndex:
    """The index of a set of shards, by row as in the plan; every column is a file that is read where it is accessed.

    `num_tokens` and `equal_neighbours` (pairs of equal tokens in a row, for which CTC needs a frame more) are 0 without
    texts; `crc32` is -1 where the sidecar has none. `weight` is that of the sidecar times those of `weights`;
    ConfigError if these name what no utterance has.
    """

    def __init__(self, store: Store, prefix: str, folder: Path, weights: LossWeights = NO_WEIGHTS) -> None:
        self.store, self.prefix, self._folder, self._weights = store, prefix, folder, weights
        about: Any = checked_json.decode((folder / _ABOUT).read_bytes(), str(folder / _ABOUT))
        self._tars: dict[str, str] = about["tars"]
        self.datasets: list[str] = about["datasets"]
        self.dialects: list[str] = about["dialects"]
        self.shard = self._column("shard")
        self.offset: Ints = self._column("offset")
        self.num_bytes: Ints = self._column("num_bytes")
        self.crc32: Ints = self._column("crc32")
        self.num_samples: Ints = self._column("num_samples")
        self.durations_ms: Ints = self._column("duration_ms")
        self.num_tokens: Ints = self._column("num_tokens")
        self.equal_neighbours: Ints = self._column("repeats")
        self._id, self._id_end = self._column("id"), self._column("id_end")
        self._text, self._text_end = self._column("text"), self._column("text_end")
        self._token, self._token_end = self._column("token"), self._column("token_end")
        self._time = self._column("time").reshape(-1, 2)
        self.weight = self._column("weight")
        for factor_N in self._weight_factors():
            self.weight = (self.weight * factor_N).astype(np.float32)

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardIndex, (self.store, self.prefix, self._folder, self._weights)

    def __len__(self) -> int:
        return len(self.durations_ms)

    def id_of(self, row: int) -> str:
        """Id of an utterance."""
        return str(self._id[_span(self._id_end, row)].tobytes(), "utf-8")

    def text_of(self, row: int) -> str:
        """Text of an utterance as the teacher wrote it."""
        return str(self._text[_span(self._text_end, row)].tobytes(), "utf-8")

    def tokens_of(self, row: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Token ids of a row and their times: (U,) and (U, 2)."""
        span = _span(self._token_end, row)
        return self._token[span], self._time[span]

    def tar(self, shard: int) -> str:
        """Address of the tar of a shard."""
        key = f"{self.prefix}/{shard_format.tar_name(shard)}".lstrip("/")
        return self._tars.get(str(shard)) or self.store.uri(key)

    @property
    def is_far(self) -> bool:
        """Whether some of its tars are not on this machine."""
        return not all(map(is_local, self._tars.values() or [self.store.root]))

    def describe(self, row: int) -> str:
        """An utterance and its tar, for messages."""
        return f"utterance `{self.id_of(row)}` in `{redact_uri(self.tar(int(self.shard[row])))}`"

    def sampling_rate(self, cfg: Plan) -> SamplingRate | None:
        """Sampling rate of each row, by its data set and its dialect; None if all rows come once in an epoch.

        ConfigError if some data sets have a weight and others have none, where no utterance has a named dialect, or
        where an epoch would have more than `MOST_UTTERANCES`.
        """
        if not cfg.weights and cfg.temperature == 1 and not cfg.dialect_sampling_rate:
            return None
        dataset_N, dialect_N = self._column("dataset"), self._column("dialect")
        weights_G = _by_name("plan.weights", self.datasets, cfg.weights, None, least=1e-6) if cfg.weights else None
        hours_G = np.bincount(dataset_N, self.durations_ms, len(self.datasets)) / 3_600_000
        of_dataset_G = mixture_rates(np.maximum(hours_G, 1e-9), weights_G, cfg.temperature)
        of_dialect_G = _by_name("plan.dialect_sampling_rate", self.dialects, cfg.dialect_sampling_rate, 1.0, least=1)
        rate_N: SamplingRate = of_dataset_G[dataset_N] * of_dialect_G[dialect_N]
        if (num := float(rate_N.sum())) > MOST_UTTERANCES:
            raise ConfigError(
                f"an epoch would have {num:.1e} utterances",
                code="sampling-weights",
                why="every utterance is used at least once, and the others as often as their weights require",
                fix="use weights closer to one another in `plan.weights` and `plan.dialect_sampling_rate`",
            )
        return rate_N

    def hours_by_dataset(self, plan: EpochPlan) -> dict[str, float]:
        """Hours of each data set in an epoch, with repetitions; the name of none is empty."""
        ms_G = np.bincount(self._column("dataset")[plan.order], plan.augmented_ms(), len(self.datasets))
        return dict(zip(self.datasets, (ms_G / 3_600_000).tolist(), strict=True))

    def _weight_factors(self) -> Iterator[NDArray[np.float64]]:
        weights = self._weights
        if weights.dialects:
            of_dialect_G = _by_name(
                "train.dialect_weights", self.dialects, weights.dialects, 1.0, least=0, most=MOST_WEIGHT
            )
            yield of_dialect_G[self._column("dialect")]
        if weights.datasets:
            of_dataset_G = _by_name(
                "train.dataset_weights", self.datasets, weights.datasets, 1.0, least=0, most=MOST_WEIGHT
            )
            yield of_dataset_G[self._column("dataset")]
        if weights.classes:
            yield self._class_weights(weights.classes, weights.class_names)

    def _class_weights(
        self, classes: Mapping[str, float] | Literal["balanced"], names: Sequence[str]
    ) -> NDArray[np.float64]:
        """The weight of the class of each row; 1 where it has none."""
        has_class_N = np.asarray(self.num_tokens) > 0
        class_K = self._token[self._token_end[has_class_N] - 1]
        if classes == "balanced":
            num_G = np.bincount(class_K, minlength=len(names)).astype(np.float64)
            of_class_G: SamplingRate = len(class_K) / np.maximum(num_G, 1.0) / max(int((num_G > 0).sum()), 1)
        else:
            of_class_G = _by_name("train.class_weights", names, classes, 1.0, least=0, most=MOST_WEIGHT)
        weight_N = np.ones(len(self), np.float64)
        weight_N[has_class_N] = of_class_G[class_K]
        return weight_N

    def _column(self, name: str) -> NDArray[Any]:
        path = self._folder / name
        if not path.stat().st_size:  # an empty file cannot be mapped
            return np.empty(0, _KINDS[name])
        return np.memmap(path, _KINDS[name], "r").view(np.ndarray)


def open_index(
    store: Store,
    prefix: str,
    folder: Path,
    *,
    splits: Sequence[Split],
    encode: Encode | None,
    encoder: str,
    column: str = "text",
    weights: LossWeights = NO_WEIGHTS,
) -> ShardIndex:
    """Open the index of the utterances of some splits; it is built in `folder` if it is not there yet.

    `encode` tokenizes the text, which is a `column` of the sidecars; None without texts. `encoder` identifies it.
    One whose files are not what was written is made again. Any number of processes may open an index at the same time.
    DataError if the shards are not finished, or are not what their `_SUCCESS.json` counted.
    """
    figures = shard_format.figures(store, prefix)
    content = "corpus", _FORMAT, store.root, prefix, figures.to_dict(), list(splits), column, encoder
    index_folder = folder / fingerprint(*content)
    if index_folder.exists() and (fault := _fault(index_folder)):
        log.warning("train: the index of the shards in `%s` is made again: %s", index_folder, fault)
        with contextlib.suppress(OSError):  # another process did it
            # renamed first: a process that is killed here leaves no half of an index
            shutil.rmtree(index_folder.rename(tempfile.mkdtemp(prefix=".old-", dir=folder)))
    if not (index_folder / _ABOUT).exists():
        folder.mkdir(parents=True, exist_ok=True)
        # not `atomic_folder`, which replaces: another process may have written this index and opened it meanwhile
        new = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
        try:
            _write(new, store, prefix, splits, encode, column)
            with contextlib.suppress(OSError):  # another process was first and wrote the same
                os.rename(new, index_folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return ShardIndex(store, prefix, index_folder, weights)


def _write(
    folder: Path, store: Store, prefix: str, splits: Sequence[Split], encode: Encode | None, column: str
) -> None:
    names: dict[str, dict[str, int]] = {"dataset": {}, "dialect": {}}
    tars: dict[str, str] = {}
    ends = dict.fromkeys(("id", "text", "token"), 0)
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context((folder / name).open("wb")) for name in _KINDS}
        for sidecar in shard_format.sidecars(store, prefix, splits):
            if len(sidecar) and (tar := sidecar["tar"][0].as_py()) is not None:
                tars[str(sidecar["shard"][0].as_py())] = shard_format.tar_address(store, tar)
            for rows in sidecar.to_batches(max_chunksize=_ROWS):
                _add(files, rows, encode, column, names, ends)
    about = {"datasets": list(names["dataset"]), "dialects": list(names["dialect"]), "tars": tars}
    sums = {name: _sum_of(folder / name) for name in _KINDS}
    (folder / _ABOUT).write_bytes(checked_json.encode({**about, _SUMS: sums}))


def _fault(folder: Path) -> str | None:
    """Why an index is not what was written; None if it is."""
    try:
        sums = checked_json.decode((folder / _ABOUT).read_bytes(), str(folder / _ABOUT)).get(_SUMS)
        if not isinstance(sums, dict):
            return f"`{_ABOUT}` has no checksums"
        present: dict[str, str] = {}
        in_threads(lambda name: present.update({name: _sum_of(folder / name)}), _KINDS)
        wrong = [name for name in _KINDS if present[name] != sums.get(name)]
    except DataError as error:
        return error.why
    except OSError as error:
        return str(error)
    return f"the bytes of {', '.join(wrong)} do not match their checksums" if wrong else None


def _sum_of(path: Path) -> str:
    """The checksum of a column, read a part at a time."""
    content = xxhash.xxh3_64()
    with path.open("rb") as file:
        while part := file.read(_PART):
            content.update(part)
    return content.hexdigest()


def _add(
    files: Mapping[str, BinaryIO],
    rows: pa.RecordBatch,
    encode: Encode | None,
    column: str,
    names: Mapping[str, dict[str, int]],
    ends: dict[str, int],
) -> None:
    """Append rows of a sidecar to every column."""

    def put(name: str, values: ArrayLike) -> None:
        np.asarray(values, _KINDS[name]).tofile(files[name])

    def put_all(name: str, pieces: Sequence[Any], values: ArrayLike) -> None:
        end_N = ends[name] + np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
        ends[name] = int(end_N[-1]) if len(end_N) else ends[name]
        put(f"{name}_end", end_N)
        put(name, values)

    for name in ("shard", "offset", "num_bytes", "num_samples", "duration_ms", "weight"):
        put(name, numpy_array(rows[name]))
    put("crc32", np.nan_to_num(numpy_array(rows["crc32"]), nan=-1))  # `fill_null` imports pandas
    for name, numbers in names.items():
        put(name, [numbers.setdefault(value or "", len(numbers)) for value in rows[name].to_pylist()])
    texts = [text or "" for text in rows[column].to_pylist()]
    for name, strings in (("id", rows["id"].to_pylist()), ("text", texts)):
        encoded = [string.encode() for string in strings]
        put_all(name, encoded, np.frombuffer(b"".join(encoded), np.uint8))
    tokenized: list[tuple[Sequence[int], Sequence[tuple[int, int]]]] = [((), ())] * len(texts)
    if encode is not None:
        pairs = zip(texts, rows["words"].to_pylist(), strict=True)
        tokenized = [encode(text, [Word(**word) for word in words]) for text, words in pairs]
    assert all(len(ids) == len(spans) for ids, spans in tokenized), "the tokenizer gave no times for some tokens"
    tokens = [ids for ids, _ in tokenized]
    put_all("token", tokens, list(chain.from_iterable(tokens)))
    put("time", list(chain.from_iterable(chain.from_iterable(spans for _, spans in tokenized))))
    put("num_tokens", [len(ids) for ids in tokens])
    put("repeats", [sum(map(int.__eq__, ids[1:], ids[:-1])) for ids in tokens])


def _span(end_N: Ints, row: int) -> slice:
    return slice(int(end_N[row - 1]) if row else 0, int(end_N[row]))


def _by_name(
    option: str,
    names: Sequence[str],
    numbers: Mapping[str, float],
    default: float | None,
    *,
    least: float,
    most: int | None = None,
) -> SamplingRate:
    """The number of each name, from an option; ConfigError for an unknown name, or a number that is out of range.

    Without a `default` each name needs one.
    """
    if most is not None and (high := [name for name, number in numbers.items() if number > most]):
        raise ConfigError(
            f"`{option}` is {numbers[high[0]]:g} for `{high[0]}`",
            code="sampling-weights",
            why=f"a weight is at most {most:,}",
            fix="lower it: only the ratios of weights matter, and weights around 1 keep the meaning of `train.lr`",
        )
    if low := [name for name, number in numbers.items() if not least <= number < math.inf]:
        raise ConfigError(
            f"`{option}` is {numbers[low[0]]:g} for `{low[0]}`",
            code="sampling-weights",
            why=("every utterance is used in every epoch: " if option.startswith("plan.") else "it must be ")
            + ("above 0" if 0 < least < 1 else f"at least {least:g}"),
            fix="raise it, or leave those utterances out of the shards",
        )
    unknown = sorted(set(numbers) - set(names))
    missing = sorted(set(names) - set(numbers)) if default is None else []
    if unknown or missing:
        present = ", ".join(f"`{name}`" if name else "no name" for name in sorted(names))
        raise ConfigError(
            f"`{option}` contains `{unknown[0]}`" if unknown else f"`{option}` has no number for `{missing[0]}`",
            code="sampling-weights",
            why=f"in the shards there are: {present}",
            fix="give all names of the shards" if default is None else "use only those",
        )
    return np.array([numbers.get(name, default) for name in names], np.float64)
