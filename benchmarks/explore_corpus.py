"""A synthetic work folder of any size for `benchmarks/explore.py`: the tables that the steps would have left.

Texts are random words with the frequencies of a language (Zipf), ids as those of the index, parts as large as asked.
The first shard has a tar with noise, to listen to.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from voxstill.audio import codec
from voxstill.core.records import Label, Utterance, Verdict
from voxstill.filtering.measures import Score
from voxstill.filtering.rules import NAMES
from voxstill.storage import shard_format, tables, workdir
from voxstill.storage.figures import IndexFigures, LabelFigures, ScoreFigures, ShardFigures, VerdictFigures
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store

NUM_WORDS = 50_000
AUDIBLE = 200
"""Utterances with audio in the first shard."""
_SHARD = 2_000
_VERDICTS = 65_536
SYLLABLES = [a + b for a in "bdfghklmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er", "il")]
"""Of which the words are made."""


def make(folder: Path, num: int, part: int) -> None:
    """Write the tables of `num` utterances, `part` in each part of utterances, labels and scores."""
    work, rng = Store(str(folder)), np.random.default_rng(0)
    vocabulary = np.array(["".join(rng.choice(SYLLABLES, rng.integers(1, 5))) for _ in range(NUM_WORDS)])
    weights = 1 / np.arange(10, NUM_WORDS + 10)
    cumulative = np.cumsum(weights / weights.sum())
    for start in range(0, num, 65_536):
        size = min(65_536, num - start)
        block = _block(rng, start, size, vocabulary, cumulative)
        for at in range(0, size, part):
            rows = {name: values[at : at + part] for name, values in block.items()}
            name = f"{start + at:012}.parquet"
            work.create(f"utterances/u/{name}", _encoded(rows, Utterance))
            for recipe, column in (("first", "first"), ("second", "second")):
                work.create(f"labels/{recipe}/{name}", _encoded({**rows, "text": rows[column]}, Label))
            work.create(f"scores/s/{name}", _encoded(rows, Score))
        for at in range(0, size, _VERDICTS):
            rows = {name: values[at : at + _VERDICTS] for name, values in block.items()}
            work.create(f"verdicts/v/{start + at:012}.parquet", _encoded(rows, Verdict))
        _shards(work, folder, rng, block, start, size)
    shards = -(-num // _SHARD)
    workdir.finish(work, IndexFigures(recipe="u", utterances=num))
    for recipe in ("first", "second"):
        workdir.finish(work, LabelFigures(recipe=recipe, teacher=f"{recipe}-teacher@1", labels=num))
    workdir.finish(work, ScoreFigures(recipe="s", labels="first", utterances="u", num_labels=num))
    workdir.finish(
        work, VerdictFigures(recipe="v", labels="first", utterances="u", scores="s", teacher="first-teacher@1")
    )
    workdir.finish(work, ShardFigures(recipe="h", verdicts="v", shards=shards, utterances=num))


def _block(
    rng: np.random.Generator, start: int, size: int, vocabulary: NDArray[np.str_], cumulative: NDArray[np.float64]
) -> Mapping[str, pa.Array]:
    """The columns of all tables for some utterances."""
    duration_ms = rng.gamma(3, 2000, size).astype(int) + 500
    lengths = np.maximum(1, duration_ms // 450)
    words = vocabulary[np.searchsorted(cumulative, rng.random(lengths.sum()))]
    pieces = np.split(words, np.cumsum(lengths)[:-1])
    texts = [" ".join(piece) for piece in pieces]
    others = [
        text if keep else text.rpartition(" ")[0] for text, keep in zip(texts, rng.random(size) < 0.7, strict=True)
    ]
    ids = [f"{(start + i) * 0x9E3779B97F4A7C15 % (1 << 64):016x}" for i in range(size)]
    recordings = [f"{(start + i) // 20:016x}" for i in range(size)]
    logprob = -rng.gamma(2, 0.2, size)
    reason_R = rng.integers(0, len(NAMES), size)
    is_kept = rng.random(size) < 0.8
    has_text = rng.random(size) < 0.02
    return {
        "id": pa.array(ids),
        "utterance_id": pa.array(ids),
        "recording_id": pa.array(recordings),
        "uri": pa.array([f"/corpus/audio/{recording}.flac" for recording in recordings]),
        "start_ms": pa.array(rng.integers(0, 3_600_000, size)),
        "end_ms": pa.array(np.zeros(size, int)),
        "duration": pa.array(duration_ms),
        "split": pa.array(rng.choice(["train", "dev", "test"], size, p=[0.98, 0.01, 0.01])),
        "language": pa.array(rng.choice(["en", "de", "es"], size)),
        "speaker": pa.array([f"speaker-{(start + i) // 50 % 40_000}" for i in range(size)]),
        "dataset": pa.array(rng.choice(["radio", "calls", "books"], size)),
        "human": pa.array([text if known else None for text, known in zip(texts, has_text, strict=True)]),
        "first": pa.array(texts),
        "second": pa.array(others),
        "teacher": pa.array(["first-teacher@1"] * size),
        "recipe": pa.array(["r"] * size),
        "mean_logprob": pa.array(logprob),
        "finish": pa.array(["stop"] * size),
        "num_tokens": pa.array(lengths),
        "duration_ms": pa.array(duration_ms),
        "finished": pa.array([True] * size),
        "characters": pa.array([len(text) for text in texts]),
        "words": pa.array(lengths),
        "compression_ratio": pa.array(rng.normal(1.2, 0.2, size)),
        "disagreement": pa.array(rng.beta(1, 8, size)),
        "alignment": pa.array(-rng.gamma(2, 0.5, size)),
        "kept": pa.array(is_kept),
        "reason": pa.array([None if keep else NAMES[k] for keep, k in zip(is_kept, reason_R, strict=True)]),
    }


def _encoded(rows: Mapping[str, pa.Array], kind: type[Utterance | Label | Score | Verdict | Sample]) -> bytes:
    """Columns of a block as a part of a table; those that it has not are null, or zero where that cannot be."""
    num = len(rows["id"])
    columns = []
    for field in tables.schema(kind):
        values = rows.get(field.name)
        if kind is Utterance and field.name == "end_ms":
            values = pa.array(rows["start_ms"].to_numpy() + rows["duration"].to_numpy())
        if kind is Utterance and field.name in ("text", "words"):
            values = rows["human"] if field.name == "text" else None
        if kind is Label and field.name == "words":
            values = pa.array([[]] * num, field.type)
        if values is None:
            values = pa.nulls(num, field.type) if field.nullable else pa.array([_empty(field.type)] * num, field.type)
        columns.append(values.cast(field.type))
    return tables.arrow_to_parquet(pa.table(columns, schema=tables.schema(kind)))


def _empty(kind: pa.DataType) -> object:
    if pa.types.is_list(kind):
        return []
    return "" if pa.types.is_string(kind) else pa.scalar(0).cast(kind).as_py()


def _shards(
    work: Store, folder: Path, rng: np.random.Generator, block: Mapping[str, pa.Array], start: int, size: int
) -> None:
    """Sidecars of all utterances, and a tar with the audio of the first."""
    for at in range(0, size, _SHARD):
        index = (start + at) // _SHARD
        ids = block["id"][at : at + _SHARD].to_pylist()
        texts = block["first"][at : at + _SHARD].to_pylist()
        durations = block["duration"][at : at + _SHARD].to_pylist()
        samples = [
            Sample(id=id_, duration_ms=ms, num_samples=16 * ms, text=text, offset=512, num_bytes=1000)
            for id_, text, ms in zip(ids, texts, durations, strict=True)
        ]
        if index == 0:
            sink = io.BytesIO()
            samples = [*shard_format.write(sink, _audible(rng, samples[:AUDIBLE])), *samples[AUDIBLE:]]
            work.create(f"shards/h/{shard_format.tar_name(0)}", sink.getvalue())
        work.create(f"shards/h/{shard_format.sidecar_name(index)}", tables.to_parquet(samples, Sample))


def _audible(rng: np.random.Generator, samples: list[Sample]) -> list[tuple[Sample, bytes]]:
    return [
        (sample, codec.encode(rng.normal(0, 2000, sample.num_samples).astype(np.int16), "flac")) for sample in samples
    ]
