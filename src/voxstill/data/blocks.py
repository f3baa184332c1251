"""Columns of all utterances a block at a time: what is computed of a block lies in the processor's cache.

An array of all utterances in between would cost more than the arithmetic: every page of it must be got from the
system first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 16
Counts = NDArray[np.integer]
"""Of milliseconds, frames or tokens, in as few bytes as they need."""
_Number = TypeVar("_Number", bound=np.generic)


def blocks(num: int) -> Iterator[slice]:
    """The blocks of so many utterances."""
    return (slice(start, min(start + BLOCK, num)) for start in range(0, num, BLOCK))


def by_blocks(function: Callable[..., NDArray[Any]], kind: type[_Number], *columns: NDArray[Any]) -> NDArray[_Number]:
    """What `function` makes of columns of equal length, number by number."""
    made_N = np.empty(len(columns[0]), kind)
    for block in blocks(len(made_N)):
        made_N[block] = function(*(column_N[block] for column_N in columns))
    return made_N


def narrow(counts: Counts) -> Counts:
    """Counts in as few bytes as they need: the fewer, the faster they are looked up in any order."""
    return counts.astype(np.min_scalar_type(counts.max()))
