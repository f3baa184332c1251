"""Links and folders among checkpoints that voxstill did not leave so: a training goes on, and never begins anew unseen.

Kills and damaged files are in `tests/training/test_whole_checkpoints.py` and `tests/torture/test_checkpoints.py`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from training.test_whole_checkpoints import Training
from voxstill.core.errors import TrainingError
from voxstill.training import checkpoint


def follow_links(training: Training) -> None:
    """As `cp -rL` and copies to a bucket do."""
    for link in (training.run.last, training.run.best):
        target = link.resolve()
        link.unlink()
        shutil.copytree(target, link)


@pytest.mark.parametrize("target", ["epoch=0-step=9", "last", ".", "..", "/", "../../elsewhere/none"])
def test_a_last_that_leads_elsewhere_is_told_and_the_newest_checkpoint_is_taken(
    tmp_path: Path, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(tmp_path).learn(2)
    training.run.last.unlink()
    training.run.last.symlink_to(target)
    assert Training(tmp_path).state.step == 2
    assert "which is not there" in caplog.text
    Training(tmp_path).learn(3)
    assert training.run.last.readlink().name.endswith("step=3")


def test_a_copy_in_which_links_are_folders_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    follow_links(Training(tmp_path).learn(2))
    training = Training(tmp_path)
    assert training.state.step == 2
    assert "`last` is a folder instead of a link" in caplog.text.replace(f"{tmp_path}/checkpoints/", "")
    training.learn(3)
    assert training.run.last.readlink().name.endswith("step=3")
    assert training.run.best.is_symlink()
    assert not list(training.run.checkpoints.glob(".*"))


def test_a_copy_of_last_alone_is_no_training_that_begins_anew(tmp_path: Path) -> None:
    training = Training(tmp_path).learn(2)
    follow_links(training)
    for folder in training.run.checkpoints.glob("epoch=*"):
        shutil.rmtree(folder)
    with pytest.raises(TrainingError, match="is complete") as caught:
        checkpoint.newest(training.run)
    assert "as `epoch=E-step=S`" in caught.value.fix
