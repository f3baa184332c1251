"""The text of a failure in the table of recordings is written and read by one pair of functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxstill.core.errors import DataError
from voxstill.indexing.failure import Failure, FailureKind


@given(st.text())
def test_any_reason_that_was_ever_written_is_read_and_written_the_same(text: str) -> None:
    assert Failure.parse(text).text == text


@given(st.sampled_from(FailureKind), st.none() | st.text())
def test_a_failure_comes_back_from_its_text(kind: FailureKind, detail: str | None) -> None:
    assert Failure.parse(Failure(kind, detail).text) == Failure(kind, detail)


@pytest.mark.parametrize(
    ("text", "is_transient"),
    [("cannot be read: it does not exist", True), ("cannot be decoded: x", False), ("silent: every sample", False)],
)
def test_only_failures_of_storage_are_transient(text: str, is_transient: bool) -> None:
    assert Failure.parse(text).is_transient is is_transient


def test_an_error_of_the_decoder_is_a_failure_of_its_kind() -> None:
    assert Failure.of(DataError("truncated", why="1 s found: 2 s promised")) == Failure(
        "truncated", "1 s found: 2 s promised"
    )
    assert Failure.of(DataError("silent")).text == "silent: "
