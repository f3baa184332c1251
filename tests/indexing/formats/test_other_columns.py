"""Columns that the index does not keep are read from manifests of every form, by the ids of the utterances."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from voxstill.indexing.formats.other_columns import column

ROWS = [
    {"id": "a", "audio": "a.wav", "gender": "f", "text": "one"},
    {"id": "b", "audio": "b.wav", "gender": "m", "text": "two"},
    {"id": "c", "audio": "c.wav", "text": "three"},
]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def write_folder(path: Path) -> None:
    path.mkdir()
    pd.DataFrame(ROWS).to_csv(path / "metadata.csv", index=False)


def write_kaldi(path: Path) -> None:
    path.mkdir()
    (path / "wav.scp").write_text("a a.wav\nb b.wav\nc c.wav\n")
    (path / "utt2spk").write_text("a ann\nb bob\nc cas\n")
    (path / "spk2gender").write_text("ann f\nbob f\n")
    (path / "utt2gender").write_text("b m\n")


WRITERS: dict[str, Callable[[Path], object]] = {
    "m.jsonl": lambda path: path.write_text(LINES),
    "m.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES.encode())),
    "m.json": lambda path: path.write_text(json.dumps(ROWS)),
    "m.csv": lambda path: pd.DataFrame(ROWS).to_csv(path, index=False),
    "semicolons.csv": lambda path: pd.DataFrame(ROWS).to_csv(path, index=False, sep=";"),
    "m.tsv": lambda path: pd.DataFrame(ROWS).to_csv(path, index=False, sep="\t"),
    "m.parquet": lambda path: pd.DataFrame(ROWS).to_parquet(path),
    "folder": write_folder,
    "kaldi": write_kaldi,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_column_is_read_by_the_ids_of_its_rows(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    assert column(str(tmp_path / name), "gender") == {"a": "f", "b": "m"}
    assert column(str(tmp_path / name), "shoe_size") == {}
    assert column(str(tmp_path / name), "../gender") == {}


def test_what_is_no_manifest_has_no_columns(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    assert column(str(tmp_path), "gender") == {}
    assert column(str(tmp_path / "a.wav"), "gender") == {}
