"""train-lm: count n-grams of texts into a language model for beam search."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from voxstill.core.arguments import whole_number
from voxstill.core.config import Config, changed
from voxstill.core.errors import DataError
from voxstill.core.monitor import log
from voxstill.core.result import Result
from voxstill.pipeline.mixture import labelled_shards
from voxstill.pipeline.recipes import finished_shards, refuse_removed
from voxstill.storage import workdir
from voxstill.storage.fetch import read_uri
from voxstill.storage.figures import ShardFigures
from voxstill.storage.files import write_file
from voxstill.storage.store import Store
from voxstill.tasks.data import Corpus
from voxstill.text import kneser_ney
from voxstill.text.normalize import normalizer

LONGEST = 7
"""The longest n-gram that can be counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModelResult(Result):
    """The ARPA file of a language model, what it was counted on, and its n-grams of each order."""

    path: str
    sentences: int
    words: int
    ngrams: Sequence[int]


def train_lm(cfg: Config, source: str, output: str, order: int) -> LanguageModelResult:
    """The n-grams of a text file, of the `.txt` files in a folder, or of what a WORK teaches: the labels that were kept
    of its training split. Texts are written as the student writes; nothing of the dev or test split is read.

    ConfigError if `order`, the longest n-gram, is not from 1 to 7.
    """
    return written(texts(cfg, source), output, whole_number("order", order, 1, LONGEST))


def of_labels(cfg: Config, output: str, order: int) -> LanguageModelResult:
    """The n-grams of what the student of this configuration learns from, as `train_lm` counts them."""
    return written(learnt(cfg, Store(cfg.work), labelled_shards(cfg)), output, order)


def written(sentences: Iterable[str], output: str, order: int) -> LanguageModelResult:
    """The sentences counted into an ARPA file, and how many there were; DataError if they hold no words."""
    num = {"sentences": 0, "words": 0}

    def counted() -> Iterator[str]:
        for text in sentences:
            if words := len(text.split()):
                num["sentences"] += 1
                num["words"] += words
                yield text

    lines = list(kneser_ney.arpa(counted(), order))
    data = ("\n".join(lines) + "\n").encode()
    path = Path(output)
    write_file(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    ngrams = [int(line.partition("=")[2]) for line in lines if line.startswith("ngram ")]
    log.info("train-lm: %d words of %d sentences", num["words"], num["sentences"])
    return LanguageModelResult(path=output, **num, ngrams=ngrams)


def learnt(cfg: Config, work: Store, shards: ShardFigures) -> Iterator[str]:
    """The labels of the train split in finished shards, as the student writes them."""
    normalize = normalizer(cfg.student.text)
    yield from Corpus.texts(work, workdir.prefix(shards.kind, shards.recipe), "train", normalize)


def _shards(cfg: Config, work: Store, source: str, recipes: Sequence[str]) -> ShardFigures:
    """The only finished shards of a WORK, or of several those of the configuration, as of a corpus that has grown."""
    if len(recipes) > 1:
        return finished_shards(changed(cfg, f"work={json.dumps(source)}"))
    shards = workdir.named(work, ShardFigures, recipes[0])
    refuse_removed(work, shards)
    return shards


def texts(cfg: Config, source: str) -> Iterator[str]:
    """Yield the sentences of the source, one for each line of its files; DataError if there are none."""
    if Path(source).is_file():
        files = [source]
    else:
        store = Store(source)
        if recipes := workdir.finished_recipes(store, "shards"):
            yield from learnt(cfg, store, _shards(cfg, store, source, recipes))
            return
        files = [store.uri(entry.key) for entry in store.list() if entry.key.endswith(".txt")]
    if not files:
        raise DataError(
            f"`{source}` contains no texts",
            code="no-words",
            why="it is neither a text file, nor a folder with `.txt` files, nor one with finished shards",
            fix="give a text file with a sentence in each line, a folder of such, or a WORK after `voxstill shard`",
        )
    normalize = normalizer(cfg.student.text)
    for file in sorted(files):
        yield from map(normalize, read_uri(file).decode().splitlines())
