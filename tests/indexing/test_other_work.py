"""A work folder that lies in a source is no source, whichever corpus it is of."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from voxstill.audio import codec
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.pipeline.filter import filter_labels
from voxstill.pipeline.index import index
from voxstill.pipeline.label import label_utterances
from voxstill.pipeline.shard import shard


def configured(source: Path, work: Path) -> Config:
    return config.load(None, [f"work={work}", f"source.uri={source}", "teacher=reference", "engine=inline"])


def test_tars_and_tables_of_another_corpus_in_the_source_are_left_out(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "recordings").mkdir(parents=True)
    for number in range(3):
        samples_T = np.random.default_rng(number).integers(-9000, 9000, 16_000).astype(np.int16)
        (source / "recordings" / f"{number}.wav").write_bytes(codec.encode(samples_T, "wav"))
        (source / "recordings" / f"{number}.txt").write_text("one two three")
    first = configured(source, source / "work")
    for step in (index, label_utterances, filter_labels, shard):
        step(first)
    assert index(configured(source, tmp_path / "other")).recordings == 3
    (source / "utterances").mkdir()  # a folder of audio may be called so
    (source / "recordings" / "0.wav").rename(source / "utterances" / "0.wav")
    assert index(configured(source, tmp_path / "third")).recordings == 3
