"""A process is killed at each change of `checkpoints/`, and again at one of those that mend it; no bit is lost."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seeds import seeded_random
from torture.faults import KINDS, NO_FAULT, Nursery, points_of
from torture.runs import SHARE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(SHARE is None, reason="the short form is in tests/training/test_whole_checkpoints.py"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not at hand"),
]
STEPS = 5
"""The least error is that of step 2; from step 4 on an older checkpoint is removed each time."""


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    server = Nursery(tmp_path)
    yield server
    server.close()


def files(folder: Path) -> dict[str, object]:
    """Every name in a folder, with what is there."""
    return {
        str(path.relative_to(folder)): path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes()
        for path in folder.rglob("*")
    }


def test_a_kill_at_each_change_of_a_checkpoint_costs_nothing(torture: Any, nursery: Nursery, tmp_path: Path) -> None:
    run, chance = tmp_path / "run", seeded_random()

    def learn(at: int = 0) -> tuple[int, list[str]]:
        kind = KINDS["kill"] if at else NO_FAULT
        code = nursery.run(run, run, STEPS, at=at, kind=kind, target="torture.small_training")
        return code, run.with_suffix(".points").read_text().splitlines()

    code, points = learn()
    assert code == 0, run.with_suffix(".said").read_text()
    expected = files(run / "checkpoints")
    kills: Counter[str] = Counter()
    every = points_of(points, "kill")
    for number in sorted(chance.sample(list(every), torture.sample_size(len(every), short=2))):
        shutil.rmtree(run)
        assert learn(number)[0] == -signal.SIGKILL
        kills[every[number].split()[0]] += 1
        code, left = learn()
        assert code == 0, (every[number], run.with_suffix(".said").read_text()[-2000:])
        assert files(run / "checkpoints") == expected, every[number]
        if left:  # once more from where the first one died, killed while that is mended
            shutil.rmtree(run)
            assert learn(number)[0] == -signal.SIGKILL
            second = chance.randint(1, len(left))
            assert learn(second)[0] == -signal.SIGKILL
            kills["second"] += 1
            assert learn()[0] == 0, (every[number], left[second - 1])
            assert files(run / "checkpoints") == expected, (every[number], left[second - 1])
    torture.tell("SIGKILL in a checkpoint", f"{kills.total()} kills at {len(every)} points: {dict(kills)}")
