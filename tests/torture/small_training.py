"""The training of `tests/training/test_whole_checkpoints.py` in a process that may be killed: folder, last step."""

from pathlib import Path

from training.test_whole_checkpoints import Training
from voxstill.training import checkpoint


def main(arguments: list[str]) -> int:
    training = Training(Path(arguments[0])).learn(int(arguments[1]))
    # the loop saves once more when all steps are made: so does one that was killed after the last of them
    checkpoint.save(training.run, training.model, training.optimizer, training.average, training.state, training.cfg)
    return 0
