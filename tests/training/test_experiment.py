"""The folder of an experiment, and what its files say of it."""

from __future__ import annotations

from pathlib import Path

from voxstill.storage.rundir import RunDir
from voxstill.training import experiment
from voxstill.training.summary import TrainingSummary


def test_a_finished_experiment_that_was_moved_is_where_it_is_now(tmp_path: Path) -> None:
    run, moved = RunDir(tmp_path / "exp" / "one"), RunDir(tmp_path / "moved")
    run.model.mkdir(parents=True)
    summary = TrainingSummary(
        path=str(run.path), steps=1, epochs=1, seconds=1.0, loss=0.5, dev_metric="dev_wer", dev_error=0.5,
        parameters=1, skipped=0, replaced=0, utterances=1, dropped={},
    )  # fmt: skip
    experiment.write_whole(run.summary, summary.to_dict())
    run.path.rename(moved.path)
    finished = experiment.finished_summary(moved)
    assert finished is not None
    assert finished.path == str(moved.path)
