"""Smaller copies of checkpoints: model folders in half precision, or of changed weights alone, uploaded while
the training continues."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from voxstill.core.atomic import atomic_folder, remove
from voxstill.core.config import Train
from voxstill.core.errors import StorageError
from voxstill.core.monitor import log
from voxstill.storage.rundir import RunDir
from voxstill.training import changes, upload

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Exports:
    """A `with` block in which each checkpoint gets a copy in `exports/`, a model folder that `save` writes.

    With `train.export_changes` it has the weights that differ from those of `base`. With `train.upload` one thread
    uploads the copies. What does not get there is logged: it stops no training. The end of the block waits for the
    copy that is under way.
    """

    def __init__(
        self, run: RunDir, cfg: Train, save: Callable[[RunDir, dict[str, Tensor]], None], base: str | None = None
    ) -> None:
        self._run, self._target, self._save = run, cfg.upload, save
        self._dtype = _DTYPES[cfg.export_dtype] if cfg.export_dtype else None
        self._base = base if cfg.export_changes else None
        self._thread = ThreadPoolExecutor(1) if self.are_wanted and cfg.upload else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=error is not None)

    @property
    def are_wanted(self) -> bool:
        """Whether there are copies: all ranks must ask for the weights then."""
        return self._dtype is not None or self._base is not None

    def add(self, name: str, weights: dict[str, Tensor]) -> None:
        """Write the copy of the checkpoint of this name, unless it is there; those whose checkpoint is gone go."""
        copy = RunDir(self._run.exports / name)
        if not copy.model.is_dir():
            with atomic_folder(copy.path) as draft:
                self._save(RunDir(draft), weights if self._dtype is None else in_half(weights, self._dtype))
                if self._base is not None:
                    changes.keep_changes(RunDir(draft).model, self._base)
            if self._thread is not None:
                self._thread.submit(self._upload, copy)
        for other in self._run.exports.iterdir():
            if not (self._run.checkpoints / other.name).is_dir():
                remove(other)

    def _upload(self, copy: RunDir) -> None:
        assert self._target is not None
        if not copy.path.is_dir():  # its checkpoint went while others were uploaded
            return
        try:
            upload.upload_export(self._run, copy, self._target)
        except (StorageError, OSError) as error:  # also of one that was removed meanwhile
            log.warning("train: the copy `%s` was not uploaded: %s", copy.path, error)


def in_half(weights: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights in half precision; what that cannot hold, and what is not a floating-point number, stays as it is.

    Weights that are one tensor stay one.
    """
    halves: dict[tuple[int, torch.Size], Tensor] = {}
    cast: dict[str, Tensor] = {}
    for name, value in weights.items():
        key = value.data_ptr(), value.shape
        if key not in halves:
            half = value.to(dtype) if value.is_floating_point() else value
            halves[key] = half if not half.is_floating_point() or torch.isfinite(half).all() else value
        cast[name] = halves[key]
    return cast
