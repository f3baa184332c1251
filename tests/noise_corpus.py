"""A small corpus of noise in shards, for tests of what reads them."""

from __future__ import annotations

import atexit
import io
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from voxstill.audio import codec
from voxstill.core import pcm
from voxstill.core.config import Plan
from voxstill.core.records import Batch, UtteranceInfo, Word
from voxstill.data.loader import Loader
from voxstill.data.plan import EpochPlan, plan
from voxstill.data.shard_index import Encode, ShardIndex, open_index
from voxstill.storage import shard_format, tables
from voxstill.storage.figures import ShardFigures
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store

NUM, PER_SHARD = 60, 20


def samples_of(i: int) -> np.ndarray:
    return np.random.default_rng(i).integers(-9000, 9000, 1600 + 160 * (i % NUM)).astype(np.int16)


def text_of(i: int) -> str:
    return f"{i:02} aab"


def write_corpus(store: Store, num: int = NUM) -> None:
    """`num` utterances of noise in shards of `PER_SHARD`, in three data sets; every third has no word times.

    Where they do not fill their shards, an empty one is the last.
    """
    num_shards = num // PER_SHARD + 2 * (num % PER_SHARD > 0)
    for index in range(num_shards):
        pairs = []
        for i in range(index * PER_SHARD, min((index + 1) * PER_SHARD, num)):
            samples_T = samples_of(i)
            spans = ((0, 40), (40, 100)) if i % 3 else ()
            words = tuple(
                Word(text=text, start_ms=start, end_ms=end)
                for text, (start, end) in zip(text_of(i).split(), spans, strict=False)
            )
            sample = Sample(
                id=f"u/{i}",
                duration_ms=pcm.samples_to_ms(len(samples_T)),
                num_samples=len(samples_T),
                text=text_of(i),
                words=words,
                weight=0.5 if i == 7 else 1.0,
                info=UtteranceInfo(dataset="tiny" if i % 100 == 5 else "small" if i % 10 == 3 else "large"),
            )
            pairs.append((sample, codec.encode(samples_T, "flac")))
        file = io.BytesIO()
        rows = shard_format.write(file, pairs)
        store.create(f"s/{shard_format.tar_name(index)}", file.getvalue())
        store.create(f"s/{shard_format.sidecar_name(index)}", tables.to_parquet(rows, Sample))
    shard_format.finish(store, "s", ShardFigures(shards=num_shards, utterances=num))


def damage(store: Store, row: int, data: bytes) -> None:
    """Overwrite the beginning of an utterance's audio in its tar."""
    sample = tables.from_parquet(store.read(f"s/{shard_format.sidecar_name(row // PER_SHARD)}"), Sample)[
        row % PER_SHARD
    ]
    path = Path(store.root) / "s" / shard_format.tar_name(row // PER_SHARD)
    with path.open("r+b") as file:
        file.seek(sample.offset)
        file.write(data)


def encode(text: str, words: Sequence[Word]) -> tuple[list[int], list[tuple[int, int]]]:
    """A character is a token; its time is that of its word."""
    spans = [(word.start_ms, word.end_ms) for word in words] or [(-1, -1)] * len(text.split())
    return (
        [ord(letter) for word in text.split() for letter in word],
        [span for word, span in zip(text.split(), spans, strict=True) for _ in word],
    )


def corpus_of(store: Store) -> ShardIndex:
    return opened_with(store, encode)


def opened_with(store: Store, encode: Encode | None) -> ShardIndex:
    """Read the shards anew on every call, whatever `encode` is named."""
    folder = Path(tempfile.mkdtemp(prefix="voxstill-test-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return open_index(store, "s", folder, splits=("train",), encode=encode, encoder="")


def planned(corpus: ShardIndex, batches_per_step: int = 2) -> EpochPlan:
    cfg = Plan(budget_ms=3000, batches_per_step=batches_per_step)
    return plan(corpus.durations_ms, corpus.num_tokens, cfg, seed=0, epoch=0)


def read_all(loader: Loader) -> list[Batch]:
    return [batch for step in loader for batch in step]


def same(one: list[Batch], two: list[Batch]) -> bool:
    return len(one) == len(two) and all(
        a.ids == b.ids and all(torch.equal(getattr(a, name), getattr(b, name)) for name in Batch.__slots__[1:])
        for a, b in zip(one, two, strict=True)
    )
