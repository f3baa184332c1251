"""What `voxstill run` says of the student and its teacher, side by side."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from voxstill.pipeline.run_result import RunResult

GRAMMAR = Path(__file__).parents[2] / "examples" / "digits.jsgf"


@pytest.fixture(scope="module")
def summary(
    digits: Path,
    voxstill: Callable[..., dict[str, Any]],
    configure: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """Of a student that learnt next to nothing; each utterance of the test split has a speaker."""
    folder = tmp_path_factory.mktemp("comparison")
    rows = [json.loads(line) for line in (digits / "manifest.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows):
        row |= {"audio": str(digits / row["audio"]), "speaker": f"s{number}"}
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = configure(folder, folder / "manifest.jsonl", teacher={"name": "pocketsphinx", "grammar": str(GRAMMAR)})
    return voxstill("run", config, "--max-batches", "2")


def test_the_student_is_compared_with_its_teacher_on_the_same_utterances(summary: dict[str, Any]) -> None:
    comparison, wer = summary["comparison"], {side: summary[side]["wer"] for side in ("student", "teacher")}
    assert comparison["difference"] == pytest.approx(wer["student"] - wer["teacher"])
    assert comparison["difference"] > 0
    low, high = comparison["interval"]
    assert low <= comparison["difference"] <= high
    assert (comparison["units"], comparison["over"]) == (4, "speakers")
    assert comparison["p"] == pytest.approx(2 / 2**4)
    line = f"student - teacher: {100 * comparison['difference']:+.1f} points of WER"
    assert line in RunResult.from_dict(summary).to_text()
    assert line in Path(summary["report"]).read_text(encoding="utf-8")
