"""Stages with works that raise, die or hang as their items ask for, and a run of the engine that keeps its rows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from voxstill import engine
from voxstill.core.config import Engine
from voxstill.core.metrics.figures import ModelFigures, Summary
from voxstill.engine import Chunk, Stage, StageWork

Rows = dict[str, list[Any]]


@dataclass
class FunctionWork(StageWork):
    """A work that is what `make` returns in the process of the worker: a function, or an object with a `close`."""

    make: Callable[[], Callable[..., Any]]
    _function: Callable[..., Any] = field(init=False, repr=False, compare=False)

    def open(self) -> None:
        self._function = self.make()

    def __call__(self, items: Sequence[Any], payload: Any) -> Any:
        return self._function(items, payload)

    def close(self) -> None:
        close = getattr(self._function, "close", None)
        if close is not None:
            close()


class WorkWithoutFigures(StageWork):
    """A work whose model cannot say how it is."""

    def __call__(self, items: Sequence[Any], payload: object) -> list[Any]:
        return list(items)

    def figures(self) -> ModelFigures | None:
        raise RuntimeError("the engine does not answer")


@dataclass
class Twice(StageWork):
    """A stage's work: arrays of twice the item, with whatever mischief the items ask for."""

    def __call__(self, items: Sequence[Any], payload: Any) -> Any:
        for item in items:
            misbehave(item)
        return np.array([2 * number(item) for item in items], dtype=np.int64)


def misbehave(item: Any) -> None:
    if item == "raise":
        raise ValueError("this item is bad")
    if item == "die":
        os._exit(7)
    if item == "hang":
        time.sleep(600)


def number(item: Any) -> int:
    return item if isinstance(item, int) else -1


def named(items: Sequence[Any], payload: Any) -> list[str]:
    return [f"{item}:{int(value)}" for item, value in zip(items, payload, strict=True)]


def names() -> Callable[..., list[str]]:
    return named


def plain(items: Sequence[Any], payload: Any) -> list[str]:
    for item in items:
        misbehave(item)
    return [f"ok {item}" for item in items]


def slowly_but_for_hangs(items: Sequence[Any], payload: Any) -> list[str]:
    time.sleep(0.3)
    return plain(items, payload)


TWO_STAGES = (Stage(name="decode", work=Twice(), workers=2), Stage(name="teach", work=FunctionWork(names), workers=2))


ONE_STAGE = (Stage(name="work", work=FunctionWork(lambda: plain), workers=1),)


def aside(item: Any, reason: str) -> str:
    return f"aside {item}: {reason}"


def run(chunks: Any, stages: Sequence[Stage], **options: Any) -> tuple[Rows, Summary]:
    """The committed rows by chunk, each chunk committed once."""
    committed: Rows = {}

    def commit(chunk: Chunk, rows: list[Any]) -> None:
        assert chunk.id not in committed
        committed[chunk.id] = rows

    summary = engine.run(chunks, stages, commit, aside, Engine(**options))
    return committed, summary


def flat(rows: Rows) -> list[Any]:
    return [row for part in rows.values() for row in part]
