"""Times and results of the steps of `voxstill run`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from voxstill.core.monitor import clock, log
from voxstill.pipeline.run_result import StepResult


class Steps:
    """Times and results of the steps so far, one row for each."""

    def __init__(self) -> None:
        self.rows: list[StepResult] = []
        self._start = time.perf_counter()

    @contextmanager
    def step(self, name: str) -> Iterator[Callable[..., None]]:
        """Time one step; the block says in words what came out, and gives its figures by name.

        A figure that is None is left out.
        """
        start = time.perf_counter()
        outcome: list[tuple[str, dict[str, float]]] = []

        def result(text: str, **figures: float | None) -> None:
            outcome.append((text, {name: value for name, value in figures.items() if value is not None}))

        log.info("%s ...", name)
        yield result
        text, figures = outcome[-1] if outcome else ("", {})
        row = StepResult(step=name, result=text, seconds=time.perf_counter() - start, figures=figures)
        self.rows.append(row)
        log.info("%s: %s (%s)", name, row.result, clock(row.seconds))

    @property
    def seconds(self) -> float:
        """Wall-clock seconds since the first step started."""
        return time.perf_counter() - self._start
