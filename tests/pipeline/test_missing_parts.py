"""A finished table with a part gone, or another in its place, is refused by every step that reads it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import voxstill
from voxstill.audio import codec
from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.pipeline.plan import plan_
from voxstill.storage import parquet

NUM = 8

STEPS: dict[str, Callable[[Config], object]] = {
    "label": voxstill.label,
    "filter": voxstill.filter,
    "shard": voxstill.shard,
}

LATER = {"label": ("labels",), "filter": ("scores", "verdicts"), "shard": ("shards",)}
"""The tables that a step makes."""


def replace_by_another(part: Path) -> None:
    """Another part of the table in its place, whole."""
    other = max(part.parent.glob("*.parquet"))
    if other == part:  # a table of one part: the same rows in another order
        rows = pq.read_table(part)
        part.write_bytes(parquet.encode(rows.take(list(reversed(range(len(rows)))))))
    else:
        shutil.copy(other, part)


CHANGES: dict[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "empty": lambda part: part.write_bytes(b""),
    "another": replace_by_another,
    "added": lambda part: shutil.copy(part, part.with_name("ffffffffffffffff.parquet")),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder with several parts of each table, and what it was made of."""
    folder = tmp_path_factory.mktemp("finished")
    random = np.random.default_rng(0)
    (folder / "audio").mkdir()
    rows = []
    for number in range(NUM):
        samples_T = random.integers(-9000, 9000, 8_000).astype(np.int16)
        (folder / "audio" / f"{number}.wav").write_bytes(codec.encode(samples_T, "wav"))
        rows.append(
            {"audio": f"audio/{number}.wav", "text": f"text {number}", "split": "train", "speaker": str(number)}
        )
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cfg = config(folder)
    voxstill.index(cfg)
    for step in STEPS.values():
        step(cfg)
    return folder


def config(folder: Path, *more: str) -> Config:
    return voxstill.load_config(
        None,
        f"work={folder / 'work'}",
        f"source.uri={folder / 'manifest.jsonl'}",
        "teacher=reference",
        "engine=inline",
        "engine.chunk=1",
        *more,
    )


@pytest.mark.parametrize(
    ("table", "step"),
    [
        ("utterances", "label"),
        ("utterances", "filter"),
        ("labels", "filter"),
        ("scores", "filter"),
        ("verdicts", "shard"),
        ("labels", "shard"),
        ("utterances", "shard"),
    ],
)
@pytest.mark.parametrize("change", list(CHANGES))
def test_a_step_refuses_a_table_that_is_not_what_was_finished(
    finished: Path, table: str, step: str, change: str, tmp_path: Path
) -> None:
    if (table, step, change) == ("labels", "shard", "added"):
        pytest.skip("labels may be added while those that were judged are sharded")
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    work = tmp_path / "work"
    CHANGES[change](min((work / table).glob("*/*.parquet")))
    for later in LATER[step]:
        if later != table:
            shutil.rmtree(work / later)
    before = sorted(work.rglob("*_SUCCESS.json"))
    with pytest.raises(DataError) as caught:
        STEPS[step](config(tmp_path))
    assert caught.value.fix
    assert sorted(work.rglob("*_SUCCESS.json")) == before


def flipped(data: bytes) -> bytes:
    """One bit of a number is another."""
    place = data.index(f": {NUM}".encode()) + 2
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


MALFORMED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "no figures": lambda data: b"{}",
    "a list": lambda data: b"[]",
    "a number": lambda data: b"1",
    "no text": lambda data: b"\xff",
    "another recipe": lambda data: b'{"recipe": "x"}',
    "nested": lambda data: 50_000 * b"[",
    "cut": lambda data: data[: len(data) // 2],
    "other types": lambda data: json.dumps({**json.loads(data), "checksum": 0, "splits": 1, "options": 1}).encode(),
    "another number": flipped,
}
READERS: dict[str, tuple[str, Callable[[Config, Path], object]]] = {
    "label": ("utterances", lambda cfg, _: voxstill.label(cfg)),
    "label again": ("labels", lambda cfg, _: voxstill.label(cfg)),
    "filter": ("labels", lambda cfg, _: voxstill.filter(cfg)),
    "filter again": ("scores", lambda cfg, _: voxstill.filter(cfg)),
    "evaluate again": ("verdicts", lambda cfg, _: voxstill.filter(cfg)),
    "shard": ("verdicts", lambda cfg, _: voxstill.shard(cfg)),
    "shard again": ("shards", lambda cfg, _: voxstill.shard(cfg)),
    "plan": ("shards", lambda cfg, _: plan_(cfg.work, None, 0, cfg)),
    "export-labels": ("labels", lambda cfg, folder: voxstill.export_labels(cfg, str(folder / "labels.jsonl"))),
    "clean": ("shards", lambda cfg, _: voxstill.clean(cfg)),
    "remove": ("utterances", lambda cfg, _: voxstill.remove(cfg, ["no such id"])),
}


@pytest.mark.parametrize("malformed", list(MALFORMED))
@pytest.mark.parametrize("reader", list(READERS))
def test_malformed_figures_are_told_by_every_reader(
    finished: Path, reader: str, malformed: str, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    table, read = READERS[reader]
    (success,) = (tmp_path / "work" / table).glob("*/_SUCCESS.json")
    success.write_bytes(MALFORMED[malformed](success.read_bytes()))
    with pytest.raises(DataError) as caught:
        read(config(tmp_path), tmp_path)
    assert caught.value.why
    assert caught.value.fix
    broken = voxstill.verify(config(tmp_path).work, config(tmp_path)).broken
    assert str(success.relative_to(tmp_path / "work")) in {row.path for row in broken}


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"{}")])
@pytest.mark.parametrize(("table", "step"), [("utterances", "label"), ("labels", "filter"), ("verdicts", "shard")])
def test_a_lost_or_malformed_manifest_is_told(
    finished: Path, table: str, step: str, damage: Callable[[Path], object], tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    for later in LATER[step]:
        shutil.rmtree(tmp_path / "work" / later)
    (manifest,) = (tmp_path / "work" / table).glob("*/_manifest")
    damage(manifest)
    with pytest.raises(DataError) as caught:
        STEPS[step](config(tmp_path))
    assert "voxstill verify" in caught.value.fix


def test_a_copy_of_a_work_folder_is_read_by_its_checksums(finished: Path, tmp_path: Path) -> None:
    """Every file has another etag there."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    for part in (tmp_path / "work").rglob("*.parquet"):
        os.utime(part, (1, 1))
    shutil.rmtree(tmp_path / "work" / "shards")
    assert voxstill.shard(config(tmp_path)).utterances == NUM
    assert voxstill.verify(config(tmp_path).work, config(tmp_path)).broken == []
