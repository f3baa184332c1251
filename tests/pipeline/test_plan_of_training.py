"""`voxstill plan` shows the batches that `voxstill train` and `voxstill pretrain` make, of every task and kind."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkpoints import write_whisper_checkpoint
from forked import call, command, finish, start, torchrun_variables
from tasks.tagging import TAGGING
from tones import speak, write_shards, write_voices
from training import train_once
from voxstill import cli
from voxstill.audio import codec
from voxstill.core import config
from voxstill.core.errors import ConfigError, DataError
from voxstill.pipeline.plan import PlanResult, plan_
from voxstill.storage import tables
from voxstill.storage.rundir import RunDir
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store
from voxstill.tasks import registry

STEPS = "train.steps=2"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three voices to learn from and another to judge by."""
    folder = tmp_path_factory.mktemp("work")
    write_voices(Store(str(folder)), "shards/r", {"train": ("ann", "cas", "eve"), "dev": ("bob",)}, 3, unknown=3)
    return folder


def planned(work: Path, shared: tuple[str, ...], *overrides: str, pretrain: bool = False) -> PlanResult:
    cfg = config.load(None, [f"work={work}", *train_once.SETTINGS, *shared, *overrides])
    return plan_(f"{work}/shards/r", None, 0, cfg, pretrain=pretrain)


