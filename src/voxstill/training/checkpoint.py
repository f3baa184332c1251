"""A checkpoint is whole or absent, holds no pickles, and resumes to the same bits on a CPU.

`model.safetensors` holds weights and buffers, `optimizer.safetensors` AdamW's moments by the weights' names,
`average.safetensors` the running mean, `state.json` the loop's few numbers. Randomness has no state: it is drawn from
(seed, step, rank).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from voxstill.core.atomic import atomic_file, atomic_folder
from voxstill.core.config import Train
from voxstill.core.errors import StorageError
from voxstill.storage.rundir import RunDir
from voxstill.training import parallel
from voxstill.training.optim import Average


@dataclass(slots=True)
class State:
    """What the loop remembers: steps done, the place in the epoch, the clock, the last loss and the best error.

    `error` is that of just these weights on the dev split, None where nobody has measured it; `stale` says how often in
    a row it was no better than the best.
    `rows` counts the lines of `metrics.jsonl`: those written after the checkpoint go when it is resumed.
    """

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    seconds: float = 0.0
    ascending: bool = True
    best_error: float | None = None
    scaling: dict[str, float] | None = None
    error: float | None = None
    stale: int = 0
    skipped: int = 0
    replaced: int = 0
    loss: float | None = None
    rows: int = 0


def save(
    run: RunDir,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: Average,
    state: State,
    cfg: Train,
    *,
    writes: bool = True,
) -> None:
    """Write a checkpoint beside the others; `last` points to it, and `best` to that with the least error.

    Of the older ones those stay that `keep_best` and `keep_every` say. All ranks call it, as each may have a part of
    every tensor, and one of them `writes`.
    """
    files = {"model": _whole(model.state_dict(), writes), "optimizer": _whole(_moments(model, optimizer), writes)}
    if average.count:
        files["average"] = _whole(average.mean, writes)
    if not writes:
        return
    final = run.checkpoint(state.epoch, state.step)
    if (
        not final.exists()
    ):  # what is there is whole, and this very step: removing it would leave `last` without a target
        _write(final, files, {**asdict(state), "average": average.count})
    _point(run.last, final)
    stay = [final, *best(run, cfg.keep_best)]
    _point(run.best, stay[1] if len(stay) > 1 else final)
    for old in run.checkpoints.iterdir():
        if old.is_dir() and not old.is_symlink() and old not in stay and not _is_kept(old, cfg):
            shutil.rmtree(old)


def best(run: RunDir, num: int) -> list[Path]:
    """The checkpoints that were judged with the least error on the dev split, at most `num`, the best first."""
    judged = []
    for folder in run.checkpoints.glob("epoch=*"):
        state = json.loads((folder / "state.json").read_text())
        if state["error"] is not None:
            judged.append((state["error"], -state["step"], folder))
    return [folder for _, _, folder in sorted(judged)[:num]]


def load_mean(model: nn.Module, folders: Sequence[Path]) -> None:
    """Bring the model to the mean of the weights and buffers of some checkpoints; what is counted is of the first."""
    checkpoints = [load_file(folder / "model.safetensors") for folder in folders]
    mean = {
        name: torch.stack([weights[name].double() for weights in checkpoints]).mean(0).to(value.dtype)
        if value.is_floating_point()
        else value
        for name, value in checkpoints[0].items()
    }
    _put(model, mean)


def load(run: RunDir, model: nn.Module, optimizer: torch.optim.Optimizer, average: Average) -> State | None:
    """Bring model, optimizer and average to the newest checkpoint; None where there is none."""
    if not run.last.exists():
        return None
    numbers = json.loads((run.last / "state.json").read_text())
    average.count = numbers.pop("average")
    load_weights(model, run.last)
    _restore(model, optimizer, load_file(run.last / "optimizer.safetensors"))
    if average.count:
        now = model.state_dict()
        mean = load_file(run.last / "average.safetensors")
        average.mean = {name: parallel.part(value, now[name]) for name, value in mean.items()}
    return State(**numbers)


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """All weights and buffers, on the CPU; all ranks must ask."""
    return _whole(model.state_dict(), True)


def load_weights(model: nn.Module, folder: Path) -> None:
    """Bring the model to the weights of one checkpoint."""
    _put(model, load_file(folder / "model.safetensors"))


def _is_kept(folder: Path, cfg: Train) -> bool:
    if cfg.keep_every is None or folder.name.startswith("."):
        return False
    return int(folder.name.rpartition("=")[2]) % cfg.keep_every == 0


def _write(final: Path, files: dict[str, dict[str, Tensor]], numbers: dict[str, Any]) -> None:
    with atomic_folder(final) as draft:
        with as_storage_error(draft):
            for name, tensors in files.items():
                save_file(_unshared(tensors), draft / f"{name}.safetensors")
        (draft / "state.json").write_text(json.dumps(numbers))
        for file in draft.iterdir():
            _flush(file)
    _flush(final.parent)


@contextmanager
def as_storage_error(path: Path) -> Iterator[None]:
    """What safetensors cannot write is a StorageError: its own error is no OSError."""
    try:
        yield
    except SafetensorError as error:
        raise StorageError(
            f"cannot write `{path}`", why=str(error), fix="check the rights and the free space, and run again"
        ) from None


def _whole(tensors: dict[str, Tensor], wanted: bool) -> dict[str, Tensor]:
    """All of each tensor, on the CPU where it is `wanted`; all ranks must ask."""
    whole = {}
    for name, value in tensors.items():
        full = parallel.whole(value.detach())
        if wanted:
            whole[name] = full.cpu().contiguous()
    return whole


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same, each with memory of its own: weights that two layers share are written for both."""
    seen: set[int] = set()
    unshared = {}
    for name, value in tensors.items():
        unshared[name] = value.clone() if value.data_ptr() in seen else value
        seen.add(value.data_ptr())
    return unshared


def _put(model: nn.Module, weights: dict[str, Tensor]) -> None:
    now = model.state_dict()
    model.load_state_dict({name: parallel.part(value, now.get(name, value)) for name, value in weights.items()})


def _moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    names = {id(weight): name for name, weight in model.named_parameters()}
    return {
        f"{key}.{names[id(weight)]}": value
        for weight, state in optimizer.state.items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    }


def _restore(model: nn.Module, optimizer: torch.optim.Optimizer, moments: dict[str, Tensor]) -> None:
    for name, weight in model.named_parameters():
        for key in ("step", "exp_avg", "exp_avg_sq"):
            value = moments.get(f"{key}.{name}")
            if value is not None:
                optimizer.state[weight][key] = value if key == "step" else parallel.part(value, weight)


def _point(link: Path, target: Path) -> None:
    with atomic_file(link) as draft:
        draft.symlink_to(target.name)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
