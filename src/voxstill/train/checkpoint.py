"""A checkpoint is whole or absent, holds no pickles, and resumes to the same bits on a CPU.

`model.safetensors` holds weights and buffers, `optimizer.safetensors` AdamW's moments by the weights' names,
`average.safetensors` the running mean, `state.json` the loop's few numbers. Randomness has no state: it is drawn from
(seed, step, rank).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from voxstill.errors import StorageError
from voxstill.rundir import RunDir
from voxstill.train.optim import Average


@dataclass(slots=True)
class State:
    """What the loop remembers: steps done, the place in the epoch, the clock, the last loss and the best error rate.

    `rows` counts the lines of `metrics.jsonl`: those written after the checkpoint go when it is resumed.
    """

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    seconds: float = 0.0
    ascending: bool = True
    best_wer: float | None = None
    skipped: int = 0
    replaced: int = 0
    loss: float | None = None
    rows: int = 0


def save(
    run: RunDir, model: nn.Module, optimizer: torch.optim.Optimizer, average: Average, state: State, *, best: bool
) -> Path:
    """Write a checkpoint beside the others and point `last` (and `best`) to it; older ones nobody points to go."""
    final = run.checkpoint(state.epoch, state.step)
    if (
        not final.exists()
    ):  # what is there is whole, and this very step: removing it would leave `last` without a target
        _write(final, model, optimizer, average, state)
    _point(run.last, final)
    if best or not run.best.exists():
        _point(run.best, final)
    named = {run.last.resolve(), run.best.resolve()}
    for old in run.checkpoints.iterdir():
        if old.is_dir() and not old.is_symlink() and old.resolve() not in named:
            shutil.rmtree(old)
    return final


def load(run: RunDir, model: nn.Module, optimizer: torch.optim.Optimizer, average: Average) -> State | None:
    """Bring model, optimizer and average to the newest checkpoint; None where there is none."""
    if not run.last.exists():
        return None
    numbers = json.loads((run.last / "state.json").read_text())
    average.count = numbers.pop("average")
    load_weights(model, run.last)
    _restore(model, optimizer, load_file(run.last / "optimizer.safetensors"))
    average.total = load_file(run.last / "average.safetensors") if average.count else {}
    return State(**numbers)


def load_weights(model: nn.Module, folder: Path) -> None:
    """Bring the model to the weights of one checkpoint."""
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=True)


def _write(final: Path, model: nn.Module, optimizer: torch.optim.Optimizer, average: Average, state: State) -> None:
    draft = final.with_name(f".{final.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    with told_as_storage(draft):
        save_file(_contiguous(model.state_dict()), draft / "model.safetensors")
        save_file(_moments(model, optimizer), draft / "optimizer.safetensors")
        if average.count:
            save_file(_contiguous(average.total), draft / "average.safetensors", metadata={"count": str(average.count)})
    (draft / "state.json").write_text(json.dumps({**asdict(state), "average": average.count}))
    for file in draft.iterdir():
        _flush(file)
    draft.rename(final)
    _flush(final.parent)


@contextmanager
def told_as_storage(path: Path) -> Iterator[None]:
    """What safetensors cannot write is a StorageError: its own error is no OSError."""
    try:
        yield
    except SafetensorError as error:
        raise StorageError(
            f"cannot write `{path}`", why=str(error), fix="check the rights and the free space, and run again"
        ) from None


def _contiguous(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}


def _moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    names = {id(weight): name for name, weight in model.named_parameters()}
    moments = {
        f"{key}.{names[id(weight)]}": value
        for weight, state in optimizer.state.items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    }
    return _contiguous(moments)


def _restore(model: nn.Module, optimizer: torch.optim.Optimizer, moments: dict[str, Tensor]) -> None:
    for name, weight in model.named_parameters():
        for key in ("step", "exp_avg", "exp_avg_sq"):
            value = moments.get(f"{key}.{name}")
            if value is not None:
                optimizer.state[weight][key] = value if key == "step" else value.to(weight.device)


def _point(link: Path, target: Path) -> None:
    draft = link.with_name(f".{link.name}.draft")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target.name)
    draft.replace(link)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
