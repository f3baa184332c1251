"""One odd line of a manifest is named by its number, and nothing is made of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from voxstill.audio import codec
from voxstill.core.config import Source
from voxstill.core.errors import DataError
from voxstill.indexing.scan import scan

ODD = [
    r'"text": "a \ud800"',
    r'"id": "\udc80"',
    r'"speaker": "\ud83d"',
    r'"\ud800": "x"',
    r'"custom": {"more": ["\ud800"]}',
    '"channel": NaN',
    '"channel": Infinity',
    '"channel": 1e400',
    '"channel": 1e300',
    '"channel": 99999999999999999999999999',
    '"channel": -0.5',
    '"duration": NaN',
    '"start_ms": 1e400',
    '"end_ms": 1e300',
    '"weight": NaN',
    '"weight": -1',
    '"weight": 1e300',
    f'"weight": {"1" * 400}',
    f'"speaker": {"9" * 5000}',
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.wav").write_bytes(codec.encode(np.full(1600, 100, np.int16), "wav"))
    return tmp_path


@pytest.mark.parametrize("value", ODD, ids=lambda value: value[:30])
@pytest.mark.parametrize("name", ["m.jsonl", "m.json"])
def test_an_odd_value_is_an_error_that_names_its_row(folder: Path, value: str, name: str) -> None:
    rows = ['{"audio": "a.wav", "id": "first"}', '{"audio": "a.wav", ' + value + "}"]
    (folder / name).write_text("\n".join(rows) if name == "m.jsonl" else f"[{','.join(rows)}]")
    with pytest.raises(DataError) as caught:
        list(scan(Source(uri=str(folder / name))))
    if "999" not in value or name == "m.jsonl":  # Python reads no number of 5000 digits, wherever it stands
        assert f"{name}" in caught.value.what
        assert "2" in caught.value.what.replace(str(folder), "")


def test_a_whole_surrogate_pair_is_text(folder: Path) -> None:
    (folder / "m.jsonl").write_text(json.dumps({"audio": "a.wav", "text": "yes 😀"}))
    assert [entry.text for entry in scan(Source(uri=str(folder / "m.jsonl")))] == ["yes 😀"]
