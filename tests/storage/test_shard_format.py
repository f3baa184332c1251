"""The shard format: any WebDataset reader reads it, and the sidecar alone is enough for voxstill."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import asdict

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from voxstill.core.errors import DataError
from voxstill.core.records import Split, UtteranceInfo, Word
from voxstill.storage import shard_format, tables
from voxstill.storage.fetch import read_uri
from voxstill.storage.figures import ShardFigures
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store

AWKWARD = [
    "a/b",
    "x.y.z",
    "..",
    ".",
    "",
    "ümlaut 语音",
    "n" * 300,
    "n" * 301,
    "~",
    "%2E",
    "a%2Eb",
    "a.b",
    "A",
    "a",
    "_",
    " \n",
]


def sample(sample_id: str, **fields: object) -> Sample:
    return Sample(id=sample_id, duration_ms=10, num_samples=160, **fields)  # type: ignore[arg-type]


def as_webdataset(data: bytes) -> dict[str, dict[str, bytes]]:
    """What a WebDataset reader sees: members grouped by all before the first dot of the base name."""
    groups: dict[str, dict[str, bytes]] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            assert member.isfile()
            folder, _, base = member.name.rpartition("/")
            key, _, ending = base.partition(".")
            file = tar.extractfile(member)
            assert file is not None
            groups.setdefault(f"{folder}/{key}", {})[ending] = file.read()
    return groups


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=120), st.binary(max_size=2000)), unique_by=lambda item: item[0]))
@example([(item, item.encode()) for item in AWKWARD])
def test_every_sample_is_one_webdataset_group_with_its_true_id_whatever_its_characters(
    pairs: list[tuple[str, bytes]],
) -> None:
    pairs = [(name.encode("utf-8", "replace").decode(), audio) for name, audio in pairs]
    pairs = list(dict(pairs).items())
    file = io.BytesIO()
    rows = shard_format.write(file, [(sample(name), audio) for name, audio in pairs])
    groups = list(as_webdataset(file.getvalue()).values())
    assert [set(group) for group in groups] == [{"flac", "json"}] * len(pairs)
    assert [(json.loads(group["json"])["id"], group["flac"]) for group in groups] == pairs
    for row, (_, audio) in zip(rows, pairs, strict=True):
        assert file.getvalue()[row.offset : row.offset + row.num_bytes] == audio


@given(st.text(max_size=200), st.text(max_size=200))
def test_different_ids_have_different_keys_without_dot_or_slash(one: str, two: str) -> None:
    one, two = (text.encode("utf-8", "replace").decode() for text in (one, two))
    assert (shard_format.key_of(one) == shard_format.key_of(two)) == (one == two)
    assert shard_format.key_of(one)
    assert not set(shard_format.key_of(one)) & set("./\\ ")
    assert len(shard_format.key_of(one)) <= 80


def test_equal_samples_give_equal_bytes_without_owner_or_time() -> None:
    files = [io.BytesIO(), io.BytesIO()]
    for file in files:
        shard_format.write(file, [(sample("one"), b"audio"), (sample("two"), b"more")])
    assert files[0].getvalue() == files[1].getvalue()
    assert len(files[0].getvalue()) % tarfile.RECORDSIZE == 0
    with tarfile.open(fileobj=io.BytesIO(files[0].getvalue())) as tar:
        assert {(member.mtime, member.uid, member.gid, member.uname, member.mode) for member in tar} == {
            (0, 0, 0, "", 0o644)
        }


def test_the_offset_is_that_of_the_data_in_the_tar() -> None:
    file = io.BytesIO()
    rows = shard_format.write(file, [(sample(f"{i}" * (i + 1)), bytes([i]) * i * 300) for i in range(5)])
    with tarfile.open(fileobj=io.BytesIO(file.getvalue())) as tar:
        audio = [member for member in tar if member.name.endswith(".flac")]
    assert [(row.offset, row.num_bytes) for row in rows] == [(member.offset_data, member.size) for member in audio]


def test_the_json_has_all_that_is_known_but_where_the_audio_is_stored() -> None:
    file = io.BytesIO()
    info = UtteranceInfo(dialect="sud")
    known = sample("x", text="où", words=(Word(text="où", start_ms=1, end_ms=9, prob=0.5),), info=info, split="dev")
    shard_format.write(file, [(known, b"")])
    (group,) = as_webdataset(file.getvalue()).values()
    expected = {**asdict(known), **asdict(info)}
    expected.pop("info")
    for name in ("format", "tar", "offset", "num_bytes", "crc32", "cut_from"):
        expected.pop(name)
    assert json.loads(group["json"]) == json.loads(json.dumps(expected))


def put(store: Store, index: int, samples: list[tuple[Sample, bytes]]) -> list[Sample]:
    file = io.BytesIO()
    rows = shard_format.write(file, samples)
    store.create(f"s/{shard_format.tar_name(index)}", file.getvalue())
    store.create(f"s/{shard_format.sidecar_name(index)}", tables.to_parquet(rows, Sample))
    return rows


def index_of(store: Store, prefix: str, splits: Sequence[Split] | None = None) -> pa.Table:
    return pa.concat_tables(shard_format.sidecars(store, prefix, splits))


def test_the_index_has_every_row_of_the_splits_asked_for_and_the_number_of_its_tar() -> None:
    store = Store("memory://test-index-splits")
    put(store, 0, [(sample("a", text="eins", split="train"), b"1"), (sample("b"), b"22")])
    (row,) = put(store, 1, [(sample("c", split="dev"), b"333")])
    put(store, 2, [])
    shard_format.finish(store, "s", ShardFigures(shards=3, utterances=3))
    assert index_of(store, "s")["id"].to_pylist() == ["a", "b", "c"]
    train = index_of(store, "s", ("train",))
    assert (train["text"].to_pylist(), train["shard"].to_pylist()) == (["eins", ""], [0, 0])
    assert index_of(store, "s", ("dev",))["shard"].to_pylist() == [1]
    assert index_of(store, "s", ("test",)).num_rows == 0
    assert read_uri(f"{store.uri('s/00001.tar')}#{row.offset}+{row.num_bytes}") == b"333"


def test_unfinished_shards_are_refused_with_what_to_do() -> None:
    store = Store("memory://test-index-unfinished")
    put(store, 0, [(sample("a"), b"1")])
    with pytest.raises(DataError, match="not finished") as caught:
        index_of(store, "s")
    assert "voxstill shard" in caught.value.fix


def test_shards_that_are_not_those_counted_are_refused() -> None:
    store = Store("memory://test-index-changed")
    put(store, 0, [(sample("a"), b"1")])
    shard_format.finish(store, "s", ShardFigures(shards=1, utterances=2))
    with pytest.raises(DataError, match="have changed"):
        index_of(store, "s")


def test_a_torn_sidecar_is_named() -> None:
    store = Store("memory://test-index-torn")
    store.create("s/00000.parquet", b"PAR1 and no more")
    shard_format.finish(store, "s", ShardFigures(shards=1, utterances=2))
    with pytest.raises(DataError, match=r"00000\.parquet"):
        index_of(store, "s")