def assert_alike(result: PlanResult, run: Path) -> None:
    assert json.loads(RunDir(run).environment.read_text())["plan_hash"] == result.sha256
    summary = json.loads(RunDir(run).summary.read_text())
    assert summary["utterances"] == result.utterances
    assert summary["dropped"] == result.dropped
    assert result.notes == ()
    sizes = f"{result.steps:,} steps an epoch, {result.padding:.1%} padding"
    log = RunDir(run).log.read_text()
    assert sizes in log
    assert ("utterances are in no batch" in log) == bool(sum(result.dropped.values()))


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("plan.batches_per_step=4",),
        ("train.devices=2", "plan.batches_per_step=2"),
        ("student.units=character", "plan.budget_tokens=8"),
        ("plan.layout=remote", "plan.window=8"),
        ("augment.tempo=0",),
        ("student.kind=rnnt",),
    ],
)
def test_the_plan_of_a_recogniser_is_that_of_its_training(
    work: Path, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    result = planned(work, train_once.OF_STUDENT, *overrides)
    run = tmp_path / "run"
    if "train.devices=2" in overrides:
        call(train_once.train_once, str(work), str(run), STEPS, *overrides, log=tmp_path / "log", ranks=2)
    else:
        train_once.train_once(str(work), str(run), STEPS, *overrides)
    assert_alike(result, run)


def test_what_ctc_cannot_learn_is_dropped_in_the_plan_too(tmp_path: Path) -> None:
    write_shards(Store(str(tmp_path / "work")), "shards/r", {"train": 24, "dev": 4})
    # eight times the tones in the time of one: more characters than frames
    spelled = ("student.units=character", "student.text=none")
    store = Store(str(tmp_path / "work"))
    lengthen_texts(store, "shards/r/00000.parquet", 3)
    result = planned(tmp_path / "work", train_once.OF_STUDENT, *spelled)
    assert result.dropped["too_short_for_ctc"] == 3
    train_once.train_once(str(tmp_path / "work"), str(tmp_path / "run"), STEPS, *spelled)
    assert_alike(result, tmp_path / "run")


def lengthen_texts(store: Store, key: str, num: int) -> None:
    """Give the first utterances a text that nobody says so fast."""
    rows = tables.from_parquet(store.read(key), Sample)
    rows[:num] = [replace(row, text="ba du ko mi " * 20, words=()) for row in rows[:num]]
    store.replace(key, tables.to_parquet(rows, Sample))


def test_the_plan_of_a_whisper_has_its_limits(work: Path, tmp_path: Path) -> None:
    folder = write_whisper_checkpoint(tmp_path / "checkpoint", ["ba du ko mi"])
    overrides = (f"student.checkpoint={folder}", "student.kind=seq2seq", "plan.budget_ms=60000")
    result = planned(work, train_once.OF_STUDENT, *overrides)
    train_once.train_once(str(work), str(tmp_path / "run"), STEPS, *overrides)
    assert_alike(result, tmp_path / "run")


@pytest.mark.parametrize(
    "overrides",
    [
        ("student.target=text",),
        ("student.target=speaker",),
        ("student.task=speakers", "augment.tempo=0.1"),
    ],
)
def test_the_plan_of_a_classifier_is_that_of_its_training(
    work: Path, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    result = planned(work, train_once.OF_CLASSES, *overrides)
    assert "without_a_class" in result.dropped
    train_once.classify_once(str(work), str(tmp_path), STEPS, *overrides)
    assert_alike(result, tmp_path)


@pytest.mark.parametrize("method", ["wav2vec2", "best_rq"])
def test_the_plan_of_a_pre_training_has_its_crops(work: Path, tmp_path: Path, method: str) -> None:
    chosen = f"pretrain={{method: {method}, size: tiny, crop_ms: 600, mask_ms: 100, min_masks: 1}}"
    result = planned(work, train_once.OF_PRETRAINING, chosen, pretrain=True)
    train_once.pretrain_once(str(work), str(tmp_path), STEPS, chosen)
    assert_alike(result, tmp_path)


def test_utterances_too_short_to_mask_are_counted_and_the_log_warns_where_they_are_many(
    work: Path, tmp_path: Path
) -> None:
    chosen = "pretrain={method: best_rq, crop_ms: 600, mask_ms: 160, min_masks: 2}"
    result = planned(work, train_once.OF_PRETRAINING, chosen, pretrain=True)
    too_short = result.dropped["too_short_to_mask"]
    assert 0 < result.utterances < 9 * too_short
    train_once.pretrain_once(str(work), str(tmp_path), STEPS, chosen)
    assert_alike(result, tmp_path)
    num = result.utterances + too_short
    warning = f"WARNING train: {too_short} of {num} utterances are in no batch: {too_short} are too short to mask"
    assert warning in RunDir(tmp_path).log.read_text()
    with pytest.raises(DataError, match="no utterance is long enough") as caught:
        planned(work, train_once.OF_PRETRAINING, "pretrain={method: best_rq, crop_ms: 600}", pretrain=True)
    assert "pretrain.mask_ms" in str(caught.value.fix)


def test_a_pre_training_that_would_be_refused_has_no_plan(work: Path) -> None:
    with pytest.raises(ConfigError, match="crop_ms"):
        planned(work, (), "plan.budget_ms=1000", pretrain=True)


def test_ranks_are_the_devices_where_nobody_says_otherwise(work: Path) -> None:
    result = planned(work, train_once.OF_STUDENT, "train.devices=4")
    assert (result.ranks, result.slots) == (4, 4)
    cfg = config.load(None, list(train_once.OF_STUDENT))
    assert plan_(f"{work}/shards/r", 4, 0, cfg).sha256 == planned(work, train_once.OF_STUDENT, "train.devices=4").sha256


def test_a_preset_is_in_the_plan(work: Path) -> None:
    preset = ("student.task=classes", "train.preset=fine_tune", "plan.max_utterances=4")
    result = planned(work, (), *preset)
    assert result.plan is not None
    assert max(result.plan.bounds[1:] - result.plan.bounds[:-1]) <= 4
    with_preset = planned(work, (), "student.task=classes", "train.preset=fine_tune", "plan.budget_ms=600000")
    without = planned(work, (), "student.task=classes", "plan={budget_ms: 600000, max_utterances: 64}")
    assert with_preset.sha256 == without.sha256


def test_what_cannot_be_known_before_is_said(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = config.load(None, [*train_once.OF_STUDENT, "train.max_minutes=5"])
    second = plan_(f"{work}/shards/r", None, 1, cfg)
    assert "the training time" in second.notes[0]
    assert f"note: {second.notes[0]}" in second.to_text()
    assert plan_(f"{work}/shards/r", None, 0, cfg).notes == ()
    monkeypatch.setattr(registry, "find", lambda _: TAGGING)  # a task of another package, which knows no plans
    assert "lengths as recorded" in plan_(f"{work}/shards/r", None, 0, cfg).notes[0]
    shutil.copy(work / "shards/r/00000.parquet", work / "lengths.parquet")
    assert "lengths as recorded" in plan_(f"{work}/lengths.parquet", None, 0, cfg).notes[0]


def test_a_work_folder_is_planned_as_it_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for i, text in enumerate(("ba du", "ko", "mi ba ko", "du mi") * 4):
        (tmp_path / f"{i}.flac").write_bytes(codec.encode(speak(text, i)[0], "flac"))
        rows.append({"audio": f"{i}.flac", "text": text, "speaker": "ab"[i % 2], "split": "train" if i % 8 else "dev"})
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    work = str(tmp_path / "work")
    options = ["engine=inline", "train.steps=1", "train.loader_workers=0", "plan.budget_ms=5000"]
    sets = [word for option in (*options, f"work={work}", f"train.root={tmp_path}/exp") for word in ("--set", option)]
    (tmp_path / "my.yaml").write_text("")

    def run(*words: str) -> dict[str, Any]:
        capsys.readouterr()
        assert cli.main([*words, "--json", *sets]) == 0
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    def run_on_two_ranks(*words: str) -> dict[str, Any]:
        ranks = [
            start(
                command,
                [*words, "--json", *sets],
                log=tmp_path / "log",
                output=tmp_path / name,
                environment=os.environ | more,
            )
            for name, more in zip(("first", "second"), torchrun_variables(2), strict=True)
        ]
        finish(*ranks, log=tmp_path / "log")
        result: dict[str, Any] = json.loads((tmp_path / "first").read_text())
        return result

    run("shard", work, "--from", str(tmp_path / "all.jsonl"))
    for task, devices in (("recognition", 2), ("speakers", 1)):
        sets += ["--set", f"student.task={task}", "--set", f"train.devices={devices}"]
        train = run_on_two_ranks if devices == 2 else run
        result, trained = run("plan", work), train("train", str(tmp_path / "my.yaml"))
        assert result["ranks"] == result["slots"] == devices
        assert result["dropped"] == trained["dropped"]
        environment = json.loads((Path(trained["path"]) / "environment.json").read_text())
        assert environment["plan_hash"] == result["sha256"]


def test_later_epochs_are_those_of_the_training(work: Path) -> None:
    shared = [*train_once.OF_STUDENT, "train.epochs=4"]
    cfg = config.load(None, [*shared, "train.ascending_share=0.5"])
    cfg_without = config.load(None, [*shared, "train.ascending_share=0.2"])
    by_length = plan_(f"{work}/shards/r", None, 1, cfg).plan
    assert by_length is not None
    first = by_length.augmented_ms()[by_length.bounds[:-1]]
    assert list(first) == sorted(first)
    assert plan_(f"{work}/shards/r", None, 1, cfg_without).sha256 != by_length.sha256()


@pytest.mark.parametrize("task", ["recognition", "speakers"])
def test_a_plan_of_shards_that_are_not_finished_writes_none(tmp_path: Path, work: Path, task: str) -> None:
    (tmp_path / "shards/r").mkdir(parents=True)
    shutil.copy(work / "shards/r/00000.parquet", tmp_path / "shards/r")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match="no finished"):
        plan_(str(tmp_path), None, 0, config.load(None, [f"student.task={task}"]))
    assert sorted(tmp_path.rglob("*")) == before
