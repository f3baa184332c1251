"""A trace of some steps of a training by torch.profiler, for Perfetto or chrome://tracing: `train.profile`."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from torch.profiler import profile, record_function

from voxstill.core.atomic import name_beside
from voxstill.core.monitor import log
from voxstill.storage.rundir import RunDir

WARM_UP_STEPS = 10
"""Steps that are made before: kernels are chosen and memory is allocated in them."""


class StepProfiler:
    """A `with` block in which `num_steps` steps are traced after the warm-up; without `num_steps` it does nothing.

    A validation, which may be of any length, or the end of the training ends the trace before. It is written to
    `profile/` of the experiment; where it cannot be, as on a full disk, that is logged and the training goes on.
    """

    def __init__(self, run: RunDir, num_steps: int | None, first_step: int) -> None:
        self._run, self._num_steps, self._begin = run, num_steps, first_step + WARM_UP_STEPS
        self._profile: profile | None = None
        self._mark: record_function | None = None
        self._step = first_step

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.end()
        if self._num_steps is not None and error is None and self._step < self._begin:
            log.warning("train: no step was profiled, as there were no more than %d", WARM_UP_STEPS)

    def before_step(self, step: int) -> None:
        """Before a step that comes after so many."""
        if self._num_steps is None:
            return
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
        self._step, self._mark = step, None
        if step == self._begin:
            self._profile = profile(record_shapes=True)  # of CPU and GPU
            self._profile.start()
        elif step == self._begin + self._num_steps:
            self.end()
        if self._profile is not None:
            self._mark = record_function(f"step {step + 1}")
            self._mark.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """End the trace where there is one, and write it."""
        traced, self._profile = self._profile, None
        if traced is None:
            return
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark, self._step = None, self._step + 1
        traced.stop()
        path = self._run.profile / f"steps={self._begin + 1}-{self._step}.json"
        try:
            _write(traced, path)
        except OSError as error:
            log.warning("train: `%s` cannot be written: %s; the training goes on", path, error.strerror or error)
        else:
            log.info("train: `%s` is a trace of these steps; https://ui.perfetto.dev opens it", path)


def _write(traced: profile, path: Path) -> None:
    """Write a trace, whole or not at all; OSError if it cannot be written."""
    path.parent.mkdir(exist_ok=True)
    with name_beside(path) as folder:  # torch leaves what it has begun beside the file
        folder.mkdir()
        draft = folder / path.name
        traced.export_chrome_trace(str(draft))
        # torch raises nothing where it could not write: there is no file then, or one that ends too early
        if not draft.exists() or not _ends(draft):
            raise OSError("torch could not write all of it: the disk may be full")
        draft.replace(path)


def _ends(trace: Path) -> bool:
    """Whether the JSON in a file has its last bracket."""
    with trace.open("rb") as file:
        file.seek(max(trace.stat().st_size - 16, 0))
        return file.read().rstrip().endswith(b"}")
