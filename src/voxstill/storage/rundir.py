"""Every file name in an experiment folder: `exp/<date>_<name>/`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunDir:
    """Names below one experiment folder; making one does no I/O."""

    path: Path

    @staticmethod
    def of_checkpoint(path: Path) -> RunDir | None:
        """The experiment that a checkpoint, or a link to one, lies in; None of any other path."""
        run = RunDir(path.parent.parent)
        return run if path.parent == run.checkpoints and run.config.is_file() else None

    @property
    def config(self) -> Path:
        """Snapshot of the configuration, written once and read-only."""
        return self.path / "config.yaml"

    @property
    def environment(self) -> Path:
        """Versions, machine, data version and plan hash."""
        return self.path / "environment.json"

    @property
    def log(self) -> Path:
        """The log of the training."""
        return self.path / "train.log"

    @property
    def metrics(self) -> Path:
        """One JSON object for each logged step."""
        return self.path / "metrics.jsonl"

    @property
    def corpus(self) -> Path:
        """The index of the shards; a restarted training opens it at once."""
        return self.path / "corpus"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard events."""
        return self.path / "tensorboard"

    @property
    def profile(self) -> Path:
        """Traces of steps, with `train.profile`."""
        return self.path / "profile"

    @property
    def checkpoints(self) -> Path:
        """Folders `epoch=E-step=S`; `last` and `best` point into it."""
        return self.path / "checkpoints"

    def checkpoint(self, epoch: int, step: int) -> Path:
        """The folder of one checkpoint."""
        return self.checkpoints / f"epoch={epoch}-step={step}"

    @property
    def exports(self) -> Path:
        """With `train.export_dtype` or `train.export_changes`, smaller copies of the checkpoints, by the same names."""
        return self.path / "exports"

    @property
    def last(self) -> Path:
        """Link to the newest checkpoint."""
        return self.checkpoints / "last"

    @property
    def best(self) -> Path:
        """Link to the checkpoint with the fewest errors on the dev split."""
        return self.checkpoints / "best"

    @property
    def skipped(self) -> Path:
        """Batches of steps whose loss was not finite, for `voxstill doctor`."""
        return self.path / "skipped"

    @property
    def ranks(self) -> Path:
        """Process and step of each rank while it trains."""
        return self.path / ".ranks"

    @property
    def waits(self) -> Path:
        """What each rank computed and waited for, for `voxstill doctor`."""
        return self.path / "waits"

    @property
    def source(self) -> Path:
        """The code that ran."""
        return self.path / "src_backup"

    @property
    def model(self) -> Path:
        """The finished student: a Hugging Face folder."""
        return self.path / "model"

    @property
    def summary(self) -> Path:
        """Figures of the finished training; where it exists, the training is done."""
        return self.path / "summary.json"

    @property
    def evaluation(self) -> Path:
        """The results of `voxstill evaluate`, a folder for each."""
        return self.path / "evaluation"

    @property
    def lm(self) -> Path:
        """The n-gram language model of the training labels, in ARPA format."""
        return self.path / "labels.arpa"

    @property
    def report(self) -> Path:
        """The HTML report; `report.md` and `report.json` beside it have the same content."""
        return self.path / "report.html"
