"""Written shards: the audio and labels to the bit, and whole again after any crash."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from voxstill.audio import codec
from voxstill.core.config import Shard
from voxstill.core.errors import StorageError
from voxstill.core.records import Label, Utterance, UtteranceInfo, Word
from voxstill.sharding import write
from voxstill.storage import tables
from voxstill.storage.fetch import read_uri
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store


def label(utterance_id: str, text: str) -> Label:
    words = (Word(text=text, start_ms=0, end_ms=50),)
    return Label(utterance_id=utterance_id, recipe="r", teacher="echo@1", text=text, words=words, language="en")


def tone(num_samples: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9000, 9000, num_samples).astype(np.int16)


def recording(folder: Path, name: str, num_samples: int, seed: int = 0) -> str:
    path = folder / name
    path.write_bytes(codec.encode(tone(num_samples, seed), "wav"))
    return str(path)


@pytest.mark.parametrize("form", ["flac", "wav"])
def test_what_is_written_is_the_audio_and_the_label_to_the_bit(tmp_path: Path, form: str) -> None:
    uri = recording(tmp_path, "long.wav", 16_000)
    ann = UtteranceInfo(speaker="ann")
    first = Utterance(id="x/1", recording_id="r", uri=uri, start_ms=0, end_ms=300, text="hidden", info=ann)
    second = Utterance(id="x/2", recording_id="r", uri=uri, start_ms=300, end_ms=1000, text="one", split="test")
    store, cfg = Store(str(tmp_path / "work")), Shard(format=form)  # type: ignore[arg-type]
    labels = {"x/1": label("x/1", "won")}
    counts = [write.write_shard(store, "s", i, [row], labels, cfg=cfg) for i, row in enumerate((first, second))]
    assert [(count.utterances, count.duration_ms, count.dropped) for count in counts] == [(1, 300, {}), (1, 700, {})]
    rows = [tables.from_parquet(store.read(f"s/0000{i}.parquet"), Sample)[0] for i in range(2)]
    assert rows[0].text == "won"
    assert rows[0].words == labels["x/1"].words
    assert (rows[0].reference, rows[0].teacher) == (None, "echo@1")
    assert rows[0].info == UtteranceInfo(speaker="ann", language="en")
    assert (rows[1].text, rows[1].reference, rows[1].split) == ("", "one", "test")
    for i, (row, start, end) in enumerate(zip(rows, (0, 4800), (4800, 16_000), strict=True)):
        samples_T = codec.decode(read_uri(f"{store.root}/s/0000{i}.tar#{row.offset}+{row.num_bytes}")).samples_T
        assert np.array_equal(samples_T, tone(16_000)[start:end])
        assert row.num_samples == end - start


def test_audio_that_is_not_what_it_was_is_a_counted_reason(tmp_path: Path) -> None:
    good = recording(tmp_path, "good.wav", 8000)
    (tmp_path / "text.wav").write_text("these are words")
    (tmp_path / "zeros.wav").write_bytes(codec.encode(np.zeros(8000, np.int16), "wav"))
    (tmp_path / "half.wav").write_bytes(codec.encode(np.concatenate([tone(4000), np.zeros(4000, np.int16)]), "wav"))
    utterances = [
        Utterance(id="good", recording_id="1", uri=good, end_ms=500),
        Utterance(id="text", recording_id="3", uri=str(tmp_path / "text.wav"), end_ms=500),
        Utterance(id="short", recording_id="1", uri=good, end_ms=900),
        Utterance(id="zeros", recording_id="4", uri=str(tmp_path / "zeros.wav"), end_ms=500),
        Utterance(id="half", recording_id="5", uri=str(tmp_path / "half.wav"), start_ms=250, end_ms=500),
        Utterance(id="channel", recording_id="1", uri=good, end_ms=500, channel=3),
    ]
    store = Store(str(tmp_path / "work"))
    written = write.write_shard(store, "s", 0, utterances, {}, cfg=Shard())
    assert written.utterances == 1
    assert written.dropped["shorter than when it was indexed"] == 1
    assert written.dropped["silent"] == 2
    assert sum(written.dropped.values()) == 5
    again = write.write_shard(store, "s", 0, utterances, {}, cfg=Shard())
    assert (again.utterances, sum(again.dropped.values())) == (1, 5)
    assert (again.duration_ms, again.num_bytes) == (written.duration_ms, written.num_bytes)
    assert write.written_shards(store, "s") == {0}


def test_audio_that_storage_does_not_give_fails_the_shard_and_drops_nothing(tmp_path: Path) -> None:
    utterances = [
        Utterance(id="a", recording_id="a", uri=recording(tmp_path, "a.wav", 8000), end_ms=500),
        Utterance(id="b", recording_id="b", uri=str(tmp_path / "b.wav"), end_ms=500),
    ]
    store = Store(str(tmp_path / "work"))
    with pytest.raises(StorageError, match=r"b\.wav"):
        write.write_shard(store, "s", 0, utterances, {}, cfg=Shard())
    assert not list(store.list("s"))
    recording(tmp_path, "b.wav", 8000)  # it is back
    assert write.write_shard(store, "s", 0, utterances, {}, cfg=Shard()).utterances == 2


def test_a_crash_between_tar_and_sidecar_leaves_nothing_behind(tmp_path: Path) -> None:
    uri = recording(tmp_path, "a.wav", 8000)
    utterances = [Utterance(id="a", recording_id="a", uri=uri, end_ms=500)]
    store, other = Store(str(tmp_path / "work")), Store(str(tmp_path / "other"))
    store.create("s/00000.tar", b"half a tar")
    for row in (store, other):
        write.write_shard(row, "s", 0, utterances, {}, cfg=Shard())
    for name in ("00000.tar", "00000.parquet"):
        assert store.read(f"s/{name}") == other.read(f"s/{name}")


def test_a_shard_that_is_there_is_never_written_again(tmp_path: Path) -> None:
    uri = recording(tmp_path, "a.wav", 8000)
    utterances = [Utterance(id="a", recording_id="a", uri=uri, end_ms=500)]
    store = Store(str(tmp_path / "work"))
    first = write.write_shard(store, "s", 0, utterances, {"a": label("a", "one")}, cfg=Shard())
    before = {row.key: store.read(row.key) for row in store.list("s")}
    second = write.write_shard(store, "s", 0, utterances, {"a": label("a", "two")}, cfg=Shard())
    assert {row.key: store.read(row.key) for row in store.list("s")} == before
    assert dataclasses.replace(second, index=0) == first


def test_the_weight_of_a_sample_is_that_of_the_manifest_times_the_confidence_of_its_label(tmp_path: Path) -> None:
    uri = recording(tmp_path, "a.wav", 8000)
    weights = {"plain": None, "half": 0.5, "unsure": None, "both": 0.5, "silent": 0.0}
    utterances = [Utterance(id=id_, recording_id="1", uri=uri, end_ms=500, weight=w) for id_, w in weights.items()]
    labels = {id_: label(id_, "won") for id_ in weights}
    for id_ in ("unsure", "both"):
        labels[id_] = dataclasses.replace(labels[id_], mean_logprob=float(np.log(0.25)))

    def written(prefix: str, exponent: float) -> dict[str, float]:
        store = Store(str(tmp_path / "work"))
        write.write_shard(store, prefix, 0, utterances, labels, cfg=Shard(confidence_weight=exponent))
        return {row.id: row.weight for row in tables.from_parquet(store.read(f"{prefix}/00000.parquet"), Sample)}

    manifest = {"plain": 1.0, "half": 0.5, "silent": 0.0}
    assert written("none", 0.0) == {**manifest, "unsure": 1.0, "both": 0.5}
    assert written("root", 0.5) == pytest.approx({**manifest, "unsure": 0.5, "both": 0.25})
    assert written("full", 1.0) == pytest.approx({**manifest, "unsure": 0.25, "both": 0.125})
