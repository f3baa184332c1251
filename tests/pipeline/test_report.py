"""report: the page of an experiment after `train` and `evaluate`, with student and teacher side by side."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import voxstill
from judged import corpus, experiment
from tones import TEXTS, speak
from voxstill import cli
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.evaluation import results
from voxstill.nn import loading
from voxstill.pipeline import report
from voxstill.storage.rundir import RunDir

Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object, code: int = 0) -> str:
        capsys.readouterr()
        assert cli.main([*map(str, arguments), "--log-level", "warning"]) == code
        printed = capsys.readouterr()
        return printed.out if code == 0 else printed.err

    return call


@pytest.fixture(scope="module")
def judged(tone_student: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluated experiment whose teacher is such a student too, which labelled the corpus."""
    folder = tmp_path_factory.mktemp("judged")
    rows = [{"id": f"u{i}", "text": f"{TEXTS[i % 4]} ko", "speaker": f"s{i}"} for i in range(6)]
    work = corpus(folder, rows)
    teacher = {"name": "transformers", "model": str(tone_student)}
    exp = experiment(folder / "exp", tone_student, work, teacher=teacher, student={"kind": "rnnt", "size": "small"})
    (exp / "metrics.jsonl").write_text("".join(json.dumps({"step": i, "loss": 1 / (i + 1)}) + "\n" for i in range(9)))
    assert cli.main(["label", str(work), "--config", str(exp / "config.yaml")]) == 0
    assert cli.main(["evaluate", str(exp)]) == 0
    return exp


def test_the_hypotheses_of_the_teacher_are_a_result_beside_those_of_its_student(judged: Path, run: Run) -> None:
    by_recogniser = {result.recogniser: result for result in results.read_all(judged / "evaluation")}
    [name] = by_recogniser.keys() - {results.STUDENT}
    assert name.startswith("transformers@")
    teacher = by_recogniser[name]
    assert teacher.figures["wer"] == by_recogniser[results.STUDENT].figures["wer"]
    assert len(results.rows(teacher.hypotheses)) == 6
    assert json.loads(run("compare", judged, teacher.path, "--json"))["p"] == 1.0


def test_after_train_and_evaluate_the_page_says_whether_the_student_is_better_than_its_teacher(
    judged: Path, run: Run
) -> None:
    [teacher] = [one for one in results.read_all(judged / "evaluation") if one.recogniser != results.STUDENT]
    rows = results.rows(teacher.hypotheses)
    teacher.hypotheses.write_text("".join(json.dumps({**row, "text": "mi"}) + "\n" for row in rows))
    result = json.loads(run("report", judged, "--json"))
    assert result["report"] == str(judged / "report.html")
    assert result["against_teacher"]["p"] == pytest.approx(2 / 2**6)
    assert result["against_teacher"]["difference"] < 0
    assert (result["against_teacher"]["units"], result["against_teacher"]["over"]) == (6, "speakers")
    page = (judged / "report.html").read_text(encoding="utf-8")
    for text in (page, run("report", judged)):
        assert "p = 0.031, over 6 speakers" in text
        assert "The student makes fewer errors than its teacher, which is statistically significant." in text
    assert "p = 0.031" in (judged / "report.md").read_text(encoding="utf-8")
    assert "small FastConformer-RNN-T" in page
    assert "CTC" not in page.partition("How it was made</h2>")[0]
    assert "Training loss" in page
    assert "All results" in page


@pytest.mark.parametrize(
    ("speaker", "sentence"),
    [
        ("ann", "there is no interval, as all utterances are of one speaker"),
        (None, "over 6 utterances (no speakers"),
    ],
)
def test_without_two_speakers_the_page_says_what_the_comparison_lacks(
    judged: Path, run: Run, tmp_path: Path, speaker: str | None, sentence: str
) -> None:
    exp = shutil.copytree(judged, tmp_path / "exp")
    for result in results.read_all(exp / "evaluation"):
        rows = [{**row, "speaker": speaker} for row in results.rows(result.references)]
        result.references.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tested = json.loads(run("report", exp, "--json"))["against_teacher"]
    assert (tested["interval"] is None, tested["p"] is None) == (speaker is not None,) * 2
    for text in (run("report", exp), (exp / "report.html").read_text(encoding="utf-8")):
        assert sentence in text


