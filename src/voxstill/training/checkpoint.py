"""A checkpoint is whole or absent, holds no pickles, and resumes to the same bits on a CPU.

`model.safetensors` holds weights and buffers, `optimizer.safetensors` the optimizer's moments by the weights' names,
`average.safetensors` the running mean, `state.json` the loop's few numbers and the checksums of the others. Randomness
has no state: it is drawn from (seed, step, rank).

One process writes into `checkpoints/`: it holds the lease of the experiment. So what begins with a dot there when it
has just saved is what a killed process left.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from voxstill.core.atomic import atomic_file, atomic_folder, remove
from voxstill.core.config import Train
from voxstill.core.errors import StorageError, TrainingError, system_code
from voxstill.core.monitor import log
from voxstill.storage.rundir import RunDir
from voxstill.training import parallel
from voxstill.training import state as state_file
from voxstill.training.muon import ADAMW_MOMENTS, Muon
from voxstill.training.optim import Average
from voxstill.training.state import State


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
    # what is there and whole is this very step: removing it would leave `last` without a target
    if not final.exists() or state_file.faults(final):
        _write(final, files, state, average.count)
    _point(run.last, final)
    judged = best(run, cfg.keep_best)
    _point(run.best, judged[0] if judged else final)
    stay = [final, *judged, before_rise(run)]
    _flush(run.checkpoints)  # the links are on disk before what they pointed to goes
    for old in sorted(run.checkpoints.iterdir()):
        if old.name.startswith(".") or (step := state_file.step_of(old)) is None:
            continue
        is_kept = cfg.keep_every is not None and step % cfg.keep_every == 0 and (old / state_file.NAME).is_file()
        if old not in stay and not is_kept:
            old.rename(_unused(old))
    for left in run.checkpoints.glob(".*"):
        remove(left)


def newest(run: RunDir) -> Path | None:
    """The checkpoint to continue from, which is whole: that of `last`, else the newest; None if there is none.

    Broken ones are logged and ignored. TrainingError if there are checkpoints and none of them is whole.
    """
    steps = {folder: step for folder in run.checkpoints.glob("*") if (step := state_file.step_of(folder)) is not None}
    folders = sorted(steps, key=lambda folder: steps[folder], reverse=True)
    is_passed_over = False
    if run.last.is_symlink():
        target = run.last.readlink().name
        folders.sort(key=lambda folder: folder.name != target)
        if not folders or folders[0].name != target:
            log.warning("`%s` points to `%s`, which is not there", run.last, target)
            is_passed_over = True
    elif run.last.is_dir():  # a copy that followed links
        log.warning("`%s` is a folder instead of a link, and is ignored", run.last)
        is_passed_over = True
    for folder in folders:
        if (fault := _fault(folder)) is None:
            if is_passed_over:
                log.warning("the training resumes from `%s`, the newest complete checkpoint", folder)
            return folder
        _warn(folder, fault)
        is_passed_over = True
    if is_passed_over:
        raise TrainingError(
            f"no checkpoint in `{run.checkpoints}` is complete",
            code="checkpoint-broken",
            why=f"the newest is broken: {_fault(folders[0])}" if folders else f"`{run.last.name}` points to none",
            fix="restore one from a copy, as `epoch=E-step=S`; or remove the folder, to start at step 0",
        )
    return None


def set_aside_diverged(run: RunDir, cfg: Train) -> None:
    """Rename the checkpoints that were written since the loss started to rise: `last` then points to one from before.

    Where there is none from before, nothing is renamed.
    """
    sound = before_rise(run)
    if sound is not None:
        _set_aside(run, lambda state: state.risen_from is not None, "diverged", sound, cfg)
        log.warning("`last` is now `%s`, from before the training diverged", sound.name)


def go_back(run: RunDir, folder: Path, cfg: Train) -> None:
    """Rename the checkpoints of later steps than those of `folder`, to which `last` then points."""
    step = state_file.read(folder).state.step
    _set_aside(run, lambda state: state.step > step, "superseded", folder, cfg)


def _set_aside(run: RunDir, goes: Callable[[State], bool], word: str, newest: Path, cfg: Train) -> None:
    for folder in run.checkpoints.glob("epoch=*"):
        if (state := _state(folder)) is not None and goes(state):
            aside = folder.with_name(f"{word}-{folder.name}")
            log.warning("`%s`, with loss %s, is now `%s`", folder, _number(state.loss), aside.name)
            remove(aside)
            folder.rename(aside)
    _point(run.last, newest)
    _point(run.best, next(iter(best(run, cfg.keep_best)), newest))


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def before_rise(run: RunDir) -> Path | None:
    """The newest checkpoint at which the loss had not risen; its weights are not read."""
    states = ((folder, _state(folder)) for folder in run.checkpoints.glob("epoch=*"))
    sound = [(state.step, folder) for folder, state in states if state is not None and state.risen_from is None]
    return max(sound)[1] if sound else None


def best(run: RunDir, num: int) -> list[Path]:
    """The checkpoints that were judged with the least error on the dev split, at most `num`, the best first.

    Their weights are not read: `whole_best` does.
    """
    return _judged(run)[:num]


def whole_best(run: RunDir, num: int) -> list[Path]:
    """The same of those that are whole; the others are logged."""
    folders: list[Path] = []
    for folder in _judged(run):
        if len(folders) == num:
            break
        if (fault := _fault(folder)) is None:
            folders.append(folder)
        else:
            _warn(folder, fault)
    return folders


def _judged(run: RunDir) -> list[Path]:
    states = ((folder, _state(folder)) for folder in run.checkpoints.glob("epoch=*"))
    judged = [
        (state.error, -state.step, folder)
        for folder, state in states
        if state is not None and state.error is not None and math.isfinite(state.error)
    ]
    return [folder for _, _, folder in sorted(judged)]


def _state(folder: Path) -> State | None:
    """The state in a checkpoint; None in what a killed process left, and in a broken one, which `newest` logs."""
    if state_file.step_of(folder) is None:
        return None
    try:
        return state_file.read(folder).state
    except (OSError, ValueError):
        return None


def _fault(folder: Path) -> str | None:
    return next((f"`{name}`: {reason}" for name, reason in state_file.faults(folder).items()), None)


def _warn(folder: Path, fault: str) -> None:
    log.warning("the checkpoint `%s` is broken and is ignored: %s", folder, fault)


def _unused(folder: Path) -> Path:
    """A name with a dot for a checkpoint to remove: after one rename it is not a checkpoint any more."""
    names = (folder.with_name(f".{folder.name}.removed{i or ''}") for i in itertools.count())
    return next(path for path in names if not path.exists())


def load_mean(model: nn.Module, folders: Sequence[Path]) -> None:
    """Load the mean of the weights and buffers of some checkpoints into the model; counters are of the first."""
    checkpoints = [load_file(folder / "model.safetensors") for folder in folders]
    mean = {
        name: torch.stack([weights[name].double() for weights in checkpoints]).mean(0).to(value.dtype)
        if value.is_floating_point()
        else value
        for name, value in checkpoints[0].items()
    }
    _put(model, mean)


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, average: Average) -> State:
    """Load a checkpoint, one that `newest` has chosen, into model, optimizer and average."""
    saved = state_file.read(folder)
    average.count = saved.averaged
    load_weights(model, folder)
    _restore(model, optimizer, load_file(folder / "optimizer.safetensors"))
    if average.count:
        now = model.state_dict()
        mean = load_file(folder / "average.safetensors")
        average.mean = {name: parallel.part(value, now[name]) for name, value in mean.items()}
    return saved.state


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """All weights and buffers, on the CPU; all ranks must ask."""
    return _whole(model.state_dict(), True)


def load_weights(model: nn.Module, folder: Path) -> None:
    """Load the weights of one checkpoint into the model."""
    _put(model, load_file(folder / "model.safetensors"))


def _write(final: Path, files: dict[str, dict[str, Tensor]], state: State, averaged: int) -> None:
    with atomic_folder(final) as draft:
        with as_storage_error(draft):
            for name, tensors in files.items():
                save_file(_unshared(tensors), draft / f"{name}.safetensors")
        state_file.write(draft, state, averaged)
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
            f"cannot write `{path}`",
            code=system_code(error),
            why=str(error),
            fix="check the permissions and the free space, and run again",
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
    try:
        model.load_state_dict({name: parallel.part(value, now.get(name, value)) for name, value in weights.items()})
    except RuntimeError as error:
        raise TrainingError(
            "the weights of the checkpoint do not fit the student",
            code="checkpoint-other-model",
            why=" ".join(str(error).split())[:300],
            fix="continue with the version of voxstill and the `train.distill.layers` that started the training, "
            "or move "
            "the folder away to start again",
        ) from None


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
        # another optimizer, where `train.optimizer` was changed, begins with those that both have
        for key in optimizer.moments(weight) if isinstance(optimizer, Muon) else ADAMW_MOMENTS:
            value = moments.get(f"{key}.{name}")
            if value is not None:
                # the fused optimizer of a GPU counts its steps there
                optimizer.state[weight][key] = (
                    value.to(weight.device) if key == "step" else parallel.part(value, weight)
                )


def _point(link: Path, target: Path) -> None:
    if link.is_dir() and not link.is_symlink():  # a copy that followed links; no rename replaces it
        link.rename(_unused(link))
    with atomic_file(link) as draft:
        draft.symlink_to(target.name)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
