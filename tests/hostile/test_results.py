"""Files of an experiment that were changed into something else: `voxstill report` says which, or leaves a line out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from voxstill import cli

RATES = {"words": 2, "wer": 0.5}
FIGURES: dict[str, Any] = {
    "split": "test",
    "corpus": {"work": "/w", "utterances": "u"},
    "recogniser": "model",
    "normalizer": "basic",
    "decode": {"beam": 1},
    "wer": 0.5,
    "cer": 0.5,
    "interval": [0.1, 0.9],
    "interval_over": "speakers",
    "words": 2,
    "utterances": 1,
    "parameters": 10,
    **{f"by_{name}": {"a": RATES, "b": RATES} for name in ("speaker", "dataset", "dialect", "duration")},
}
ROW = {"id": "a", "text": "ba du", "speaker": "s", "dataset": "d", "dialect": None, "start_ms": 0, "end_ms": 9}
BAD = (None, [], "x", float("inf"), 10**400, "\ud800")


@pytest.fixture
def exp(tmp_path: Path) -> Path:
    """An experiment with one result, without a training."""
    result = tmp_path / "evaluation" / "test"
    result.mkdir(parents=True)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"work": str(tmp_path / "work")}))
    (tmp_path / "environment.json").write_text('{"recipe": "r"}')  # without notes all versions are looked up
    (result / "figures.json").write_text(json.dumps(FIGURES))
    for name in ("ref.jsonl", "hyp.jsonl"):
        (result / name).write_text(json.dumps(ROW) + "\n")
    return tmp_path


def report(exp: Path) -> int:
    return cli.main(["report", str(exp), "--log-level", "error"])


def test_the_result_is_on_the_page(exp: Path) -> None:
    assert report(exp) == 0
    assert "50.0" in (exp / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("file", ["figures.json", "ref.jsonl", "hyp.jsonl"])
def test_a_result_with_another_value_is_shown_or_refused_in_words(
    exp: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, whole = exp / "evaluation" / "test" / file, FIGURES if file == "figures.json" else ROW
    for name in whole:
        for value in BAD:
            path.write_text(json.dumps({**whole, name: value}) + "\n")
            capsys.readouterr()
            assert report(exp) in (0, 2, 3), (name, value)
        path.write_text(json.dumps({key: value for key, value in whole.items() if key != name}) + "\n")
        assert report(exp) in (0, 2, 3), name
    for text in ("[" * 100_000, "null", "5", "[]", "1" * 5000):
        path.write_text(text)
        capsys.readouterr()
        assert report(exp) == 3, text[:9]
        assert "is not a result of an evaluation" in capsys.readouterr().err


def test_lines_that_are_no_metrics_and_odd_notes_are_left_out(exp: Path) -> None:
    good = [json.dumps({"step": step, "loss": 1.0 / step}) for step in (1, 2, 3)]
    odd = ["null", "[]", "[" * 100_000, '{"step": "x", "loss": 1}', '{"step": 1, "split": {}}', '{"step": 1, "lo']
    (exp / "metrics.jsonl").write_text("\n".join([*good, *odd]))
    for notes in ("null", "5", '"method"', "[" * 100_000):
        (exp / "environment.json").write_text(notes)
        for steps in ("null", '{"steps": 5}', '{"steps": [5]}', '{"steps": [{"name": "a", "seconds": "x"}]}'):
            (exp / "report.json").write_text(steps)
            assert report(exp) == 0
    assert "Training loss" in (exp / "report.html").read_text(encoding="utf-8")
