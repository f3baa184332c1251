"""Arrow arrays of Python values and NumPy arrays of columns, without pandas.

`pyarrow.array` and `to_numpy` import it wherever it is installed. That takes a third of a second, which every command
and every worker of the engine would pay for its first table.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_OFFSET = 2**31 - 1


def arrow_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """The values, None if there is none, as an array of a type that a column of a noun has.

    Lists are sequences and structs are mappings. TypeError if a value is of another type, OverflowError if an
    integer needs more than 64 bits.
    """
    import pyarrow as pa

    num_null = values.count(None)
    if num_null == len(values):
        return pa.nulls(num_null, kind)
    is_valid = [value is not None for value in values] if num_null else []
    validity = pa.py_buffer(np.packbits(is_valid, bitorder="little")) if num_null else None
    buffers, children = [validity], []

    def filled(filler: object) -> Sequence[Any]:
        return [filler if value is None else value for value in values] if num_null else values

    if pa.types.is_struct(kind):
        rows = filled({field.name: None for field in kind})
        children = [arrow_array([row[field.name] for row in rows], field.type) for field in kind]
    elif pa.types.is_list(kind):
        items = filled(())
        buffers.append(_offsets(items))
        children = [arrow_array(list(itertools.chain.from_iterable(items)), kind.value_type)]
    elif pa.types.is_string(kind):
        encoded = [text.encode() for text in filled("")]
        buffers += [_offsets(encoded), pa.py_buffer(b"".join(encoded))]
    elif pa.types.is_binary(kind):
        blobs = filled(b"")
        buffers += [_offsets(blobs), pa.py_buffer(b"".join(blobs))]
    elif pa.types.is_boolean(kind):
        buffers.append(pa.py_buffer(np.packbits(array("b", filled(0)), bitorder="little")))
    else:
        code = {pa.int64(): "q", pa.int32(): "i", pa.float64(): "d"}[kind]
        buffers.append(pa.py_buffer(array(code, filled(0))))
    return pa.Array.from_buffers(kind, len(values), buffers, num_null, children=children)


def arrow_numbers(values_N: NDArray[Any], is_valid_N: NDArray[np.bool_] | None = None) -> pa.Array:
    """A NumPy array of numbers as an Arrow array that shares its memory; null where a value is not valid."""
    import pyarrow as pa

    validity = None if is_valid_N is None else pa.py_buffer(np.packbits(is_valid_N, bitorder="little"))
    buffers = [validity, pa.py_buffer(np.ascontiguousarray(values_N))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values_N.dtype), len(values_N), buffers)


def numpy_array(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """The values of a column of numbers, booleans or texts, as `to_numpy` of Arrow returns them.

    Where one is missing, integers become float64 with NaN, and booleans objects with None, as texts are.
    """
    import pyarrow as pa

    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    parts = [_numpy_chunk(chunk, has_nulls=bool(column.null_count)) for chunk in chunks or [pa.nulls(0, column.type)]]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _numpy_chunk(chunk: pa.Array, *, has_nulls: bool) -> NDArray[Any]:
    import pyarrow as pa

    is_bool = pa.types.is_boolean(chunk.type)
    if not (is_bool or pa.types.is_integer(chunk.type) or pa.types.is_floating(chunk.type)) or (is_bool and has_nulls):
        values_N = np.empty(len(chunk), object)
        values_N[:] = chunk.to_pylist()
        return values_N
    start, end = chunk.offset, chunk.offset + len(chunk)
    validity, data = chunk.buffers()
    if not len(chunk):
        return np.zeros(0, chunk.type.to_pandas_dtype())
    if is_bool:
        return _bits(data, start, end)
    values_N = np.frombuffer(data, chunk.type.to_pandas_dtype(), end)[start:]
    if not has_nulls:
        return values_N
    is_valid_N = np.ones(len(chunk), np.bool_) if validity is None else _bits(validity, start, end)
    return np.where(is_valid_N, values_N, np.nan)


def _bits(buffer: pa.Buffer, start: int, end: int) -> NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(buffer, np.uint8), count=end, bitorder="little")[start:].astype(np.bool_)


def _offsets(values: Sequence[Sequence[Any]]) -> pa.Buffer:
    """Where each value begins and the last one ends, of all that follow one another."""
    import pyarrow as pa

    offset_N = np.cumsum([0, *map(len, values)])
    if offset_N[-1] > _MAX_OFFSET:
        raise OverflowError(f"a column of {offset_N[-1]:,} bytes or items is too long for a part of a table")
    return pa.py_buffer(offset_N.astype(np.int32))
