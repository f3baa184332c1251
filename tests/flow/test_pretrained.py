"""From audio without labels to a student that starts from what was heard in it, by the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("narrow_students")

Command = Callable[..., dict[str, Any]]
METHODS = {
    "wav2vec2": {"size": "tiny", "mask_ms": 100},
    "best_rq": {"mask_ms": 160, "min_masks": 1, "codes": 64},
}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_student_starts_from_a_pre_training_on_unlabelled_audio(
    digits: Path, voxstill: Command, configure: Callable[..., Path], tmp_path: Path, method: str
) -> None:
    source, work = digits / "manifest.jsonl", tmp_path / "work"
    train = {"seed_mode": "debug", "loader_workers": 0, "root": str(tmp_path / "exp"), "name": "heard", "steps": 6}
    pretrain = {"method": method, "crop_ms": 3000, **METHODS[method]}
    config = configure(tmp_path, source, pretrain=pretrain, train=train)
    voxstill("index", source, "--work", work, "--config", config)
    pretrained = voxstill("pretrain", config)
    assert {"path", "steps", "seconds", "loss", "dev_loss"} <= pretrained.keys()
    assert pretrained["utterances"] == 16  # of those of the training split all, though none has a label
    assert voxstill("pretrain", config) == pretrained
    student = {"checkpoint": f"{pretrained['path']}/model", "units": "character"}
    config.write_text(json.dumps(json.loads(config.read_text()) | {"student": student}))
    summary = voxstill("run", config, "--set", "train.name=student")
    assert summary["student"]["wer"] is not None
