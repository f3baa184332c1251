"""A kill at any moment of a save costs no checkpoint; a broken one is passed over, loudly, and never trained on."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from voxstill.core.config import Train
from voxstill.core.errors import TrainingError
from voxstill.core.monitor import log
from voxstill.storage.rundir import RunDir
from voxstill.training import checkpoint, optim, state
from voxstill.training.state import State

STEPS = 4
CALLS = ("rename", "replace", "unlink", "rmdir", "mkdir", "symlink")
"""What changes the names in a folder."""


class Killed(BaseException):
    """The process ends here: nothing after it is done."""


class Training:
    """A model that learns a step at a time and saves each, from wherever its checkpoints say that it stands."""

    def __init__(self, path: Path) -> None:
        self.run, self.cfg = RunDir(path), Train(average_decay=0.5)
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        self.optimizer, self.average = optim.make_optimizer(self.model, self.cfg), optim.Average(0.5)
        folder = checkpoint.newest(self.run)
        self.state = State() if folder is None else self._load(folder)

    def _load(self, folder: Path) -> State:
        return checkpoint.load(folder, self.model, self.optimizer, self.average)

    def learn(self, until: int) -> Training:
        while self.state.step < until:
            audio = torch.randn(16, 4, generator=torch.Generator().manual_seed(self.state.step))
            self.model(audio).square().sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.average.add(self.model)
            self.state.step += 1
            self.state.error = 1 / self.state.step if self.state.step < 3 else 0.9
            checkpoint.save(self.run, self.model, self.optimizer, self.average, self.state, self.cfg)
        return self

    def bits(self) -> dict[str, torch.Tensor]:
        moments = checkpoint._moments(self.model, self.optimizer)
        return {
            **self.model.state_dict(),
            **moments,
            **{f"mean.{name}": mean for name, mean in self.average.mean.items()},
        }


def same_bits(one: Training, two: Training) -> bool:
    mine, others = one.bits(), two.bits()
    return mine.keys() == others.keys() and all(torch.equal(mine[name], others[name]) for name in mine)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """A training that nothing has stopped."""
    return Training(tmp_path_factory.mktemp("straight")).learn(STEPS + 1)


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    """What is logged as a warning."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    yield lines
    log.removeHandler(handler)


def killed_at(call: int, patch: pytest.MonkeyPatch, act: Callable[[], object]) -> bool:
    """Whether the process was killed just before that call which changes a folder; False where there are fewer."""
    num = 0

    def dying(real: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*args: object, **kwargs: object) -> object:
            nonlocal num
            if num == call:
                raise Killed
            num += 1
            return real(*args, **kwargs)

        return wrapped

    with patch.context() as context:
        for name in CALLS:
            context.setattr(os, name, dying(getattr(os, name)))
        try:
            act()
        except Killed:
            return True
    return False


def test_a_kill_at_any_change_of_a_save_with_removals_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, straight: Training
) -> None:
    begun = tmp_path / "begun"
    Training(begun).learn(STEPS - 1)
    for kills in range(100):
        path = tmp_path / str(kills)
        shutil.copytree(begun, path, symlinks=True)
        if not killed_at(kills, monkeypatch, functools.partial(Training(path).learn, STEPS)):
            break
        resumed = Training(path)
        assert resumed.state.step in (STEPS - 1, STEPS), kills
        assert same_bits(resumed.learn(STEPS + 1), straight), kills
        names = {entry.name for entry in resumed.run.checkpoints.iterdir()}
        assert names == {"last", "best", "epoch=0-step=2", f"epoch=0-step={STEPS + 1}"}, kills
    assert kills > 10  # a rename, two links, and a folder of four files that is removed


def test_a_kill_at_any_change_of_the_first_save_begins_anew_or_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, straight: Training
) -> None:
    for kills in range(100):
        training = Training(tmp_path / str(kills))
        if not killed_at(kills, monkeypatch, functools.partial(training.learn, 1)):
            break
        assert same_bits(Training(tmp_path / str(kills)).learn(STEPS + 1), straight), kills
    assert kills > 4


