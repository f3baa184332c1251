"""A training that is refused before its loop leaves no experiment folder; what has begun, or holds more, stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.train_once import OF_STUDENT, SETTINGS
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, DataError, VoxstillError
from voxstill.storage.figures import ShardFigures
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.storage.workdir import finished
from voxstill.tasks import recognition
from voxstill.training.experiment import open_run, train_settings, with_defaults
from voxstill.training.launch import launch
from voxstill.training.setup import Build
from voxstill.training.summary import TrainingSummary


def configured(work: Path, root: Path, *overrides: str) -> Config:
    return config.load(
        None, [f"work={work}", f"train.root={root}", *SETTINGS, *OF_STUDENT, "train.steps=2", *overrides]
    )


def shards_of(cfg: Config) -> ShardFigures:
    figures = finished(Store(cfg.work), ShardFigures, "r")
    assert figures is not None
    return figures


def trained(cfg: Config, build: Build = recognition.build) -> TrainingSummary:
    return launch(cfg, shards_of, build, train_settings)


def folder_of(cfg: Config) -> RunDir:
    """The folder of a training that was begun before."""
    whole = with_defaults(cfg, shards_of(cfg), train_settings, None, is_pretraining=False)
    return open_run(whole, shards_of(cfg), train_settings(whole))


def silent(tmp_path: Path) -> str:
    """Options that are refused where the data is built: the noise corpus holds no audio."""
    (tmp_path / "noise").mkdir(exist_ok=True)
    return f"augment.noise={tmp_path / 'noise'}"


def test_a_refused_training_leaves_nothing_and_is_a_new_one_once_it_is_mended(work: Path, tmp_path: Path) -> None:
    root = tmp_path / "exp"
    for refused in (silent(tmp_path), "plan.dataset_weights={nobody: 2}"):
        with pytest.raises((ConfigError, DataError)):
            trained(configured(work, root, refused))
        assert list(root.iterdir()) == []
    summary = trained(configured(work, root))
    assert [str(path) for path in root.iterdir()] == [summary.path]


def test_ranks_that_refuse_leave_nothing(work: Path, tmp_path: Path) -> None:
    root = tmp_path / "exp"
    with pytest.raises(DataError, match="no audio"):
        trained(configured(work, root, silent(tmp_path), "train.devices=2", "plan.batches_per_step=2"))
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("kept", ["checkpoints/epoch=0-step=2/x", "train.log", "model/x", "notes.txt"])
def test_a_folder_that_holds_more_than_was_made_for_the_training_stays(work: Path, tmp_path: Path, kept: str) -> None:
    cfg = configured(work, tmp_path / "exp", silent(tmp_path))
    path = folder_of(cfg).path / kept
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("of an earlier training\n")
    with pytest.raises(DataError, match="no audio"):
        trained(cfg)
    assert path.read_text().startswith("of an earlier training\n")


def test_an_error_that_is_no_refusal_leaves_its_log(work: Path, tmp_path: Path) -> None:
    def build(*_: object) -> None:
        raise error

    for error in (ValueError("a fault of ours"), VoxstillError("the disk is broken", why="it is", fix="mend it")):
        root = tmp_path / type(error).__name__
        with pytest.raises(type(error)):
            trained(configured(work, root), build)  # type: ignore[arg-type]
        [folder] = root.iterdir()
        assert RunDir(folder).log.exists()


def test_an_error_of_the_data_after_the_first_step_leaves_its_log(work: Path, tmp_path: Path) -> None:
    root = tmp_path / "exp"

    def build(*arguments: object) -> object:
        setup = recognition.build(*arguments)  # type: ignore[arg-type]
        step = setup.task.watch

        def watch(number: int, figures: dict[str, float]) -> None:
            step(number, figures)
            raise DataError("the audio is lost", code="audio-unreadable", why="it is", fix="restore it")

        setup.task.watch = watch  # type: ignore[method-assign]
        return setup

    with pytest.raises(DataError, match="lost"):
        trained(configured(work, root), build)  # type: ignore[arg-type]
    [folder] = root.iterdir()
    assert RunDir(folder).log.exists()
