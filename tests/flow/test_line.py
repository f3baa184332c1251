"""The whole story: audio becomes a judged student, once in one command and once step by step."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from voxstill import cli
from voxstill.core.config import load as load_config
from voxstill.core.records import Label, Utterance, Verdict
from voxstill.evaluation import results
from voxstill.evaluation.results import StoredResult
from voxstill.nn import checkpoints
from voxstill.pipeline import judge
from voxstill.pipeline.run_result import RunResult, SideResult, StepResult
from voxstill.storage import tables
from voxstill.storage.store import Store
from voxstill.text import lm

pytestmark = pytest.mark.usefixtures("narrow_students")

GRAMMAR = Path(__file__).parents[2] / "examples" / "digits.jsgf"
TABLES = ("recordings", "utterances", "labels", "verdicts", "shards")
Command = Callable[..., dict[str, Any]]
Configure = Callable[..., Path]


@dataclass(frozen=True)
class Line:
    """A line that has run: its folder, its configuration and its summary."""

    folder: Path
    config: Path
    summary: dict[str, Any]


@pytest.fixture(scope="module")
def line(digits: Path, voxstill: Command, configure: Configure, tmp_path_factory: pytest.TempPathFactory) -> Line:
    folder = tmp_path_factory.mktemp("line")
    config = configure(folder, digits / "manifest.jsonl", evaluate={"lm_order": 2})
    return Line(folder, config, voxstill("run", config))


def parts(work: Path) -> dict[str, bytes]:
    """Every part of every table and shard, without the figures of how long it took."""
    return {
        str(path.relative_to(work)): path.read_bytes()
        for path in sorted(work.rglob("*"))
        if path.suffix in {".parquet", ".tar"}
    }


def results_of(run: Path, decoding: str) -> list[StoredResult]:
    return [result for result in results.read_all(run / "evaluation") if results.decoding(result.figures) == decoding]


def rows(work: Path, kind: type[Any], recipe: str) -> list[Any]:
    name = {Utterance: "utterances", Label: "labels", Verdict: "verdicts"}[kind]
    return list(tables.read(Store(str(work)), f"{name}/{recipe}", kind))


def test_one_command_makes_every_table_and_an_evaluated_student(line: Line) -> None:
    work = line.folder / "work"
    for name in TABLES:
        (recipe,) = (work / name).iterdir()
        assert list(recipe.glob("*.parquet"))
        assert name == "recordings" or (recipe / tables.SUCCESS).is_file()
    run = Path(line.summary["student"]["path"])
    for name in ("config.yaml", "environment.json", "train.log", "metrics.jsonl", "tensorboard", "checkpoints/last"):
        assert (run / name).exists(), name
    for name in ("src_backup/voxstill/cli.py", "model/config.json", "summary.json"):
        assert (run / name).exists(), name
    assert Path(line.summary["report"]).stat().st_size > 1000


def test_saved_hypotheses_can_be_scored_again_and_compared(line: Line, voxstill: Command) -> None:
    run = Path(line.summary["student"]["path"])
    [student] = results_of(run, "greedy")
    figures = voxstill("score", "words", student.references, student.hypotheses)
    assert figures["wer"] == line.summary["student"]["wer"]
    assert figures["interval"] == list(line.summary["student"]["interval"])
    same = voxstill("compare", str(run), str(student.hypotheses))
    assert (same["difference"], same["p"]) == (0.0, 1.0)


def test_the_student_is_evaluated_again_with_a_language_model_of_its_labels(line: Line, voxstill: Command) -> None:
    run, helped = Path(line.summary["student"]["path"]), line.summary["student"]["with_lm"]
    assert {"wer", "cer", "interval", "rtfx", "order", "decode"} <= helped.keys()
    assert (helped["order"], helped["decode"]["lm"]) == (2, str(run / "labels.arpa"))
    (recipe,) = (line.folder / "work" / "shards").iterdir()
    tables_of = [pyarrow.parquet.read_table(path).to_pylist() for path in recipe.glob("*.parquet")]
    learnt = [row["text"] for rows in tables_of for row in rows if row["split"] == "train"]
    words = {word for text in learnt for word in text.split()}
    assert {*lm.read(str(run / "labels.arpa")).ids} == {*words, "<unk>", "<s>", "</s>"}
    decode = f"decode={{beam: 16, lm: '{run / 'labels.arpa'}'}}"
    again = voxstill("evaluate", run / "model", "--config", run / "config.yaml", "--set", decode)
    assert again["wer"] == helped["wer"]
    [stored] = results_of(run, "beam-16-lm")
    comparison = voxstill("compare", run, stored.path)
    assert [row["wer"] for row in comparison["runs"]] == [line.summary["student"]["wer"], helped["wer"]]
    assert "student with LM" in Path(line.summary["report"]).read_text(encoding="utf-8")
    assert "student with LM" in (run / "report.md").read_text(encoding="utf-8")


def test_the_weights_of_the_language_model_of_the_labels_are_tuned(line: Line, tmp_path: Path) -> None:
    run = shutil.copytree(line.summary["student"]["path"], tmp_path / "exp")
    shutil.rmtree(run / "evaluation")
    judged = judge.judge(load_config(str(run / "config.yaml"), ["decode.tune=true"], {}), str(run))
    assert judged.student is not None
    assert judged.student.tuning is None  # it has no language model
    assert judged.with_lm is not None
    tuning = judged.with_lm.tuning
    assert tuning is not None
    assert (tuning.split, tuning.references, tuning.utterances) == ("dev", "human", 4)
    assert tuning.wer_after <= tuning.wer_before
    assert tuning.gain is not None
    assert tuning.gain.wer_before == line.summary["student"]["with_lm"]["wer"]
    [stored] = results_of(run, "beam-16-lm-tune")
    assert stored.figures["tuning"] == tuning.to_dict()
    assert results_of(run, "greedy")[0].figures["wer"] == line.summary["student"]["wer"]
    student = SideResult.of_student(judged, parameters=1, path=str(run))
    step = StepResult(step="evaluate", result="", seconds=1.0, figures={})
    whole = RunResult(
        teacher=SideResult.of(judged.teacher), student=student, steps=[step], seconds=1.0, report="report.html"
    )
    assert f"tuned: {tuning.to_text()}" in whole.to_text()


def test_unreadable_audio_is_reported_and_an_evaluation_without_any_audio_is_an_error(
    line: Line, voxstill: Command, digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    audio = [tmp_path / f"{i}.flac" for i in range(2)]
    for i, path in enumerate(audio):
        shutil.copy2(digits / f"m1-{i}.flac", path)
    rows = [{"audio": path.name, "text": "one", "split": "test"} for path in audio]
    (tmp_path / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "here.yaml").write_text(f"work: {tmp_path / 'work'}\nengine: inline\n")
    voxstill("index", tmp_path / "manifest.jsonl", "--work", tmp_path / "work")
    model = shutil.copytree(Path(line.summary["student"]["path"]) / "model", tmp_path / "model")
    judge = ["evaluate", model, "--on", "test", "--config", tmp_path / "here.yaml"]
    shutil.copy2(digits / "m2-0.flac", audio[0])
    assert voxstill(*judge)["warnings"][0].startswith("1 of 2 utterances could not be read (1 changed since")
    audio[1].unlink()
    capsys.readouterr()
    assert cli.main([*map(str, judge)]) == 3
    assert "none of the 2 utterances to evaluate can be read" in capsys.readouterr().err


def test_a_page_that_compares_two_plays_the_audio_of_the_evaluation(line: Line, voxstill: Command) -> None:
    run = Path(line.summary["student"]["path"])
    other = line.folder / "other.jsonl"
    rows = results.rows(results_of(run, "greedy")[0].references)
    other.write_text("".join(json.dumps({"id": row["id"], "text": "oh " * 9}) + "\n" for row in rows))
    page = line.folder / "two.html"
    assert voxstill("compare", other, run, "--report", page)["report"] == str(page)
    assert page.read_text(encoding="utf-8").count("<audio ") == len(rows) > 0


def test_a_file_that_is_no_language_model_is_refused_before_any_work(
    line: Line, digits: Path, configure: Configure, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configure(tmp_path, digits / "manifest.jsonl")
    (tmp_path / "words.arpa").write_text("turn on the light\n")
    for command in ("run", "train"):
        for name, message, code in (("nowhere.arpa", "cannot read", 4), ("words.arpa", "not a language model", 3)):
            options = ("--set", f"decode={{beam: 4, lm: {tmp_path / name}}}")
            assert cli.main([command, str(config), *options]) == code
            assert message in capsys.readouterr().err
    assert cli.main(["run", str(config), "--set", "student.kind=seq2seq", "--set", "evaluate.lm_order=3"]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([config.name, "words.arpa"])


def test_the_json_of_run_has_the_keys_that_scripts_rely_on(line: Line) -> None:
    assert {"teacher", "student", "steps", "seconds", "report"} <= line.summary.keys()
    assert {"wer", "rtfx"} <= line.summary["teacher"].keys()
    student = line.summary["student"]
    assert {"wer", "rtfx", "parameters", "path"} <= student.keys()
    assert 0 <= student["wer"] <= 2
    assert student["rtfx"] > 1
    model = checkpoints.load(Path(student["path"]) / "model")
    assert student["parameters"] == sum(parameter.numel() for parameter in model.parameters())


def test_a_second_run_skips_finished_steps_and_reports_the_same(line: Line, voxstill: Command) -> None:
    run = Path(line.summary["student"]["path"])
    before, trained = parts(line.folder / "work"), (run / "metrics.jsonl").stat().st_mtime_ns
    weights = (run / "model" / "model.safetensors").stat().st_mtime_ns
    again = voxstill("run", line.config)
    assert parts(line.folder / "work") == before
    assert (run / "metrics.jsonl").stat().st_mtime_ns == trained
    assert (run / "model" / "model.safetensors").stat().st_mtime_ns == weights
    assert list((line.folder / "exp").iterdir()) == [run]
    sides = [
        (summary["teacher"], summary["student"], summary["student"]["with_lm"]) for summary in (again, line.summary)
    ]
    for now, then in zip(*sides, strict=True):
        measured = {"rtfx", "with_lm"}
        assert {k: v for k, v in now.items() if k not in measured} == {
            k: v for k, v in then.items() if k not in measured
        }
    assert [(row["step"], row["figures"]) for row in again["steps"]] == [
        (row["step"], row["figures"]) for row in line.summary["steps"]
    ]
    skipped = {row["step"]: row["seconds"] for row in again["steps"] if row["step"] not in {"evaluate", "report"}}
    assert sum(skipped.values()) < 5, skipped
    results = {row["step"]: row["result"] for row in line.summary["steps"]}
    assert next(row["result"] for row in again["steps"] if row["step"] == "label") == results["label"]


@pytest.mark.slow
def test_step_by_step_gives_the_same_tables_and_the_same_student(
    line: Line, digits: Path, voxstill: Command, configure: Configure, tmp_path: Path
) -> None:
    source = digits / "manifest.jsonl"
    config, work = configure(tmp_path, source), tmp_path / "work"
    indexed = voxstill("index", source, "--work", work, "--config", config)
    assert {"recordings", "utterances", "damaged", "hours"} <= indexed.keys()
    assert (indexed["recordings"], indexed["utterances"], indexed["damaged"]) == (24, 24, 0)
    labelled = voxstill("label", work, "--config", config)
    assert {"labels", "failed", "quarantined", "hours", "rtfx", "recipe"} <= labelled.keys()
    assert (labelled["labels"], labelled["failed"]) == (24, 0)
    assert voxstill("label", work, "--config", config) == labelled
    filtered = voxstill("filter", work, "--config", config)
    assert {"kept", "reasons", "wer_before", "wer_after"} <= filtered.keys()
    sharded = voxstill("shard", work, "--config", config)
    assert {"shards", "utterances", "hours", "recipe"} <= sharded.keys()
    assert parts(work) == parts(line.folder / "work")

    trained = voxstill("train", config)
    assert {"path", "steps", "seconds", "loss"} <= trained.keys()
    once, stepwise = (
        Path(path, "model", "model.safetensors") for path in (line.summary["student"]["path"], trained["path"])
    )
    assert stepwise.read_bytes() == once.read_bytes()
    judged = voxstill("evaluate", trained["path"], "--on", "test")
    assert {"wer", "cer", "interval", "errors", "words", "rtfx", "parameters"} <= judged.keys()
    assert judged["wer"] == line.summary["student"]["wer"]
    [transcript] = voxstill("transcribe", trained["path"], digits / "f2-0.flac")["transcripts"]
    assert transcript["error"] is None


def test_new_files_are_indexed_and_labelled_and_the_old_are_left_alone(
    digits: Path, voxstill: Command, configure: Configure, tmp_path: Path
) -> None:
    folder, work = tmp_path / "audio", tmp_path / "work"
    folder.mkdir()
    config = configure(tmp_path, folder, teacher={"name": "pocketsphinx", "grammar": str(GRAMMAR)})
    for day, voice in enumerate(("m1", "m2"), start=1):
        for path in digits.glob(f"{voice}-*.flac"):
            shutil.copy2(path, folder)
        before = parts(work)
        indexed = voxstill("index", folder, "--work", work, "--config", config)
        labelled = voxstill("label", work, "--config", config)
        assert indexed["recordings"] == indexed["utterances"] == labelled["labels"] == 4 * day
        assert before.items() <= parts(work).items()
    assert len(list((work / "labels" / labelled["recipe"]).glob("*.parquet"))) == 2


def test_a_file_that_changed_after_it_was_labelled_is_refused(
    digits: Path, voxstill: Command, configure: Configure, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "audio"
    folder.mkdir()
    shutil.copy2(digits / "m1-0.flac", folder / "a.flac")
    (folder / "b.flac").write_bytes(b"not yet a recording")
    config = configure(tmp_path, folder)
    command = ("index", folder, "--work", tmp_path / "work", "--config", config)
    command += ("--set", "engine.max_failed_share=1.0")  # one of two is damaged
    assert voxstill(*command)["damaged"] == 1
    shutil.copy2(digits / "m2-0.flac", folder / "b.flac")
    assert voxstill(*command)["utterances"] == 2  # it was damaged, so nothing was made of it
    shutil.copy2(digits / "m3-0.flac", folder / "a.flac")
    assert cli.main([*map(str, command)]) == 3
    assert "a.flac` has changed" in capsys.readouterr().err


def test_a_recording_is_indexed_again_under_other_settings(
    digits: Path, voxstill: Command, configure: Configure, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configure(tmp_path, digits)
    command = ("index", digits, "--work", tmp_path / "work", "--config", config)
    strict = (*map(str, command), "--set", "segment.min_ms=20000")
    for _ in range(2):
        assert cli.main([*strict]) == 3
        assert "too short: 24" in capsys.readouterr().err
        assert voxstill(*command)["damaged"] == 0


@pytest.mark.parametrize(
    ("streaming", "architecture"), [("false", "ParakeetForRNNT"), ("true", "NemotronAsrStreamingForRNNT")]
)
def test_a_transducer_goes_the_whole_line_and_max_batches_ends_its_training(
    line: Line, voxstill: Command, tmp_path: Path, streaming: str, architecture: str
) -> None:
    work = tmp_path / "work"
    shutil.copytree(line.folder / "work", work)
    options = ["--set", f"work={work}", "--set", f"train.root={tmp_path / 'exp'}", "--set", "student.kind=rnnt"]
    options += ["--set", f"student.streaming={streaming}"]
    summary = voxstill("run", line.config, "--max-batches", "3", *options)
    student = Path(summary["student"]["path"])
    assert json.loads((student / "summary.json").read_text())["steps"] == 3
    assert json.loads((student / "model" / "config.json").read_text())["architectures"] == [architecture]
    assert summary["student"]["wer"] is not None


def test_filtering_with_other_settings_relabels_nothing(line: Line, voxstill: Command, tmp_path: Path) -> None:
    work = tmp_path / "work"
    shutil.copytree(line.folder / "work", work)
    before = parts(work)
    strict = voxstill("filter", work, "--config", line.config, "--set", "filter.keep_share=0.5")
    usual = voxstill("filter", work, "--config", line.config)
    assert strict["kept"] < usual["kept"]
    assert strict["recipe"] != usual["recipe"]
    after = parts(work)
    assert before.items() <= after.items()
    assert {name.split("/")[0] for name in after.keys() - before.keys()} == {"verdicts"}


def test_another_size_of_chunk_relabels_nothing(line: Line, voxstill: Command, tmp_path: Path) -> None:
    work = tmp_path / "work"
    shutil.copytree(line.folder / "work", work)
    before = parts(work)
    labelled = voxstill("label", work, "--config", line.config, "--set", "engine.chunk=3")
    assert labelled["labels"] == 24
    assert parts(work) == before


def test_two_teachers_live_side_by_side_and_an_ambiguous_step_names_them(
    line: Line, voxstill: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "work"
    shutil.copytree(line.folder / "work", work)
    before = parts(work)
    first = voxstill("label", work, "--config", line.config)
    second = voxstill("label", work, "--config", line.config, "--set", "teacher=reference")
    assert before.items() <= parts(work).items()
    assert len({first["recipe"], second["recipe"]}) == 2
    assert cli.main(["filter", str(work), "--set", "teacher={name: echo, seed: 7}", "--config", str(line.config)]) == 3
    message = capsys.readouterr().err
    assert first["recipe"] in message
    assert second["recipe"] in message
    chosen = voxstill("filter", work, "--config", line.config, "--set", "teacher=reference")
    assert chosen["labels"] == second["recipe"]
    assert chosen["judged"] == 20  # the test split is only ever judged on


@pytest.mark.slow
def test_a_teacher_that_reads_no_texts_gives_the_same_labels_with_and_without_them(
    digits: Path, voxstill: Command, configure: Configure, tmp_path: Path
) -> None:
    bare = tmp_path / "bare.jsonl"
    known = [json.loads(row) for row in (digits / "manifest.jsonl").read_text().splitlines()]
    for row in known:
        row["audio"] = os.path.relpath(digits / row["audio"], tmp_path)
        del row["text"]
    bare.write_text("".join(json.dumps(row) + "\n" for row in known))
    labels_of_runs: list[list[Label]] = []
    for source in (digits / "manifest.jsonl", bare):
        folder = tmp_path / source.stem
        folder.mkdir()
        config = configure(folder, source, teacher={"name": "pocketsphinx", "grammar": str(GRAMMAR)})
        utterances = voxstill("index", source, "--work", folder / "work", "--config", config)
        texts = [row.text for row in rows(folder / "work", Utterance, utterances["recipe"])]
        assert (None in texts) == (source == bare)
        labelled = voxstill("label", folder / "work", "--config", config)
        labels = rows(folder / "work", Label, labelled["recipe"])
        labels_of_runs.append(sorted(labels, key=lambda label: label.utterance_id))
    assert labels_of_runs[0] == labels_of_runs[1]
    assert sum(bool(label.text) for label in labels_of_runs[0]) > 20
