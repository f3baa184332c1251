"""Columns of all utterances a block at a time: what is computed of a block lies in the processor's cache.

An array of all utterances in between would cost more than the arithmetic: every page of it must be got from the
system first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from voxstill.core import world

BLOCK = 1 << 16
Counts = NDArray[np.integer]
"""Of milliseconds, frames or tokens, in as few bytes as they need."""
_Number = TypeVar("_Number", bound=np.generic)
_MOST_THREADS = 8  # more would wait for the memory


def blocks(num: int) -> Iterator[slice]:
    """The blocks of so many utterances."""
    return (slice(start, min(start + BLOCK, num)) for start in range(0, num, BLOCK))


def by_blocks(function: Callable[..., NDArray[Any]], kind: type[_Number], *columns: NDArray[Any]) -> NDArray[_Number]:
    """What `function` makes of columns of equal length, number by number."""
    made_N = np.empty(len(columns[0]), kind)

    def make(block: slice) -> None:
        made_N[block] = function(*(column_N[block] for column_N in columns))

    in_threads(make, blocks(len(made_N)))
    return made_N


def in_threads(function: Callable[..., None], *arguments: Iterable[Any]) -> None:
    """Call `function` as `map` would, in a thread for each core, as NumPy computes outside of Python's global lock.

    Arguments are drawn in order, but for the first two those of a call when a thread is free for it. An error of a
    call is raised at the end.
    """
    drawn = zip(*arguments, strict=True)
    head = list(islice(drawn, 2))
    calls, lock = chain(head, drawn), Lock()

    def work() -> None:
        while True:
            with lock:
                call = next(calls, None)
            if call is None:
                return
            function(*call)

    # a thread costs more than the only block of a small corpus
    num_helpers = min(world.num_cores(), _MOST_THREADS) - 1 if len(head) > 1 else 0
    with ThreadPoolExecutor(max(num_helpers, 1)) as pool:
        helpers = [pool.submit(work) for _ in range(num_helpers)]
        work()
        for helper in helpers:
            helper.result()


def narrow(counts: Counts) -> Counts:
    """Counts in as few bytes as they need: the fewer, the faster they are looked up in any order."""
    return counts.astype(np.min_scalar_type(counts.max()))
