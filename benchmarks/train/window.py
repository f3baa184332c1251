"""The part of a training that `speed.py` and `peers.py` measure: the steps after the warm-up."""

from __future__ import annotations

import argparse
import time
from typing import Any

import cpu
import torch
from steps import OverError, StepListener


class Window(StepListener):
    """The steps after the warm-up."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.begun: float | None = None
        self.multiple = 1
        """It ends after a multiple of so many steps."""
        self.starts: list[float] = []
        """Of the steps, and of the ends of epochs, where no batch is left."""
        self.num_steps = 0
        self.audio_s = self.padded_s = self.waited_s = self.cpu_s = 0.0
        self.profiler: Any = None

    def before_batches(self) -> None:
        """Start counting after the warm-up; OverError once `args.seconds` have passed."""
        if self.begun is None:
            self.begun = time.perf_counter()
        now = time.perf_counter()
        ends = bool(self.starts) and now - self.starts[0] >= self.args.seconds
        ends = ends and self.num_steps > 0 and self.num_steps % self.multiple == 0
        if torch.cuda.is_available() and (not self.starts or ends):
            torch.cuda.synchronize()
            now = time.perf_counter()
        if self.starts or now - self.begun >= self.args.warmup:
            if self.args.profile and not self.starts:
                self.profiler = torch.profiler.profile()
                self.profiler.start()
            self.cpu_s = cpu.seconds() - self.cpu_s if ends or not self.starts else self.cpu_s
            self.starts.append(now)
        if ends:
            raise OverError

    def after_batch(self, audio_s: float, padded_s: float, waited_s: float) -> None:
        """Add up the audio of a batch that is counted."""
        if self.starts:
            self.num_steps += 1
            self.audio_s += audio_s
            self.padded_s += padded_s
            self.waited_s += waited_s

    def figures(self) -> dict[str, Any]:
        """Steps, audio in a second and in a CPU second, and the shares of waiting and of padding."""
        elapsed_s = self.starts[-1] - self.starts[0]
        return {
            "steps": self.num_steps,
            "audio_s_per_s": self.audio_s / elapsed_s,
            "audio_s_per_cpu_s": self.audio_s / self.cpu_s,
            "step_s": elapsed_s / self.num_steps,
            "data_wait": self.waited_s / elapsed_s,
            "padding": 1 - self.audio_s / self.padded_s,
        }
