"""`segment.measure: header`: the same utterances from 512 bytes of each file in a bucket."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from faulty_proxy import FaultyProxy, faulty_proxy
from servers import reset_moto, s3_environment
from tones import speak
from voxstill.audio import codec, read_utterances
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.records import Utterance
from voxstill.indexing.recipe import utterances_recipe
from voxstill.indexing.segment import IndexRow
from voxstill.pipeline.index import index
from voxstill.storage import clients, tables
from voxstill.storage.store import Store


def encoded(form: str, rate_hz: int, num_channels: int, seconds: float, seed: int) -> bytes:
    file = io.BytesIO()
    noise_TC = np.random.default_rng(seed).normal(0, 0.1, (int(rate_hz * seconds), num_channels))
    soundfile.write(file, noise_TC, rate_hz, format=form)
    return file.getvalue()


@pytest.fixture(scope="module")
def bucket(s3_server: int) -> Iterator[FaultyProxy]:
    """A bucket behind a proxy that counts bytes, with files of many kinds."""
    kinds = [("flac", 16_000), ("wav", 16_000), ("wav", 8_000), ("flac", 44_100), ("wav", 48_000), ("flac", 22_050)]
    reset_moto(s3_server, "bucket")
    with faulty_proxy(s3_server) as proxy, pytest.MonkeyPatch.context() as patch:
        for name, value in s3_environment(proxy.port).items():
            patch.setenv(name, value)
        clients.client.cache_clear()
        for number, (form, rate_hz) in enumerate(kinds):
            Store("s3://bucket/audio").replace(f"{number}.{form}", encoded(form, rate_hz, 1, 2.0 + number, number))
        yield proxy
        clients.client.cache_clear()


def configured(folder: Path, measure: str) -> Config:
    source = "source={uri: s3://bucket/audio, dev_share: 0.0, test_share: 0.0}"
    options = [f"work={folder}/{measure}", source, f"segment.measure={measure}", "engine.name=inline", "teacher=echo"]
    return config.load(None, options)


def tables_of(cfg: Config) -> tuple[list[IndexRow], list[Utterance]]:
    work, recipe = Store(cfg.work), utterances_recipe(cfg)
    recordings = tables.read(work, f"recordings/{recipe}", IndexRow)
    utterances = tables.read(work, f"utterances/{recipe}", Utterance)
    return sorted(recordings, key=lambda row: row.uri), sorted(utterances, key=lambda row: row.uri)


def test_headers_give_the_recordings_and_utterances_of_decoding_for_a_few_bytes(
    bucket: FaultyProxy, tmp_path: Path
) -> None:
    decoded, by_header = (configured(tmp_path, measure) for measure in ("decode", "header"))
    index(decoded)
    before = bucket.num_bytes
    index(by_header)
    assert bucket.num_bytes - before < 20_000
    assert utterances_recipe(decoded) != utterances_recipe(by_header)
    for rows, others in zip(tables_of(decoded), tables_of(by_header), strict=True):
        for row, other in zip(rows, others, strict=True):
            lasts = "end_ms" if isinstance(row, Utterance) else "duration_ms"
            assert abs(getattr(row, lasts) - getattr(other, lasts)) <= 1
            names = ("id", "uri", "split") if isinstance(row, Utterance) else ("codec", "rate_hz", "num_bytes", "etag")
            assert [getattr(row, name) for name in names if name != "id"] == [
                getattr(other, name) for name in names if name != "id"
            ]
    audio = read_utterances.samples(tables_of(by_header)[1])
    assert all(isinstance(samples_T, np.ndarray) for _, samples_T in audio)


def test_what_must_be_heard_is_read_whole(bucket: FaultyProxy, tmp_path: Path) -> None:
    store = Store("s3://bucket/odd")
    store.replace("long.flac", codec.encode(np.tile(speak("ba du ko")[0], 30), "flac"))
    store.replace("stereo.wav", encoded("wav", 16_000, 2, 2.0, 9))
    store.replace("torn.wav", encoded("wav", 16_000, 1, 2.0, 10)[:-2000])
    store.replace("compressed.ogg", encoded("ogg", 16_000, 1, 2.0, 11))
    results = []
    for measure in ("decode", "header"):
        cfg = config.changed(configured(tmp_path, measure), "segment.max_ms=9000", "source.uri=s3://bucket/odd")
        index(cfg)
        recordings, utterances = tables_of(cfg)
        results.append(
            (
                [(row.uri, row.error) for row in recordings],
                [(row.uri, row.start_ms) for row in utterances],
            )
        )
    assert results[0] == results[1]
    assert next(error for uri, error in results[1][0] if "torn" in uri)


def test_a_tar_member_is_measured_in_its_range(bucket: FaultyProxy, tmp_path: Path) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in ("a", "b"):
            for ending, data in ((".flac", encoded("flac", 16_000, 1, 3.0, 1)), (".txt", b"one two")):
                info = tarfile.TarInfo(name + ending)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    Store("s3://bucket/tars").replace("x.tar", file.getvalue())
    cfg = config.changed(configured(tmp_path, "header"), "source.uri=s3://bucket/tars/x.tar")
    figures = index(cfg)
    assert (figures.utterances, figures.damaged) == (2, 0)
    recordings, utterances = tables_of(cfg)
    assert {row.duration_ms for row in recordings} == {3000}
    assert {row.num_bytes for row in recordings} == {len(encoded("flac", 16_000, 1, 3.0, 1))}
    assert [row.text for row in utterances] == ["one two", "one two"]
