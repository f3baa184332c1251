"""No thread of Arrow outlives a read: one that frees a buffer of Python at the end of the interpreter aborts it."""

from __future__ import annotations

import ast
from pathlib import Path

import voxstill


def test_parquet_is_read_without_threads_of_arrow() -> None:
    """Arrow's threads cannot be joined, so that the abort depends on timing: 2 of 14 failing commands."""
    with_threads = [
        f"{path.name}:{node.lineno}"
        for path in Path(voxstill.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("read", "iter_batches", "read_row_group", "read_row_groups", "read_table")
        and (names := {keyword.arg for keyword in node.keywords}) & {"columns"}
        and "use_threads" not in names
    ]
    assert with_threads == []
