"""Levels and channels from the index to the shards: one decision, kept in the row, that every step reads by."""

from __future__ import annotations

import json
import logging
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import soundfile
from numpy.typing import NDArray

from voxstill.audio import codec, read_utterances
from voxstill.core.config import Config
from voxstill.core.records import Utterance
from voxstill.indexing.segment import IndexRow
from voxstill.pipeline import index as indexing
from voxstill.pipeline.filter import filter_labels
from voxstill.pipeline.label import label_utterances
from voxstill.pipeline.shard import shard
from voxstill.storage import tables, workdir
from voxstill.storage.figures import IndexFigures
from voxstill.storage.store import Store

Float = NDArray[np.float32]


def noise(peak: float, seed: int = 0) -> Float:
    return np.random.default_rng(seed).uniform(-peak, peak, 48_000).astype(np.float32)


def write(folder: Path, subtype: str = "FLOAT", **samples: Float) -> None:
    for name, samples_T in samples.items():
        soundfile.write(folder / f"{name}.wav", samples_T, 16_000, subtype=subtype)


def config(folder: Path, **options: Any) -> Config:
    names = sorted(path.name for path in folder.glob("*.wav"))
    rows = "".join(json.dumps({"audio": name, "id": name, "text": name}) + "\n" for name in names)
    (folder / "m.jsonl").write_text(rows)
    source = {"uri": str(folder / "m.jsonl"), "dev_share": 0, "test_share": 0, **options.pop("source", {})}
    tree = {
        "work": str(folder / "work"),
        "source": source,
        "engine": {"name": "inline"},
        "teacher": "reference",
        "filter": {"min_chars_per_s": 0, "max_chars_per_s": 1e9},
    }
    return Config.model_validate(tree | options)


def rows_of(cfg: Config, kind: Any, figures: IndexFigures) -> list[Any]:
    table = "utterances" if kind is Utterance else "recordings"
    return sorted(tables.read(Store(cfg.work), f"{table}/{figures.recipe}", kind), key=lambda row: row.uri)


def in_shards(cfg: Config) -> dict[str, NDArray[np.int16]]:
    audio = {}
    for path in Path(cfg.work, "shards").rglob("*.tar"):
        with tarfile.open(path) as tar:
            for member in tar:
                if member.name.endswith(".flac"):
                    file = tar.extractfile(member)
                    assert file is not None
                    audio[member.name.removesuffix(".flac")] = codec.decode(file.read()).samples_T
    return audio


@pytest.mark.parametrize("target", ["none", "peak", "rms", "loudness"])
def test_labels_and_shards_are_of_the_same_samples(target: str, tmp_path: Path) -> None:
    write(tmp_path, "PCM_24", quiet=noise(0.001))
    write(tmp_path, "FLOAT", loud=noise(2.0, 2), opposite=np.stack([noise(0.1, 3), -noise(0.1, 3)], axis=1))
    write(tmp_path, "PCM_16", plain=noise(0.3, 4), stereo=np.stack([noise(0.2, 5), noise(0.3, 6)], axis=1))
    cfg = config(tmp_path, audio={"normalize": target})
    utterances = rows_of(cfg, Utterance, indexing.index(cfg))
    assert [Path(row.uri).stem for row in utterances] == ["loud", "opposite", "plain", "quiet", "stereo"]
    assert {row.channel for row in utterances} == {None}
    assert all((row.gain_db is None) == (target == "none") for row in utterances)
    stage = read_utterances.Decode(read_utterances.reading(cfg))
    stage.open()
    labelled = stage(utterances, None)
    stage.close()
    assert labelled.errors == (None,) * 5
    label_utterances(cfg)
    filter_labels(cfg)
    assert shard(cfg).utterances == 5
    sharded = in_shards(cfg)
    assert len(sharded) == 5
    for place, row in enumerate(utterances):
        data = Path(row.uri).read_bytes()
        gain = "none" if row.gain_db is None else row.gain_db
        np.testing.assert_array_equal(
            labelled.samples_of(place), codec.decode(data, channel=row.channel, gain=gain).samples_T
        )
        [same] = [audio_T for audio_T in sharded.values() if np.array_equal(audio_T, labelled.samples_of(place))]
        num_levels, num_clipped = len(np.unique(same)), np.count_nonzero(np.abs(same.astype(np.int32)) >= 32767)
        assert (num_clipped > 0) == (target == "none" and "loud" in row.uri)
        if target == "peak":
            assert num_levels > 10_000


def test_recordings_that_are_clipped_or_off_centre_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "FLOAT", loud=noise(1.1), offset=noise(0.1) + np.float32(0.05), good=noise(0.5))
    cfg = config(tmp_path)
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "voxstill"):
            figures = indexing.index(cfg)
        assert (figures.clipped, figures.dc_offset, figures.to_dict()["clipped"]) == (1, 1, 1)
        text = caplog.text
        assert "1 recordings have more than 0.1 % of their samples at or beyond full scale: `audio.normalize" in text
        assert "1 recordings have a DC offset of more than 1 % of full scale: a high-pass filter" in text
    good, loud, offset = rows_of(cfg, IndexRow, figures)
    assert (good.clipped, offset.clipped) == (0.0, 0.0)
    assert loud.clipped == pytest.approx(0.09, abs=0.01)
    assert offset.dc_offset == pytest.approx(0.05, abs=0.001)
    write(tmp_path, "FLOAT", more=noise(1.1, 1))  # the bytes of no other: those of equal samples differ by the clock
    caplog.clear()
    assert indexing.index(config(tmp_path, audio={"normalize": "peak"})).clipped == 2
    assert "float files keep what is beyond it" in caplog.text


def test_tables_without_levels_are_read_as_before(tmp_path: Path) -> None:
    write(tmp_path, "PCM_16", first=noise(0.9))
    figures = indexing.index(config(tmp_path))
    for path in Path(tmp_path, "work").rglob("*.parquet"):
        rows = pq.read_table(path)
        kept = [name for name in rows.column_names if name not in ("gain_db", "clipped", "dc_offset")]
        assert len(kept) in (len(rows.column_names) - 1, len(rows.column_names) - 2)
        pq.write_table(rows.select(kept), path)
    write(tmp_path, "PCM_16", second=noise(0.9, 1))
    again = indexing.index(config(tmp_path))
    assert (again.recipe, again.recordings) == (figures.recipe, 2)
    first, second = rows_of(config(tmp_path), Utterance, again)
    assert (first.gain_db, second.gain_db) == (None, None)
    assert [row.clipped for row in rows_of(config(tmp_path), IndexRow, again)] == [None, 0.0]
    assert workdir.finished(Store(str(tmp_path / "work")), IndexFigures).recordings == 2


def test_what_is_normalized_cannot_stay_in_its_tar(tmp_path: Path) -> None:
    write(tmp_path, "PCM_16", a=noise(0.1))
    (tmp_path / "a.txt").write_text("a")
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        for name in ("a.wav", "a.txt"):
            tar.add(tmp_path / name, name)
    options = {"source": {"uri": str(tmp_path / "t.tar")}, "shard": {"format": "in_place"}}
    cfg = config(tmp_path, audio={"normalize": "peak"}, **options)
    indexing.index(cfg)
    label_utterances(cfg)
    filter_labels(cfg)
    with pytest.raises(Exception, match="cannot be used in place"):
        shard(cfg)
