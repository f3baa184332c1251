"""Two commands on one work folder: the second is refused while the first works, and nothing is doubled."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from manifests import wav
from voxstill.core.config import Config, load
from voxstill.core.errors import StorageError
from voxstill.core.result import Result
from voxstill.indexing.recipe import utterances_recipe
from voxstill.labelling import label
from voxstill.pipeline import end_to_end, recipes
from voxstill.pipeline.filter import filter_labels
from voxstill.pipeline.index import index
from voxstill.pipeline.label import label_utterances
from voxstill.pipeline.shard import shard
from voxstill.storage import lease, workdir
from voxstill.storage.figures import IndexFigures, LabelFigures
from voxstill.storage.store import Store


def corpus(folder: Path, num: int) -> Path:
    folder.mkdir()
    rows = []
    for number in range(num):
        (folder / f"{number}.wav").write_bytes(wav(300 + 10 * number))
        rows.append({"audio": f"{number}.wav", "text": f"{number}", "speaker": str(number), "split": "train"})
    manifest = folder / "manifest.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return manifest


def configured(tmp_path: Path, num: int = 6) -> Config:
    manifest = corpus(tmp_path / "source", num)
    overrides = [f"work={tmp_path / 'work'}", f"source.uri={manifest}", "engine={name: inline, chunk: 2}"]
    return load(None, ["teacher=echo", *overrides], {})


def table_of(cfg: Config, step: str) -> str:
    """The table that a step writes next."""
    work = Store(cfg.work)
    if step == "index":
        return f"utterances/{utterances_recipe(cfg)}"
    labels = label.task(cfg.teacher, work)
    if step == "label":
        return labels.prefix
    indexed = workdir.finished(work, IndexFigures)
    labelled = workdir.finished(work, LabelFigures, labels.recipe)
    if step == "filter":
        return f"verdicts/{recipes.verdicts_recipe(cfg, indexed, labelled)}"
    return f"shards/{recipes.shard_recipe(cfg, recipes.finished_verdicts(cfg))}"


STEPS: dict[str, Callable[[Config], Result]] = {
    "index": index,
    "label": label_utterances,
    "filter": filter_labels,
    "shard": shard,
}


@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_refused_while_another_process_does_it(tmp_path: Path, step: str) -> None:
    cfg = configured(tmp_path)
    names = list(STEPS)
    for before in names[: names.index(step)]:
        STEPS[before](cfg)
    with (
        lease.hold(Store(cfg.work), table_of(cfg, step), step),
        pytest.raises(StorageError, match=f"runs `voxstill {step}` there since"),
    ):
        STEPS[step](cfg)
    first = STEPS[step](cfg).to_dict()
    assert STEPS[step](cfg).to_dict() == first


def test_two_indexes_and_two_labellings_at_once_double_nothing(tmp_path: Path) -> None:
    cfg = configured(tmp_path, 120)
    options = ["--json", "--set", "engine.name=inline", "--set", "teacher=echo"]
    for arguments, count in (
        (["index", str(tmp_path / "source/manifest.jsonl"), "--work", cfg.work], "utterances"),
        (["label", cfg.work], "labels"),
    ):
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "voxstill", *arguments, *options, "--set", f"engine.chunk={chunk}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for chunk in (7, 11)
        ]
        outputs = [process.communicate() for process in processes]
        assert sorted(process.returncode for process in processes) in ([0, 4], [0, 0]), outputs
        figures = [json.loads(out) for out, _ in outputs if out]
        assert all(row[count] == 120 for row in figures)
    assert filter_labels(cfg).judged == 120
    assert shard(cfg).utterances == 120


def test_a_demo_is_refused_while_another_one_makes_its_corpus(tmp_path: Path) -> None:
    with (
        lease.hold(Store(str(tmp_path / "corpus")), "corpus", "demo"),
        pytest.raises(StorageError, match="runs `voxstill demo` there since"),
    ):
        end_to_end.demo(Config(work=str(tmp_path)), str(tmp_path))
    assert not (tmp_path / "corpus/audio").exists()
