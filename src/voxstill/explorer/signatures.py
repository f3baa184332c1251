"""Signatures of texts: which runs of three bytes occur in one, in 256 bits, so that a search compares few texts.

A text contains another only where it has all of its bits. Bytes of UTF-8 are counted, so any script will do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

COLUMNS = ("signature_0", "signature_1", "signature_2", "signature_3")
"""Columns of the joined file, 64 bits each, the lowest bits first."""
FUNCTION = "signature"
_BITS = 64 * len(COLUMNS)
_RUN = 3
_FACTORS = (np.uint8(167), np.uint8(91), np.uint8(219))
"""Odd, so that every byte of a run changes its hash."""


def register(file: duckdb.DuckDBPyConnection) -> None:
    """Make `signature(VARCHAR)` known to a connection; it is a STRUCT of `COLUMNS`."""
    file.create_function(  # type: ignore[call-overload]  # modules with its enumerations differ between versions
        FUNCTION,
        lambda texts: _of_arrow(texts),  # noqa: PLW0108 - annotations would be evaluated
        ["VARCHAR"],
        f"STRUCT({', '.join(f'{name} UBIGINT' for name in COLUMNS)})",
        type="arrow",
        null_handling="special",
    )


def of(texts: pa.Array | pa.ChunkedArray) -> NDArray[np.uint64]:
    """The signatures of texts, [N, 4]; that of null is 0."""
    import pyarrow as pa

    array = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    array = array.cast(pa.large_string())
    if not len(array):
        return np.zeros((0, len(COLUMNS)), np.uint64)
    _, offsets, data = array.buffers()
    offset_N = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    bytes_T = np.frombuffer(data or b"", np.uint8)[offset_N[0] : offset_N[-1]]
    is_set_NB = np.zeros(len(array) * _BITS, np.bool_)
    if len(bytes_T) >= _RUN:
        start_N = np.arange(0, len(is_set_NB), _BITS, dtype=np.intp)
        place_T = np.repeat(start_N, np.diff(offset_N))[: 1 - _RUN]
        place_T += _hashes(bytes_T)  # a run that ends in the next text sets a bit too many, which does no harm
        is_set_NB[place_T] = True
    return np.packbits(is_set_NB, bitorder="little").view(np.uint64).reshape(len(array), len(COLUMNS))


def condition(text: str) -> str:
    """The condition in SQL that holds for every text that contains this one, in lower case; "true" for short ones."""
    import pyarrow as pa

    if len(text.encode()) < _RUN:
        return "true"
    [signature_4] = of(pa.array([text]))
    fields = zip(COLUMNS, signature_4, strict=True)
    return " AND ".join(f"rows.{name} & {bits}::UBIGINT = {bits}::UBIGINT" for name, bits in fields if bits)


def _hashes(bytes_T: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A hash of the run of bytes that begins at each place, [T - 2]."""
    first_T, second_T, third_T = bytes_T[:-2], bytes_T[1:-1], bytes_T[2:]
    first, second, third = _FACTORS
    mixed_T = ((first_T * first) ^ (first_T >> 3)) + second_T * second
    hash_T: NDArray[np.uint8] = ((mixed_T ^ (mixed_T >> 4)) * third) ^ third_T
    return hash_T


def _of_arrow(texts: pa.Array | pa.ChunkedArray) -> pa.Array:
    import pyarrow as pa

    signature_N4 = of(texts)
    return pa.StructArray.from_arrays([pa.array(column_N) for column_N in signature_N4.T], list(COLUMNS))
