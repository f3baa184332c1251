"""A finished table with a part gone, or another in its place, is refused by every step that reads it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import voxstill
from voxstill.audio import codec
from voxstill.core.config import Config
from voxstill.core.errors import DataError

STEPS: dict[str, Callable[[Config], object]] = {
    "label": voxstill.label,
    "filter": voxstill.filter,
    "shard": voxstill.shard,
}

LATER = {"label": ("labels",), "filter": ("scores", "verdicts"), "shard": ("shards",)}
"""The tables that a step makes."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder with several parts of each table, and what it was made of."""
    folder = tmp_path_factory.mktemp("finished")
    random = np.random.default_rng(0)
    (folder / "audio").mkdir()
    rows = []
    for number in range(20):
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
@pytest.mark.parametrize("change", ["gone", "empty"])
def test_a_step_refuses_a_table_that_is_not_what_was_finished(
    finished: Path, table: str, step: str, change: str, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    work = tmp_path / "work"
    first = min((work / table).glob("*/*.parquet"))
    first.unlink() if change == "gone" else first.write_bytes(b"")
    for later in LATER[step]:
        if later != table:
            shutil.rmtree(work / later)
    before = sorted(work.rglob("*_SUCCESS.json"))
    with pytest.raises(DataError) as caught:
        STEPS[step](config(tmp_path))
    assert caught.value.fix
    assert sorted(work.rglob("*_SUCCESS.json")) == before


@pytest.mark.parametrize("table", ["utterances", "labels", "verdicts"])
@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"1", b"\xff", b'{"recipe": "x"}', 50_000 * b"["])
def test_malformed_success_files_are_named(finished: Path, table: str, content: bytes, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    work = tmp_path / "work"
    shutil.rmtree(work / "shards")
    (success,) = (work / table).glob("*/_SUCCESS.json")
    success.write_bytes(content)
    with pytest.raises(DataError):
        voxstill.shard(config(tmp_path))
