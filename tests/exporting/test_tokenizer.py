"""The tokenizer of an exported student is that of its folder, wherever the process goes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from voxstill.decoding.exported import TOKENIZER, TOKENS, ExportedModel, vocabulary

EXPORTED = ExportedModel(
    kind="ctc",
    input="waveform",
    normalization=None,
    num_mels=None,
    frame_ms=80,
    min_samples=1,
    blank_id=0,
    delimiter_id=None,
    special_ids=[0],
    durations=[],
    num_parameters=1,
    model="m",
    weights="w",
    gate={},
    versions={},
    files={},
)


def test_a_relative_folder_is_the_one_of_where_the_process_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook that changes its folder: the tokenizer of the path before is not remembered."""
    encoded = []
    for name, merges in (("one", [("a", "b")]), ("other", [])):
        folder = tmp_path / name / "model"
        folder.mkdir(parents=True)
        (folder / TOKENS).write_text("<blk> 0\na 1\nb 2\nab 3\n")
        pieces = {"a": 0, "b": 1, "ab": 2}
        Tokenizer(models.BPE(vocab=pieces, merges=merges)).save(str(folder / TOKENIZER))
        monkeypatch.chdir(tmp_path / name)
        read = vocabulary(Path("model"), EXPORTED)
        monkeypatch.chdir(tmp_path)
        encoded.append(read.encodings("ab"))
    assert encoded == [[[3]], [[1, 2]]]
