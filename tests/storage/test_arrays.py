"""Arrow arrays and columns that are made without pandas are those that pyarrow makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.storage.arrays import arrow_array, arrow_numbers, numpy_array

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=9)
whole = st.integers(-(2**63), 2**63 - 1)
word = st.fixed_dictionaries({"text": texts, "prob": st.none() | st.floats()})
WORD = pa.struct([pa.field("text", pa.string(), nullable=False), pa.field("prob", pa.float64())])
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): texts,
    pa.binary(): st.binary(max_size=9),
    pa.int64(): whole,
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.list_(pa.field("item", pa.int64(), nullable=False)): st.lists(whole, max_size=3),
    pa.list_(pa.field("item", WORD, nullable=False)): st.lists(word, max_size=3),
    WORD: word,
}


@pytest.mark.parametrize("kind", VALUES, ids=str)
@given(data=st.data())
@settings(max_examples=40)
def test_an_array_is_the_one_that_pyarrow_makes(kind: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | VALUES[kind], max_size=20) | st.lists(VALUES[kind], max_size=20))
    ours, theirs = arrow_array(values, kind), pa.array(values, kind)
    ours.validate(full=True)
    assert ours.type == theirs.type
    assert ours.null_count == theirs.null_count
    assert repr(ours.to_pylist()) == repr(theirs.to_pylist())  # NaN is not equal to NaN


@pytest.mark.parametrize(
    ("value", "kind", "error"),
    [
        (2**63, pa.int64(), OverflowError),
        (1.5, pa.int64(), TypeError),
        ("1", pa.float64(), TypeError),
        ("1", pa.bool_(), TypeError),
        ("\ud800", pa.string(), UnicodeEncodeError),
    ],
)
def test_a_value_of_another_type_is_refused(value: object, kind: pa.DataType, error: type[Exception]) -> None:
    with pytest.raises(error):
        arrow_array([value], kind)


def test_a_table_is_written_and_read_without_pandas_and_without_the_functions_of_arrow() -> None:
    code = (
        "import sys\n"
        "from voxstill.core.records import Label\n"
        "from voxstill.storage import tables\n"
        "rows = [Label(utterance_id='a', recipe='r', teacher='t', text='one')]\n"
        "assert tables.from_parquet(tables.to_parquet(rows, Label), Label) == rows\n"
        "print(*{'pandas', 'pyarrow.compute'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


COLUMNS = st.sampled_from([pa.int64(), pa.int32(), pa.float64(), pa.float32(), pa.bool_(), pa.string()])


@given(st.data(), COLUMNS, st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_column_becomes_what_arrow_makes_of_it(data: st.DataObject, kind: pa.DataType, has_nulls: bool) -> None:
    value = {
        "string": st.text(max_size=3),
        "bool": st.booleans(),
        "double": st.floats(width=32, allow_nan=False),
        "float": st.floats(width=32, allow_nan=False),
    }.get(str(kind), st.integers(-(2**31), 2**31 - 1))
    parts = data.draw(st.lists(st.lists(st.none() | value if has_nulls else value, max_size=20), max_size=3))
    column = pa.chunked_array([pa.array(part, kind) for part in parts], kind)[data.draw(st.integers(0, 3)) :]
    expected_N, actual_N = column.to_numpy(), numpy_array(column)
    assert actual_N.dtype == expected_N.dtype
    np.testing.assert_array_equal(actual_N, expected_N)


@given(st.lists(st.none() | st.integers(-(2**31), 2**31 - 1)), st.sampled_from([np.int32, np.int64, np.float64]))
def test_numbers_of_numpy_become_what_arrow_makes_of_them(values: list[int | None], kind: type[np.number[Any]]) -> None:
    values_N = np.array([value or 0 for value in values], kind)
    is_valid_N = np.array([value is not None for value in values], np.bool_)
    assert arrow_numbers(values_N).equals(pa.array(values_N))
    assert arrow_numbers(values_N[::-2]).equals(pa.array(values_N[::-2]))
    assert arrow_numbers(values_N, is_valid_N).equals(pa.array(values_N, mask=~is_valid_N))


def test_no_step_loads_pandas(tmp_path: Path) -> None:
    samples_T = np.random.default_rng(0).normal(0, 0.1, 16_000).astype(np.float32)
    soundfile.write(tmp_path / "a.wav", samples_T, 16_000)
    code = (
        "import sys; from voxstill.cli import main\n"
        "for command in sys.argv[1:]:\n"
        "    try: main([*command.split(), '--set', 'engine=inline', '--json'])\n"
        "    except SystemExit as error: assert not error.code, command\n"
        "assert 'pandas' not in sys.modules"
    )
    commands = [f"index {tmp_path}/a.wav --work {tmp_path}/w", f"label {tmp_path}/w --set teacher=echo"]
    commands += [f"{command} {tmp_path}/w" for command in ("filter", "shard", "plan")]
    subprocess.run([sys.executable, "-c", code, *commands], check=True, stdout=subprocess.DEVNULL)
