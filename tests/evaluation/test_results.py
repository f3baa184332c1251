"""The store of results: nothing replaces the result of another corpus, split, decoding or normalizer."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from judged import Run, corpus, experiment
from tones import TEXTS
from voxstill import cli
from voxstill.core.config import Config
from voxstill.core.records import Utterance
from voxstill.evaluation import recognition, results


@pytest.fixture(scope="module")
def works(work: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two corpora, of which the second has other words than the first."""
    rows = [{"id": f"u{i}", "text": f"{text} mi", "speaker": f"s{i}"} for i, text in enumerate(TEXTS)]
    return work, corpus(tmp_path_factory.mktemp("other"), rows)


def test_another_corpus_beam_split_or_normalizer_is_another_result(
    tone_student: Path, works: tuple[Path, Path], tmp_path: Path, run: Run
) -> None:
    exp = experiment(tmp_path / "exp", tone_student, works[0])
    judged = [
        run("evaluate", exp),
        run("evaluate", exp, "--work", works[1]),
        run("evaluate", exp, "--set", "decode.beam=4"),
        run("evaluate", exp, "--set", "evaluate.normalizer=none"),
    ]
    stored = results.read_all(exp / "evaluation")
    assert len({result.path for result in stored}) == 4
    for figures in judged:
        keys = ("corpus", "split", "decode", "normalizer", "recogniser")
        [result] = [one for one in stored if all(one.figures[key] == figures[key] for key in keys)]
        assert result.figures["wer"] == figures["wer"]
        assert len(results.rows(result.hypotheses)) == figures["utterances"]
    assert {figures["corpus"]["work"] for figures in judged} == {str(work) for work in works}

    lines = run("report", exp)["results"]  # both folders are called `work`
    assert len({tuple(line[key] for key in ("corpus", "decoding", "normalizer")) for line in lines}) == 4
    assert {line["corpus"] for line in lines} == {str(work) for work in works}

    again = run("evaluate", exp / "model")  # the same student
    assert len(results.read_all(exp / "evaluation")) == 4
    assert again["wer"] == judged[0]["wer"]


def test_compare_takes_any_two_results(
    tone_student: Path, works: tuple[Path, Path], tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    exp = experiment(tmp_path / "exp", tone_student, works[0])
    run("evaluate", exp)
    run("evaluate", exp, "--set", "decode.beam=4")
    run("evaluate", exp, "--work", works[1])
    by_decoding = {
        (result.corpus.work if result.corpus else "", results.decoding(result.figures)): result
        for result in results.read_all(exp / "evaluation")
    }
    greedy, beam = (by_decoding[str(works[0]), name] for name in ("greedy", "beam-4"))
    comparison = run("compare", greedy.path, beam.path)
    assert [row["wer"] for row in comparison["runs"]] == [greedy.figures["wer"], beam.figures["wer"]]
    own = run("compare", exp, beam.path)  # an experiment is its own corpus, decoded as its configuration says
    assert [row["wer"] for row in own["runs"]] == [row["wer"] for row in comparison["runs"]]
    other = by_decoding[str(works[1]), "greedy"]
    assert "not evaluated on the same texts" in run("compare", exp, other.path, code=3)["error"]

    assert cli.main(["compare", str(greedy.path), str(beam.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == [greedy.path.name, beam.path.name]  # not their long folder


def test_results_of_earlier_versions_stay_readable(
    tone_student: Path, works: tuple[Path, Path], tmp_path: Path, run: Run
) -> None:
    exp = experiment(tmp_path / "exp", tone_student, works[0])
    figures = run("evaluate", exp)
    [result] = results.read_all(exp / "evaluation")
    earlier = {name: value for name, value in figures.items() if name not in ("corpus", "recogniser")}
    old = experiment(tmp_path / "old", tone_student, works[0]) / "evaluation"
    (old / "with_lm").mkdir(parents=True)
    for folder in (old, old / "with_lm"):
        (folder / "test.json").write_text(json.dumps(earlier))
        (folder / "test.ref.jsonl").write_bytes(result.references.read_bytes())
        (folder / "test.hyp.jsonl").write_bytes(result.hypotheses.read_bytes())
    (old / "with_lm" / "test.json").write_text(json.dumps({**earlier, "decode": {**figures["decode"], "beam": 16}}))
    assert [one.figures["wer"] for one in results.read_all(old)] == [figures["wer"]] * 2
    assert run("compare", exp, old.parent)["p"] == 1.0


def test_a_result_with_several_equals_must_be_named(
    tone_student: Path, works: tuple[Path, Path], tmp_path: Path, run: Run
) -> None:
    exp = experiment(tmp_path / "exp", tone_student, tmp_path / "elsewhere")
    for work in works:
        run("evaluate", exp, "--work", work)
    error = run("compare", exp, exp, code=3)["error"]
    assert "several results of `test`" in error
    assert all(str(result.path) in error for result in results.read_all(exp / "evaluation"))


def test_broken_figures_are_named(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / results.FIGURES).write_text("[]")
    with pytest.raises(results.DataError, match="is not a result"):
        results.read_all(tmp_path)


def test_texts_without_spaces_are_judged_with_a_warning() -> None:
    utterance = Utterance(id="a", recording_id="r", uri="r.flac", channel=None, start_ms=0, end_ms=900, split="test")
    judged = [dataclasses.replace(utterance, text="打开电灯")]
    errors = recognition.error_figures(Config(), judged, {"a": "打开电扇"})
    assert (errors.rates.wer, errors.rates.cer) == (1.0, 0.25)
    assert any("use the CER" in warning for warning in errors.warnings)
