"""Kernels that keep one state in each lane: how many lanes they have, and how a lane sees its neighbour."""

from __future__ import annotations

import triton
import triton.language as tl


def shape(num_states: int) -> dict[str, int]:
    """The number of lanes for some states, a constant of the kernels, and that of warps."""
    lanes = max(triton.next_power_of_2(num_states), 32)
    return {"LANES": lanes, "num_warps": min(max(lanes // 64, 1), 8)}


@triton.jit  # type: ignore[untyped-decorator]
def neighbour(states: tl.tensor, index: tl.tensor, nothing: tl.constexpr, LANES: tl.constexpr) -> tl.tensor:
    """What the lanes of that index hold; `nothing` past the ends."""
    state = tl.gather(states, tl.minimum(tl.maximum(index, 0), LANES - 1), 0)
    return tl.where((index >= 0) & (index < LANES), state, nothing)