def test_a_second_kill_while_what_the_first_one_left_is_removed_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, straight: Training
) -> None:
    Training(tmp_path).learn(2)
    call = 0
    while Training(tmp_path).state.step < STEPS + 1:  # ever one call further: later kills meet what earlier ones left
        killed_at(call, monkeypatch, lambda: Training(tmp_path).learn(STEPS + 1))
        call += 1
    assert same_bits(Training(tmp_path), straight)


def test_a_process_killed_while_it_removes_leaves_a_training_that_goes_on(tmp_path: Path, straight: Training) -> None:
    Training(tmp_path).learn(STEPS - 1)
    code = f"""
        import os, signal, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from {Path(__file__).stem} import Training
        training = Training(Path({str(tmp_path)!r}))
        real = os.unlink
        def unlink(path, *, dir_fd=None):
            if dir_fd is not None:  # a file of the folder that is removed; one has gone before
                real(path, dir_fd=dir_fd)
                os.kill(os.getpid(), signal.SIGKILL)
            real(path, dir_fd=dir_fd)
        os.unlink = unlink
        training.learn({STEPS})
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    assert any(entry.name.startswith(".") for entry in (tmp_path / "checkpoints").iterdir())
    assert same_bits(Training(tmp_path).learn(STEPS + 1), straight)


def test_a_folder_that_an_earlier_version_had_half_removed_is_skipped_and_goes(
    tmp_path: Path, straight: Training
) -> None:
    run = Training(tmp_path).learn(3).run
    half = run.checkpoint(0, 1)
    half.mkdir()
    (half / "optimizer.safetensors").write_bytes(b"what was not yet removed")
    assert same_bits(Training(tmp_path).learn(STEPS + 1), straight)
    assert not half.exists()


def test_folders_that_are_no_checkpoints_are_left_alone(tmp_path: Path) -> None:
    run = Training(tmp_path).learn(1).run
    names = ("mine", "epoch=0-step=1 (copy)", "epoch=1")
    for name in names:
        (run.checkpoints / name).mkdir()
    Training(tmp_path).learn(3)
    assert all((run.checkpoints / name).is_dir() for name in names)


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def numbers(folder: Path, **changes: object) -> None:
    """Change what `state.json` says, as one without checksums: an earlier version wrote none."""
    document = json.loads((folder / "state.json").read_text())
    del document["sha256"]
    (folder / "state.json").write_text(json.dumps({**document, **changes}))


BREAKS: dict[str, Callable[[Path], object]] = {
    "truncated weights": lambda folder: os.truncate(folder / "model.safetensors", 100),
    "empty moments": lambda folder: os.truncate(folder / "optimizer.safetensors", 0),
    "a flipped bit of the weights": lambda folder: flip(folder / "model.safetensors", 8 * 700),
    "a flipped bit of the mean": lambda folder: flip(folder / "average.safetensors", 8 * 700),
    "missing moments": lambda folder: (folder / "optimizer.safetensors").unlink(),
    "missing mean": lambda folder: (folder / "average.safetensors").unlink(),
    "missing numbers": lambda folder: (folder / "state.json").unlink(),
    "empty numbers": lambda folder: (folder / "state.json").write_text("{}"),
    "numbers that are a list": lambda folder: (folder / "state.json").write_text("[]"),
    "numbers that are a pipe": lambda folder: pipe(folder / "state.json"),
    "weights that are a pipe": lambda folder: pipe(folder / "model.safetensors"),
    "deep numbers": lambda folder: (folder / "state.json").write_text("[" * 100_000),
    "numbers that are no text": lambda folder: (folder / "state.json").write_bytes(b"\xff\xfe"),
    "an absurd step": lambda folder: numbers(folder, step=10**15),
    "a step that is no number": lambda folder: numbers(folder, step="3"),
    "an entry of another program": lambda folder: numbers(folder, best_of=3),
    "a folder of another step": lambda folder: folder.rename(folder.with_name("epoch=0-step=99999999")),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_newest_checkpoint_falls_back_to_the_newest_whole_one_loudly(
    tmp_path: Path, warnings: list[str], straight: Training, name: str
) -> None:
    run = Training(tmp_path).learn(3).run
    BREAKS[name](run.checkpoint(0, 3))
    training = Training(tmp_path)
    assert training.state.step == 2
    assert "is broken and is ignored" in "\n".join(warnings)
    assert str(run.checkpoint(0, 2)) in warnings[-1]
    assert same_bits(training.learn(STEPS + 1), straight)
    assert not state.faults(run.last.resolve())


@pytest.mark.parametrize("name", BREAKS)
def test_where_no_checkpoint_is_whole_the_training_does_not_begin_at_step_0(tmp_path: Path, name: str) -> None:
    run = Training(tmp_path).learn(1).run
    BREAKS[name](run.checkpoint(0, 1))
    with pytest.raises(TrainingError, match="is complete") as raised:
        Training(tmp_path)
    assert "start at step 0" in raised.value.fix


def test_any_flipped_bit_of_state_json_is_seen_or_changes_nothing(tmp_path: Path) -> None:
    folder = Training(tmp_path).learn(1).run.checkpoint(0, 1)
    data, unseen = (folder / "state.json").read_bytes(), 0
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(ValueError):
            assert state.parse(bytes(flipped), folder.name) == state.read(folder), bit
            unseen += 1
    assert unseen < 30  # white space, and capitals of an exponent


def test_a_dangling_last_is_told_and_the_newest_is_taken(tmp_path: Path, warnings: list[str]) -> None:
    run = Training(tmp_path).learn(3).run
    run.last.unlink()
    run.last.symlink_to("epoch=7-step=7")
    assert Training(tmp_path).state.step == 3
    assert "which is not there" in warnings[0]
    shutil.rmtree(run.checkpoint(0, 3))
    shutil.rmtree(run.checkpoint(0, 2))
    with pytest.raises(TrainingError, match="is complete"):
        Training(tmp_path)


def test_a_whole_checkpoint_that_last_points_to_is_taken_before_newer_ones(tmp_path: Path) -> None:
    run = Training(tmp_path).learn(3).run
    run.last.unlink()
    run.last.symlink_to("epoch=0-step=2")
    assert Training(tmp_path).state.step == 2


def test_a_checkpoint_without_checksums_is_read(tmp_path: Path, straight: Training) -> None:
    run = Training(tmp_path).learn(3).run
    for folder in run.checkpoints.glob("epoch=*"):
        numbers(folder)
    assert same_bits(Training(tmp_path).learn(STEPS + 1), straight)


def test_a_broken_checkpoint_of_the_best_is_left_out_of_their_mean(tmp_path: Path, warnings: list[str]) -> None:
    training = Training(tmp_path)
    training.cfg = Train(keep_best=3)
    run = training.learn(3).run
    assert [folder.name for folder in checkpoint.whole_best(run, 2)] == ["epoch=0-step=2", "epoch=0-step=3"]
    flip(run.checkpoint(0, 2) / "model.safetensors", 8 * 700)
    assert [folder.name for folder in checkpoint.whole_best(run, 2)] == ["epoch=0-step=3", "epoch=0-step=1"]
    assert "epoch=0-step=2` is broken" in warnings[0]


def test_weights_of_another_student_are_an_error_that_names_them(tmp_path: Path) -> None:
    folder = Training(tmp_path).learn(1).run.checkpoint(0, 1)
    with pytest.raises(TrainingError, match="do not fit") as raised:
        checkpoint.load_weights(nn.Sequential(nn.Linear(4, 9)), folder)
    assert "0.weight" in raised.value.why
