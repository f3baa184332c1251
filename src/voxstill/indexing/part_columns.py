"""Columns of the parts of an index, as its state needs them; tables of earlier versions lack some."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


def hex64(column: pa.ChunkedArray) -> bytes:
    """A column of 16 hexadecimal digits as 64-bit numbers, 0 where there are none."""
    joined = "".join(digits or 16 * "0" for digits in column.to_pylist())
    return np.frombuffer(bytes.fromhex(joined), ">u8").astype(np.uint64).tobytes()


def num_beyond(recordings: pa.Table, name: str, limit: float) -> int:
    """Rows of which a number is further from 0 than a limit; tables of earlier versions lack the column."""
    if name not in recordings.column_names:
        return 0
    return sum(number is not None and abs(number) > limit for number in recordings[name].to_pylist())


def removed_ids(recordings: pa.Table) -> list[str]:
    """The ids of utterances that were left out as they had been removed; tables of earlier versions lack the column."""
    if "removed" not in recordings.column_names:
        return []
    ids: list[str] = recordings["removed"].combine_chunks().flatten().field("id").to_pylist()
    return ids


def flattened(recordings: pa.Table, name: str) -> list[str]:
    """All values of a column of lists; tables of earlier versions lack the column."""
    return recordings[name].combine_chunks().flatten().to_pylist() if name in recordings.column_names else []
