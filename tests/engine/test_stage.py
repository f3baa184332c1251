from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from voxstill.engine import chunk_id, chunks_of


@given(st.lists(st.text(), unique=True), st.integers(1, 9), st.randoms())
def test_every_item_is_in_exactly_one_chunk_whose_id_ignores_order(ids: list[str], size: int, chance: Any) -> None:
    chunks = list(chunks_of(ids, size, str))
    assert [item for chunk in chunks for item in chunk.items] == ids
    assert all(len(chunk.items) == size for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == len(chunks)
    for chunk in chunks:
        shuffled = chance.sample(chunk.items, len(chunk.items))
        assert chunk_id(shuffled) == chunk.id


@given(st.lists(st.integers(0, 9)), st.integers(1, 5), st.integers(0, 20))
def test_a_chunk_of_several_items_keeps_to_its_budget(costs: list[int], size: int, budget: int) -> None:
    chunks = list(chunks_of(costs, size, str, float, budget))
    assert [item for chunk in chunks for item in chunk.items] == costs
    assert all(len(chunk.items) == 1 or sum(chunk.items) <= budget for chunk in chunks)
    assert all(len(chunk.items) <= size for chunk in chunks)


def test_chunks_are_cut_lazily() -> None:
    source = iter(range(1_000_000_000))
    next(chunks_of(source, 4, str))
    assert next(source) == 4
