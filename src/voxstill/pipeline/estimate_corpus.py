"""The shards that an estimate is of: those that are there, or assumed ones, of known or of assumed lengths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from voxstill.core import pcm
from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.core.records import Utterance, UtteranceInfo
from voxstill.data.batching import Ints
from voxstill.pipeline.mixture import labelled_shards, shards_to_listen_to
from voxstill.pipeline.recipes import finished_utterances
from voxstill.storage import manifest, shard_format, tables, workdir
from voxstill.storage.figures import IndexFigures, ShardFigures
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store
from voxstill.tasks import registry

_NUM_ASSUMED, _MEAN_LOG_MS, _DEVIATION_LOG = 1000, 8.9, 0.6
"""Utterances where none are indexed: 7 s in the middle, as of read speech."""
_MOST = 5000
"""Of an index, as many utterances stand for all."""
_WORDS_PER_S = 2.5
_NUM_WORDS = 3000
_LETTERS = "etaoinshrdlucmfwypvbgkjqxz"


@dataclass(frozen=True, slots=True)
class Corpus:
    """Shards in a work folder, and how much audio they have or will have."""

    work: str
    figures: ShardFigures
    is_real: bool
    hours: float | None
    """None if nothing is indexed."""
    about: str
    """Where the lengths come from, in words."""


def corpus_of(cfg: Config, folder: str, *, pretrain: bool) -> Corpus:
    """The shards of a configuration; where there are none, assumed ones that are written to `folder`, without audio."""
    needs_labels = not pretrain and registry.find(cfg.student.task).needs_labels(cfg)
    work = Store(cfg.work)
    try:
        if not (needs_labels or cfg.train.corpora or workdir.finished_recipes(work, "shards")):
            workdir.finished(work, ShardFigures)  # raises: a training would write new ones
        figures = labelled_shards(cfg) if needs_labels else shards_to_listen_to(cfg)
        return Corpus(cfg.work, figures, True, figures.hours, f"{figures.utterances:,} utterances in shards")
    except DataError:
        pass
    indexed = _indexed(cfg)
    if indexed is None:
        random = np.random.default_rng(0)
        lengths_ms = np.exp(random.normal(_MEAN_LOG_MS, _DEVIATION_LOG, _NUM_ASSUMED)).astype(np.int64)
        lengths_ms = lengths_ms.clip(500, cfg.segment.max_ms)
        middle_s, longest_s = float(np.median(lengths_ms)) / 1000, float(lengths_ms.max()) / 1000
        about = f"utterances of {middle_s:.0f} s, up to {longest_s:.0f} s, are assumed"
        return Corpus(folder, _written(folder, lengths_ms), False, None, f"nothing is indexed: {about}")
    source, lengths_ms = indexed
    share = source.splits.get("train", 0) / max(source.utterances, 1)
    about = f"{source.utterances:,} indexed utterances; assuming that all labels are kept, and their texts"
    return Corpus(folder, _written(folder, lengths_ms), False, source.hours * share, about)


def _indexed(cfg: Config) -> tuple[IndexFigures, Ints] | None:
    """The utterances of a configuration and the lengths of those of the train split; None if none are indexed."""
    work = Store(cfg.work)
    try:
        figures = finished_utterances(cfg)
    except DataError:
        return None
    keys = manifest.parts(work, workdir.prefix("utterances", figures.recipe))
    lengths: list[int] = []
    for part in tables.columns(work, keys, Utterance, ("split", "start_ms", "end_ms")):
        rows = zip(part["split"].to_pylist(), part["start_ms"].to_pylist(), part["end_ms"].to_pylist(), strict=True)
        lengths += [end - start for split, start, end in rows if split == "train"]
    lengths_ms = np.array(lengths, np.int64)
    if len(lengths_ms) > _MOST:  # the quantiles: the longest is among them
        lengths_ms = np.sort(lengths_ms)[np.linspace(0, len(lengths_ms) - 1, _MOST).astype(np.int64)]
    return (figures, lengths_ms) if len(lengths_ms) else None


def _written(folder: str, lengths_ms: Ints) -> ShardFigures:
    """Shards of utterances of these lengths, with texts of random words, and a sidecar alone."""
    random = np.random.default_rng(0)
    letters = random.integers(0, len(_LETTERS), (_NUM_WORDS, 10))
    words = ["".join(_LETTERS[i] for i in row[: 2 + k % 8]) for k, row in enumerate(letters)]
    rows = [_sample(k, int(length_ms), words, random) for k, length_ms in enumerate(lengths_ms)]
    figures = ShardFigures(
        recipe="assumed", shards=1, utterances=len(rows), hours=float(lengths_ms.sum()) / 3_600_000, verdicts="assumed"
    )
    store, prefix = Store(folder), workdir.prefix("shards", figures.recipe)
    store.create(f"{prefix}/{shard_format.sidecar_name(0)}", tables.to_parquet(rows, Sample))
    workdir.finish(store, figures)
    return figures


def _sample(number: int, length_ms: int, words: list[str], random: np.random.Generator) -> Sample:
    chosen = random.integers(0, len(words), max(1, round(length_ms / 1000 * _WORDS_PER_S)))
    name = str(number % 50)
    return Sample(
        id=f"assumed-{number}",
        duration_ms=length_ms,
        num_samples=pcm.ms_to_samples(length_ms),
        text=" ".join(words[i] for i in chosen),
        info=UtteranceInfo(speaker=name, language=name, dialect=name, dataset=name),
    )
