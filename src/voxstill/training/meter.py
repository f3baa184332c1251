"""What a training logs of its steps and validations: `metrics.jsonl` and TensorBoard.

A full disk does not end the training here: a line that cannot be written is counted, and the next one is tried.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from voxstill.core import pcm
from voxstill.core.monitor import JsonLines, Timer, log
from voxstill.core.records import Batch
from voxstill.storage.rundir import RunDir
from voxstill.training.state import State

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Meter:
    """What is logged: `metrics.jsonl` and TensorBoard, by rank 0 alone."""

    def __init__(self, run: RunDir, writes: bool, state: State, ranks: int) -> None:
        self.waiting, self._run, self._writes, self._ranks = Timer(), run, writes, ranks
        self._since = time.perf_counter()
        self._audio_s = self._padded_s = self._loss = 0.0
        self._figures: dict[str, float] = {}
        self._waited_s = 0.0  # before the line to come
        self.audio_s = 0.0
        """Audio that this rank has trained on."""
        self._num = self._tokens = 0
        self._num_steps, self._first_end_s = 0, 0.0
        self.flops_per_s = 0.0
        """Floating-point operations for a second of padded audio."""
        self._num_unwritten = 0
        self._board: SummaryWriter | None = None
        if writes:
            self._lines = JsonLines(run.metrics, state.rows)
            with self._unwritten():
                self._board = self._open_board(state)

    def count(self, batches: list[Batch], loss: float | None, figures: dict[str, float]) -> None:
        """Add one step to the line to come; the other ranks had as many utterances, of nearly the same lengths.

        A step that was skipped has no loss and no figures, which may be NaN: it counts as time and audio alone.
        """
        self._num_steps += 1
        if self._num_steps == 1:
            self._first_end_s = time.perf_counter()
        for batch in batches:
            audio_s = pcm.samples_to_s(float(batch.audio_len_B.sum()))
            self.audio_s += audio_s
            self._audio_s += self._ranks * audio_s
            self._padded_s += pcm.samples_to_s(self._ranks * batch.audio_BT.numel())
            self._tokens += self._ranks * int(batch.token_len_B.sum())
        if loss is None:
            return
        self._loss += loss
        self._num += 1
        for name, value in figures.items():
            self._figures[name] = self._figures.get(name, 0.0) + value

    @property
    def steps_per_s(self) -> float:
        """The rate of the steps that were counted, the first of which warms up; 0 where there is no other."""
        elapsed_s = time.perf_counter() - self._first_end_s
        return (self._num_steps - 1) / elapsed_s if self._num_steps > 1 else 0.0

    @property
    def data_wait_s(self) -> float:
        """Time that this rank has waited for data."""
        return self._waited_s + self.waiting.seconds

    def of_rank(
        self, state: State, loss: float, norm: float, learning_rate: float, progress: float
    ) -> dict[str, float]:
        """The figures of a step for `watchdog.RankState`, also of one that was skipped."""
        return {
            "loss": loss,
            "grad_norm": norm,
            "lr": learning_rate,
            "audio_s": self.audio_s,
            "data_wait_s": self.data_wait_s,
            "skipped": state.skipped,
            "replaced": state.replaced,
            "epoch": state.epoch,
            "progress": progress,
        }

    def write(self, state: State, norm: float, lr: float, progress: float, more: Mapping[str, object]) -> None:
        """One line of means since the line before, with what `more` has: shares of the time, and answers."""
        elapsed, waited_s = time.perf_counter() - self._since, self.waiting.take()
        self._waited_s += waited_s
        row = {
            "step": state.step,
            "epoch": state.epoch,
            "progress": round(progress, 4),
            "loss": self._loss / self._num if self._num else None,
            **{name: value / self._num for name, value in self._figures.items()},
            "lr": lr,
            "grad_norm": norm,
            "audio_seconds_per_second": self._audio_s / elapsed,
            "tokens_per_second": self._tokens / elapsed,
            "tflops": self.flops_per_s * self._padded_s / elapsed / 1e12,
            "data_wait": waited_s / elapsed,
            **more,
            "padding": 1 - self._audio_s / self._padded_s if self._padded_s else 0.0,
            "skipped": state.skipped,
            "replaced": state.replaced,
            "seconds": state.seconds,
        }
        self._emit(row, state, "train")
        self._since = time.perf_counter()
        self._audio_s = self._padded_s = self._loss = 0.0
        self._figures, self._num, self._tokens = {}, 0, 0

    def write_split(self, split: str, state: State, figures: dict[str, float]) -> None:
        """One line for a validation."""
        self._emit({"step": state.step, "split": split, **figures, "seconds": state.seconds}, state, split)

    def close(self) -> None:
        """Write what TensorBoard holds back, and tell how much was not written in all."""
        if self._board is not None:
            with self._unwritten():
                self._board.close()
        if self._num_unwritten:
            log.warning("train: %d lines of the metrics were not written whole", self._num_unwritten)

    def _emit(self, row: dict[str, Any], state: State, group: str) -> None:
        if self._writes:
            with self._unwritten():
                self._lines.write(row)
                state.rows += 1
                self._draw(row, state, group)

    def _draw(self, row: Mapping[str, object], state: State, group: str) -> None:
        """Add a line to TensorBoard; after a failure by another writer, as its thread has ended then."""
        board, self._board = self._board or self._open_board(state), None
        for name, value in row.items():
            if isinstance(value, float):
                board.add_scalar(f"{group}/{name}", value, state.step)
        self._board = board

    def _open_board(self, state: State) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self._run.tensorboard), purge_step=state.step + 1 if state.step else None)

    @contextlib.contextmanager
    def _unwritten(self) -> Iterator[None]:
        """Warn of the first line that cannot be written, and count all of them."""
        try:
            yield
        except OSError as error:
            if not self._num_unwritten:
                why = error.strerror or error
                log.warning("train: the metrics cannot be written: %s; the training goes on without them", why)
            self._num_unwritten += 1