def test_the_page_says_which_options_were_changed_while_it_trained(judged: Path, run: Run, tmp_path: Path) -> None:
    exp = shutil.copytree(judged, tmp_path / "exp")
    changed = {"train.steps": [100, 60], "train.lr_factor": [1.0, 0.5]}
    segments = [
        {"step": 40, "changed": changed, "requested_at": "2026-11-25T10:00:00+00:00", "seconds": 9.5},
        {"step": 60, "changed": {"train.lr": [0.002, 0.001]}},
    ]
    (exp / "environment.json").write_text(json.dumps({"segments": segments}))
    run("report", exp)
    page = (exp / "report.html").read_text(encoding="utf-8")
    assert "1, from step 40 on" in page
    assert "train.steps` 100 -&gt; 60, `train.lr_factor` 1.0 -&gt; 0.5 (by `voxstill control`)" in page
    assert "`train.lr` 0.002 -&gt; 0.001</dd>" in page


@pytest.mark.parametrize(
    ("student", "name"),
    [
        ({}, "tiny FastConformer-CTC"),
        ({"kind": "tdt", "size": "medium"}, "medium FastConformer-TDT"),
        ({"kind": "seq2seq", "checkpoint": "openai/whisper-tiny"}, "Whisper from whisper-tiny"),
        ({"kind": "ctc", "checkpoint": "models/wav2vec2"}, "CTC from wav2vec2"),
    ],
)
def test_a_student_is_called_what_it_is(student: dict[str, Any], name: str) -> None:
    assert report.student_name(Config.model_validate({"student": student})) == name


def test_what_cannot_be_written_is_printed_with_a_warning(
    tone_student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exp = experiment(tmp_path / "exp", tone_student, corpus(tmp_path / "corpus"))
    (exp / "evaluation").write_text("in the way")
    (exp / "report.html").mkdir()
    for command, code, name, value in (
        ("evaluate", 0, "words", sum(len(text.split()) for text in TEXTS)),
        ("report", 4, "report", None),
    ):
        capsys.readouterr()
        assert cli.main([command, str(exp), "--json"]) == code
        printed = capsys.readouterr()
        assert json.loads(printed.out)[name] == value
        assert "is not written" in printed.err
    assert (exp / "evaluation").read_text() == "in the way"


def test_a_folder_that_is_no_experiment_is_refused(tmp_path: Path, run: Run) -> None:
    assert "is not an experiment" in run("report", tmp_path, code=2)
    with pytest.raises(voxstill.ConfigError):
        voxstill.report(tmp_path)


def test_the_page_shows_the_experiments_own_corpus_whatever_was_judged_last(
    tone_student: Path, tmp_path: Path, run: Run
) -> None:
    own = corpus(tmp_path / "own")
    other = corpus(tmp_path / "other", [{"id": "u0", "text": f"{TEXTS[0]} ko ko", "samples": speak(TEXTS[0])[0]}])
    exp = experiment(tmp_path / "exp", tone_student, own)
    for arguments in ((), ("--work", other), ("--set", "decode.beam=4")):
        run("evaluate", exp, *arguments)
    lines = json.loads(run("report", exp, "--json"))["results"]
    assert len(lines) == 3
    facts = json.loads((exp / "report.json").read_text(encoding="utf-8"))
    assert [(row["role"], row["wer"]) for row in facts["systems"]] == [("student", 0.0)]
    assert facts["judged"]["utterances"] == len(TEXTS)
    assert max(line["rate"][1] for line in lines) > 0


def test_results_of_weights_that_were_trained_further_are_not_those_of_the_model(
    judged: Path, run: Run, tmp_path: Path
) -> None:
    exp = tmp_path / "exp"
    shutil.copytree(judged, exp)
    loading.write_sums(exp / "model")
    run("evaluate", exp)
    assert "against_teacher" in report.judged_facts(config.load(str(exp / "config.yaml"), [], {}), RunDir(exp))
    weights = load_file(exp / "model" / "model.safetensors")
    save_file({name: value * 1.01 for name, value in weights.items()}, exp / "model" / "model.safetensors")
    loading.write_sums(exp / "model")
    result = json.loads(run("report", exp, "--json"))
    assert results.EARLIER in {row["recogniser"] for row in result["results"]}
    assert results.STUDENT not in {row["recogniser"] for row in result["results"]}
    assert result["against_teacher"] is None
    assert "it was trained further after it" in run("compare", exp, judged, code=3)
    run("evaluate", exp)
    assert results.EARLIER not in {result.recogniser for result in results.read_all(exp / "evaluation")}
    run("compare", exp, judged)
