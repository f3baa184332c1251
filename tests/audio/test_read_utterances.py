"""Samples as the table says: from folders and buckets, each recording once, and never those of a changed file."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faulty_proxy import faulty_proxy
from servers import moto_server, s3_environment
from voxstill.audio import codec, read_utterances
from voxstill.audio.contents import ContentHashes
from voxstill.core import config
from voxstill.core.errors import ConfigError, DataError, StorageError
from voxstill.core.records import Utterance, content_hash, recording_id
from voxstill.indexing.segment import IndexRow
from voxstill.pipeline.index import index
from voxstill.storage import clients, tables
from voxstill.storage.cache import Cache
from voxstill.storage.fetch import Blob, fetch
from voxstill.storage.store import Store

RAMP_T = np.arange(16_000, dtype=np.int16)


def utterance(uri: Path, start_ms: int, end_ms: int, *, id_: str = "") -> Utterance:
    name = id_ or f"{uri.name}:{start_ms}"
    return Utterance(id=name, recording_id="r", uri=str(uri), start_ms=start_ms, end_ms=end_ms)


def test_every_utterance_has_its_samples_and_each_recording_is_decoded_once(tmp_path: Path) -> None:
    a, b = tmp_path / "a.wav", tmp_path / "b.wav"
    for path in (a, b):
        path.write_bytes(codec.encode(RAMP_T, "wav"))
    wanted = [utterance(a, 0, 300), utterance(b, 0, 1000), utterance(a, 300, 1000)]
    decoded: list[int] = []

    def decode(data: bytes, **more: Any) -> codec.Audio:
        decoded.append(len(data))
        return codec.decode(data, **more)

    results = {sample.id: samples_T for sample, samples_T in read_utterances.samples(wanted, None, decode)}
    assert results.keys() == {row.id for row in wanted}
    assert len(decoded) == 2
    assert np.array_equal(results["a.wav:0"], RAMP_T[:4800])
    assert np.array_equal(results["a.wav:300"], RAMP_T[4800:])
    assert np.array_equal(results["b.wav:0"], RAMP_T)


def test_missing_audio_is_an_error_of_its_utterances_alone(tmp_path: Path) -> None:
    short, bad = tmp_path / "short.wav", tmp_path / "bad.wav"
    short.write_bytes(codec.encode(RAMP_T[:8000], "wav"))
    bad.write_text("no audio")
    wanted = [
        utterance(short, 0, 500),
        utterance(short, 400, 600),
        utterance(bad, 0, 500),
        utterance(tmp_path / "gone.wav", 0, 500),
    ]
    results = {sample.id: answer for sample, answer in read_utterances.samples(wanted)}
    assert len(results["short.wav:0"]) == 8000  # type: ignore[arg-type]
    assert isinstance(results["short.wav:400"], DataError)
    assert "ends at 600 ms" in str(results["short.wav:400"])
    assert isinstance(results["bad.wav:0"], DataError)
    assert isinstance(results["gone.wav:0"], StorageError)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with moto_server("audio") as port, faulty_proxy(port, error=0.05, reset=0.05, cut=0.05) as line:
        for name, value in s3_environment(line.port).items():
            monkeypatch.setenv(name, value)
        clients.client.cache_clear()
        yield Store("s3://audio/in")
    clients.client.cache_clear()


def test_remote_objects_give_the_same_audio_and_a_bad_one_fails_alone(bucket: Store, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    audio = {f"{i}.wav": rng.integers(-999, 999, 1600 + i, dtype=np.int16) for i in range(30)}
    for name, samples_T in audio.items():
        bucket.replace(name, codec.encode(samples_T, "wav"))
    (tmp_path / "here.wav").write_bytes(codec.encode(RAMP_T, "wav"))
    here = utterance(tmp_path / "here.wav", 0, 1000)
    far = [Utterance(id=name, recording_id="r", uri=bucket.uri(name), end_ms=100) for name in [*audio, "gone.wav"]]
    for cache in (None, Cache(tmp_path / "cache", 10**7), Cache(tmp_path / "cache", 10**7)):
        results = {sample.id: answer for sample, answer in read_utterances.samples([*far[:10], here, *far[10:]], cache)}
        assert np.array_equal(results[here.id], RAMP_T)
        for name, samples_T in audio.items():
            whole = len(samples_T) < 1616  # what is left of a millisecond at the end belongs to it
            assert np.array_equal(results[name], samples_T if whole else samples_T[:1600])
        assert isinstance(results["gone.wav"], StorageError)


def indexed(blob: Blob) -> Utterance:
    return Utterance(
        id=blob.uri, recording_id=recording_id(blob.uri, blob.etag, blob.num_bytes), uri=blob.uri, end_ms=100
    )


def test_a_file_that_changed_since_indexing_is_an_error_even_at_the_same_length(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(codec.encode(RAMP_T, "wav"))
    wanted = indexed(fetch(str(path)))
    other = utterance(path, 0, 50)  # of somebody else's making: nothing to compare
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    results = {sample.id: answer for sample, answer in read_utterances.samples([wanted, other])}
    assert isinstance(results[wanted.id], DataError)
    assert results[wanted.id].what == "changed since it was indexed"  # type: ignore[union-attr]
    assert np.array_equal(results[other.id], RAMP_T[:800])
    path.write_text("no longer audio at all")
    assert [str(answer).splitlines()[0] for _, answer in read_utterances.samples([wanted])] == [
        "error: changed since it was indexed"
    ]
    path.write_bytes(codec.encode(RAMP_T, "wav"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert [len(answer) for _, answer in read_utterances.samples([wanted])] == [1600]  # type: ignore[arg-type]


def test_the_index_is_read_once_and_only_for_a_file_of_another_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, work = tmp_path / "a.wav", Store(str(tmp_path / "work"))
    path.write_bytes(codec.encode(RAMP_T, "wav"))
    wanted = indexed(fetch(str(path)))
    row = IndexRow(id=wanted.recording_id, uri=wanted.uri, content_hash=content_hash(path.read_bytes()))
    work.create("recordings/r/0.parquet", tables.to_parquet([row], IndexRow))
    num_reads = 0
    parts = tables.parts

    def counted(store: Store, prefix: str) -> list[str]:
        nonlocal num_reads
        num_reads += 1
        return parts(store, prefix)

    monkeypatch.setattr(tables, "parts", counted)
    contents = pickle.loads(pickle.dumps(ContentHashes(work.root)))

    def is_read() -> list[bool]:
        answers = read_utterances.samples([wanted], contents=contents)
        return [not isinstance(answer, DataError) for _, answer in answers]

    assert (is_read(), num_reads) == ([True], 0)
    for ns in (1, 2):
        os.utime(path, ns=(ns, ns))
        assert (is_read(), num_reads) == ([True], 1)
    path.write_bytes(codec.encode(RAMP_T[::-1].copy(), "wav"))
    assert (is_read(), num_reads) == ([False], 1)


def test_an_object_that_changed_since_it_was_listed_is_an_error(bucket: Store) -> None:
    bucket.replace("a.wav", codec.encode(RAMP_T, "wav"))
    (entry,) = bucket.list()
    uri = bucket.uri("a.wav")
    wanted = Utterance(id="u", recording_id=recording_id(uri, entry.etag, entry.num_bytes), uri=uri, end_ms=100)
    assert [len(answer) for _, answer in read_utterances.samples([wanted])] == [1600]  # type: ignore[arg-type]
    bucket.replace("a.wav", codec.encode(RAMP_T[::-1].copy(), "wav"))
    ((_, answer),) = read_utterances.samples([wanted])
    assert isinstance(answer, DataError)
    assert entry.etag not in answer.why


def test_a_file_is_called_changed_only_where_its_version_is_known() -> None:
    blob = Blob(uri="s3://b/k#5+4", data=b"1234", etag='"e"', num_bytes=100)
    for etag, num_bytes in (('"e"', 7), (None, 100), (None, 4), (None, 0)):
        assert read_utterances.changed(blob, recording_id(blob.uri, etag, num_bytes)) is None
    for id_ in ("my recording", "", "0123456789ABCDEF"):
        assert read_utterances.changed(blob, id_) is None
    assert read_utterances.changed(Blob(uri=blob.uri, data=b"", etag=None, num_bytes=9), "0" * 16) is None
    for etag, num_bytes in (('"f"', 100), (None, 101)):
        assert isinstance(read_utterances.changed(blob, recording_id(blob.uri, etag, num_bytes)), DataError)


def test_a_cache_that_cannot_be_written_ends_a_step_before_it_reads(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cfg = config.load(None, [f"work={tmp_path}/work", f"source.uri={tmp_path}", f"cache.folder={tmp_path}/file"])
    with pytest.raises(ConfigError, match=r"`cache\.folder`"):
        index(cfg)
