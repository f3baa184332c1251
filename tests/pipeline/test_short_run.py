"""A run of a few steps without a dev split ends well: it has no validation and fewer steps than a log line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import soundfile

from tones import TEXTS, speak
from voxstill import cli
from voxstill.storage.rundir import RunDir


def test_a_run_of_a_few_steps_without_a_dev_split_ends_with_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = []
    for i, text in enumerate((*TEXTS, *TEXTS)):
        soundfile.write(tmp_path / f"{i}.wav", speak(text, i)[0], 16_000)
        rows.append({"id": str(i), "audio": f"{i}.wav", "text": text, "split": "train"})
    (tmp_path / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree = {
        "work": str(tmp_path / "work"),
        "source": {"uri": str(tmp_path / "manifest.jsonl")},
        "engine": {"name": "inline"},
        "monitor": {"port": 0},
        "teacher": {"name": "echo"},
        "plan": {"budget_ms": 8000},
        "train": {"loader_workers": 0, "root": str(tmp_path / "exp")},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(tree))
    command = ["run", str(tmp_path / "config.yaml"), "--max-batches", "3", "--json"]
    assert cli.main(command) == 0, capsys.readouterr().err
    [run] = map(RunDir, (tmp_path / "exp").iterdir())
    assert [json.loads(line)["step"] for line in run.metrics.read_text().splitlines()] == [3]
    assert run.report.is_file()
    run.metrics.unlink()  # as earlier versions left it
    assert cli.main(command) == 0, capsys.readouterr().err
