"""Checkpoints: whole or absent, without pickles, and what was saved is what comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from voxstill.core.config import Train
from voxstill.core.errors import StorageError
from voxstill.storage.rundir import RunDir
from voxstill.training import checkpoint, optim
from voxstill.training.state import State


def new_model(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    return model, optim.make_optimizer(model, Train())


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    audio = torch.randn(16, 4, generator=torch.Generator().manual_seed(seed))
    model(audio).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def save(
    run: RunDir,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    number: int,
    error: float | None = None,
    cfg: Train = Train(),  # noqa: B008
) -> Path:
    checkpoint.save(run, model, optimizer, optim.Average(), State(step=number, error=error), cfg)
    return run.checkpoint(0, number)


def same(one: nn.Module, two: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


def test_steps_are_counted_where_the_weights_are(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    model, optimizer = new_model()
    step(model, optimizer, 0)
    folder = save(run, model, optimizer, 1)
    other, _ = new_model()
    other.to("meta")  # any device but the processor's
    other_optimizer = optim.make_optimizer(other, Train())
    checkpoint.load(folder, other, other_optimizer, optim.Average())
    devices = {value.device.type for state in other_optimizer.state.values() for value in state.values()}
    assert devices == {"meta"}


def test_training_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    model, optimizer = new_model()
    average = optim.Average()
    for number in range(3):
        step(model, optimizer, number)
        average.add(model)
    state = State(step=3, epoch=1, step_in_epoch=2, seconds=1.5, ascending=False, best_error=0.1, loss=0.3, rows=7)
    state.validations = ((0.5, 0.25), (0.4, 0.25))
    checkpoint.save(run, model, optimizer, average, state, Train())
    other, other_optimizer = new_model(1)
    other_average = optim.Average()
    folder = checkpoint.newest(run)
    assert folder is not None
    assert checkpoint.load(folder, other, other_optimizer, other_average) == state
    for each_model, each_optimizer in ((model, optimizer), (other, other_optimizer)):
        step(each_model, each_optimizer, 99)
    assert same(model, other)
    average.add(model)
    other_average.add(other)
    assert other_average.count == average.count == 4
    assert all(torch.equal(average.mean[name], other_average.mean[name]) for name in average.mean)


def test_where_there_is_no_checkpoint_there_is_none(tmp_path: Path) -> None:
    assert checkpoint.newest(RunDir(tmp_path)) is None


@pytest.mark.parametrize("files", range(4))
def test_a_crash_while_saving_leaves_the_checkpoint_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    run = RunDir(tmp_path)
    model, optimizer = new_model()
    save(run, model, optimizer, 1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    step(model, optimizer, 0)
    flush, written = checkpoint._flush, []

    def dies(path: Path) -> None:
        if len(written) == files:
            raise KeyboardInterrupt
        written.append(path)
        flush(path)

    monkeypatch.setattr(checkpoint, "_flush", dies)
    with pytest.raises(KeyboardInterrupt):
        save(run, model, optimizer, 2)
    monkeypatch.undo()
    folder = checkpoint.newest(run)
    assert folder is not None
    assert checkpoint.load(folder, model, optimizer, optim.Average()).step == 1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    save(run, model, optimizer, 2)
    assert {path.name for path in run.checkpoints.iterdir()} >= {"last", "best"}
    assert not [path for path in run.checkpoints.iterdir() if path.name.endswith(".draft")]


def test_a_draft_is_never_taken_for_a_checkpoint_and_goes_with_the_next(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    model, optimizer = new_model()
    save(run, model, optimizer, 1)
    draft = run.checkpoints / ".epoch=0-step=2.draft"
    draft.mkdir()
    (draft / "model.safetensors").write_bytes(b"half")
    assert checkpoint.newest(run) == run.checkpoint(0, 1)
    save(run, model, optimizer, 3)
    assert not draft.exists()


def test_only_the_last_and_the_best_stay(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    model, optimizer = new_model()
    for number in range(1, 6):
        save(run, model, optimizer, number, error=abs(number - 3) / 10)
    assert {path.name for path in run.checkpoints.iterdir()} == {"last", "best", "epoch=0-step=3", "epoch=0-step=5"}
    assert (run.last.resolve().name, run.best.resolve().name) == ("epoch=0-step=5", "epoch=0-step=3")


def test_the_best_stay_and_those_of_every_so_many_steps(tmp_path: Path) -> None:
    run, cfg = RunDir(tmp_path), Train(keep_best=3, keep_every=4)
    model, optimizer = new_model()
    errors = {1: 0.5, 2: 0.2, 3: None, 4: 0.9, 5: 0.2, 6: 0.4, 7: 0.6, 8: None, 9: None}
    for number, error in errors.items():
        save(run, model, optimizer, number, error, cfg)
    assert [path.name for path in checkpoint.best(run, 3)] == [f"epoch=0-step={step}" for step in (5, 2, 6)]
    there = {int(path.name.rpartition("=")[2]) for path in run.checkpoints.glob("epoch=*")}
    assert there == {5, 2, 6} | {4, 8} | {9}
    assert run.best.resolve().name == "epoch=0-step=5"
    assert run.last.resolve().name == "epoch=0-step=9"


def test_the_final_weights_may_be_the_mean_of_the_best_checkpoints(tmp_path: Path) -> None:
    run, cfg = RunDir(tmp_path), Train(keep_best=2)
    model, optimizer = new_model()
    weights = []
    for number, error in enumerate((0.3, 0.9, 0.1, None), 1):
        step(model, optimizer, number)
        weights.append({name: value.clone() for name, value in model.state_dict().items()})
        save(run, model, optimizer, number, error, cfg)
    checkpoint.load_mean(model, checkpoint.best(run, 2))
    for name, value in model.state_dict().items():
        wanted = (weights[0][name] + weights[2][name]) / 2 if value.is_floating_point() else weights[2][name]
        assert torch.allclose(value, wanted, atol=1e-7)


def test_saving_the_same_step_twice_never_removes_what_is_there(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    model, optimizer = new_model()
    file = save(run, model, optimizer, 1) / "model.safetensors"
    before = file.stat().st_ino
    save(run, model, optimizer, 1)
    assert file.stat().st_ino == before
    assert run.best.resolve() == run.last.resolve()


def test_a_checkpoint_holds_tensors_and_json_and_no_pickles(tmp_path: Path) -> None:
    model, optimizer = new_model()
    step(model, optimizer, 0)
    average = optim.Average()
    average.add(model)
    checkpoint.save(RunDir(tmp_path), model, optimizer, average, State(step=1), Train())
    assert {path.name for path in RunDir(tmp_path).last.iterdir()} == {
        "model.safetensors",
        "optimizer.safetensors",
        "average.safetensors",
        "state.json",
    }


def test_weights_that_cannot_be_written_are_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot write"), checkpoint.as_storage_error(tmp_path):
        save_file({"w": torch.zeros(1)}, tmp_path / "no" / "such" / "folder" / "w.safetensors")
