"""What `voxstill run` says of the student and its teacher, side by side."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from voxstill.core import config
from voxstill.evaluation import results
from voxstill.pipeline.judge import judge
from voxstill.pipeline.run_result import RunResult

pytestmark = pytest.mark.usefixtures("narrow_students")

GRAMMAR = Path(__file__).parents[2] / "examples" / "digits.jsgf"


@pytest.fixture(scope="module")
def summary(
    digits: Path,
    voxstill: Callable[..., dict[str, Any]],
    configure: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """Of a student that learnt next to nothing, decoded along a grammar; each utterance has a speaker."""
    folder = tmp_path_factory.mktemp("comparison")
    rows = [json.loads(line) for line in (digits / "manifest.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows):
        row |= {"audio": str(digits / row["audio"]), "speaker": f"s{number}"}
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = configure(folder, folder / "manifest.jsonl", teacher={"name": "pocketsphinx", "grammar": str(GRAMMAR)})
    options = [f"decode.grammar={GRAMMAR}", "evaluate.teacher_without_grammar=3"]
    return voxstill("run", path, "--max-batches", "2", *(word for option in options for word in ("--set", option)))


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


def test_both_are_judged_with_and_without_their_grammar_on_the_same_utterances(summary: dict[str, Any]) -> None:
    table = summary["grammar"]
    assert (table["utterances"], table["of"]) == (3, 4)
    wer = {(row["system"], row["grammar"]): row["wer"] for row in table["rows"]}
    assert list(wer) == [("teacher", True), ("teacher", False), ("student", True), ("student", False)]
    assert wer["teacher", True] < wer["teacher", False]
    assert all(row["rtfx"] > 0 for row in table["rows"])
    stored = results.read_all(Path(summary["student"]["path"]) / "evaluation")
    [free] = [result for result in stored if result.recogniser.endswith(" without grammar")]
    assert len(results.rows(free.references)) == 3
    students = {results.decoding(result.figures): result for result in stored}
    assert students["grammar"].figures["wer"] == summary["student"]["wer"]
    assert len(results.rows(students["greedy"].hypotheses)) == 4


def test_the_table_is_in_the_text_and_on_the_pages(summary: dict[str, Any], voxstill: Callable[..., Any]) -> None:
    text = RunResult.from_dict(summary).to_text()
    assert "on 3 of 4 utterances" in text
    assert "teacher without grammar" in text
    page = Path(summary["report"])
    assert "All on the same 3 of 4 utterances" in page.read_text(encoding="utf-8")
    assert "On 3 of 4 utterances" in page.with_suffix(".md").read_text(encoding="utf-8")
    again = voxstill("report", summary["student"]["path"])
    assert again["grammar"] == summary["grammar"]
    assert again["against_teacher"] == summary["comparison"]


def test_a_teacher_that_cannot_do_without_its_grammar_is_left_out_with_a_warning(
    summary: dict[str, Any], voxstill: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exp = shutil.copytree(summary["student"]["path"], tmp_path / "exp")
    shutil.rmtree(exp / "evaluation")
    cfg = config.load(str(exp / "config.yaml"), [f"teacher.language_model={tmp_path / 'gone.lm'}"], {})
    judge(cfg, str(exp))
    assert "the teacher is not evaluated without its grammar: PocketSphinx has no" in caplog.text
    table = voxstill("report", exp)["grammar"]
    assert (table["utterances"], table["of"]) == (4, 4)
    assert [(row["system"], row["grammar"]) for row in table["rows"]] == [
        ("teacher", True),
        ("student", True),
        ("student", False),
    ]
