"""The line with its audio and its tables in a bucket: the student learnt there is the student learnt here,
and each is brought to where it was asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from voxstill.storage.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("narrow_students")]


def test_training_from_a_bucket_gives_the_same_weights(
    digits: Path,
    configure: Callable[..., Path],
    voxstill: Callable[..., dict[str, Any]],
    tmp_path: Path,
    s3: Store,
) -> None:
    for path in digits.iterdir():
        s3.replace(f"audio/{path.name}", path.read_bytes())
    learnt = []
    for place in ("here", "far"):
        folder = tmp_path / place
        folder.mkdir()
        source = str(digits / "manifest.jsonl") if place == "here" else "s3://bucket/audio/manifest.jsonl"
        work = str(folder / "work") if place == "here" else "s3://bucket/work"
        upload = str(folder / "students") if place == "here" else "s3://bucket/students"
        train = {"steps": 6, "seed_mode": "debug", "loader_workers": int(place == "far")}
        train |= {"root": str(folder / "exp"), "upload": upload}
        plan = {"budget_ms": 8000, "layout": "remote", "window": 6}
        config = configure(folder, digits / "manifest.jsonl", train=train, plan=plan)
        at = ("--set", f"source.uri={source}", "--set", f"work={work}")
        voxstill("index", source, "--work", work, "--config", config)
        for step in ("label", "filter", "shard"):
            voxstill(step, work, "--config", config, *at)
        trained = voxstill("train", config, *at)
        assert trained["replaced"] == 0
        run = Path(trained["path"])
        learnt.append((run / "model/model.safetensors").read_bytes())
        students = Store(upload)
        assert voxstill("train", config, *at) == trained  # nothing is to do, there neither
        uploaded = students.read_json(f"{run.name}/_SUCCESS.json") or {}
        assert uploaded.keys() >= {"config.yaml", "environment.json", "metrics.jsonl", "summary.json", "train.log"}
        for name in uploaded:
            assert students.read(f"{run.name}/{name}") == (run / name).read_bytes()
        assert {name.removeprefix("model/") for name in uploaded if "/" in name} == {
            p.name for p in run.glob("model/*")
        }
        assert not list(folder.glob("exp/*/corpus"))
    assert learnt[0] == learnt[1]
