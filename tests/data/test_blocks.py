"""Columns looked at a block at a time are what they are as a whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.core import world
from voxstill.data import blocks
from voxstill.data.blocks import BLOCK, by_blocks, in_threads, narrow


@pytest.mark.parametrize("num", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_a_column_made_by_blocks_is_the_one_made_as_a_whole(num: int) -> None:
    durations_ms, tempo_N = np.arange(num), np.linspace(0.9, 1.1, num, dtype=np.float32)
    assert [row for block in blocks.blocks(num) for row in range(*block.indices(num))] == list(range(num))
    assert np.array_equal(by_blocks(np.multiply, np.float64, durations_ms, tempo_N), durations_ms * tempo_N)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2**40), min_size=1))
def test_narrow_counts_are_the_same_counts(counts: list[int]) -> None:
    small_N = narrow(np.array(counts))
    assert small_N.tolist() == counts
    assert small_N.itemsize <= 8


@pytest.mark.parametrize("cores", [1, 4])
@pytest.mark.parametrize("num", [0, 1, 1000])
def test_threads_call_a_function_once_for_each_of_its_arguments_which_are_drawn_in_order(
    cores: int, num: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "num_cores", lambda: cores)
    random, results = np.random.default_rng(0), np.zeros(num)
    in_threads(results.__setitem__, range(num), (random.random() for _ in range(num)))
    assert np.array_equal(results, np.random.default_rng(0).random(num))


@pytest.mark.parametrize("cores", [1, 4])
def test_an_error_in_a_thread_is_raised(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "num_cores", lambda: cores)
    with pytest.raises(TypeError):
        in_threads([].insert, [0, 0, "0", 0], "abcd")
