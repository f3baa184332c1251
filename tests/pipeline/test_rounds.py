"""`rounds: N`: a student labels with its teacher for the next one, and a run that was killed repeats nothing."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import soundfile

from forked import command_killed_at, start
from tones import PITCH_HZ, TEXTS, speak
from voxstill import cli
from voxstill.core import config
from voxstill.filtering.measures import Score
from voxstill.filtering.verdicts import VerdictMap
from voxstill.pipeline import filter as filtering
from voxstill.pipeline import label, recipes, rounds
from voxstill.pipeline.run_result import RunResult
from voxstill.storage import tables, workdir
from voxstill.storage.figures import LabelFigures
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store

STEPS = ("label", "filter", "shard", "train")


def configure(folder: Path, voices: int, **sections: Any) -> Path:
    """A configuration of a corpus of `TEXTS` by so many voices to learn from, and one of each other split."""
    rows = []
    for split, num in (("train", voices), ("dev", 1), ("test", 1)):
        for i, text in enumerate(TEXTS * num):
            name = f"{split}-{i}"
            soundfile.write(folder / f"{name}.wav", speak(text, len(rows))[0], 16_000)
            rows.append({"id": name, "audio": f"{name}.wav", "text": text, "split": split})
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree = {
        "work": str(folder / "work"),
        "source": {"uri": str(folder / "manifest.jsonl")},
        "engine": {"name": "inline"},
        "monitor": {"port": 0},
        "teacher": {"name": "echo", "substitute": 0.2, "vocabulary": list(PITCH_HZ)},
        "plan": {"budget_ms": 8000},
        "train": {"steps": 3, "loader_workers": 0, "seed_mode": "debug", "root": str(folder / "exp")},
    }
    path = folder / "config.yaml"
    path.write_text(json.dumps(tree | sections))
    return path


def files(folder: Path) -> dict[str, int]:
    """When each table, shard and model below a folder was written."""
    kinds = {".parquet", ".tar", ".safetensors"}
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.suffix in kinds}


def test_a_run_of_two_rounds_that_is_killed_repeats_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = configure(tmp_path, 2, filter={"keep_share": 0.9, "max_disagreement": 1.0})

    def run(*arguments: str) -> Any:
        capsys.readouterr()
        assert cli.main([*arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    once = run("run", str(path))
    assert [row["step"] for row in once["steps"]] == ["index", *STEPS, "evaluate", "report"]
    assert [row["round"] for row in once["rounds"]] == [1]
    first = files(tmp_path)
    arguments = ["run", str(path), "--set", "rounds=2"]
    process = start(command_killed_at, "train (round 2) ...", arguments, log=tmp_path / "log")
    process.join(250)
    assert process.exitcode == -signal.SIGKILL, (tmp_path / "log").read_text()[-3000:]
    [experiment] = (tmp_path / "exp").iterdir()
    killed = files(tmp_path)
    assert first.items() <= killed.items()

    twice = run(*arguments)
    both = files(tmp_path)
    assert killed.items() <= both.items()
    assert {path for path in both.keys() - killed.keys() if path.endswith((".parquet", ".tar"))} == set()
    counted = [f"{step} (round {number})" for number in (1, 2) for step in STEPS]
    assert [row["step"] for row in twice["steps"]] == [
        *("index", *counted),
        *("evaluate (round 1)", "evaluate (round 2)", "report"),
    ]
    assert [row["path"] for row in twice["rounds"]] == [once["student"]["path"], twice["student"]["path"]]
    assert twice["rounds"][0] == once["rounds"][0]
    assert twice["rounds"][0]["kept"] < twice["rounds"][1]["kept"] == 1.0
    assert twice["rounds"][1]["wer"] == twice["student"]["wer"]
    assert Path(once["student"]["path"]) == experiment

    work, second = Store(str(tmp_path / "work")), RunDir(Path(twice["student"]["path"]))
    assert second.path.name.endswith("_student-round-2")
    own = config.load(str(second.config))
    assert (own.rounds, own.filter.keep_share, own.train.name) == (1, 1.0, "student-round-2")
    assert own.filter.second_teacher is not None
    assert workdir.named(work, LabelFigures, own.filter.second_teacher).teacher.startswith("student@")
    verdicts = recipes.finished_verdicts(own)
    scores = tables.read(work, workdir.prefix("scores", verdicts.scores), Score)
    assert all(score.disagreement is not None for score in scores)
    for page in (second.report, second.report.with_suffix(".md")):
        assert "WER of labels kept" in page.read_text(encoding="utf-8")
    run("report", str(second.path))
    assert "WER of labels kept" in second.report.read_text(encoding="utf-8")

    again = run(*arguments)
    assert files(tmp_path) == both
    assert again["rounds"] == twice["rounds"]
    assert rounds.later(config.load(str(path), ["rounds=2"])) == [own]
    assert rounds.later(config.load(str(path), ["rounds=2", f"work={tmp_path}/elsewhere"])) == []
    assert run("clean", str(work.root), "--config", str(path), "--set", "rounds=2")["recipes"] == []
    text = RunResult.from_dict(twice).to_text()
    assert all(f"\n{line} " in text for line in ("train (round 2)", "round 1", "round 2"))


def test_labels_of_the_teacher_are_kept_where_the_student_agrees(
    tmp_path: Path, tone_student: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = configure(tmp_path, 6, filter={"keep_share": 0.5})
    cfg = config.load(str(path), ["rounds=2"])
    for arguments in (("index", cfg.source.uri, "--work", cfg.work), ("label", cfg.work)):
        assert cli.main([*map(str, arguments), "--config", str(path)]) == 0
    student = config.Teacher.model_validate({"name": "student", "checkpoint": str(tone_student)})
    second = label.label_utterances(cfg.model_copy(update={"teacher": student})).recipe
    first_round = filtering.filter_labels(rounds.of_round(cfg, 1))
    second_round = filtering.filter_labels(rounds.of_round(cfg, 2, second))
    assert first_round.kept < 0.6
    assert 0 < second_round.reasons["disagreement"] < second_round.judged / 2
    assert second_round.kept_utterances == second_round.judged - second_round.reasons["disagreement"]
    assert second_round.wer_before is not None
    assert second_round.wer_before > 0.1
    assert second_round.wer_after == 0.0  # the student knows these voices by heart


def test_texts_of_a_supervised_source_are_kept_in_every_round(
    tmp_path: Path, tone_student: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Texts that the student disagrees with, as all of them are of other words than were spoken."""
    path = configure(tmp_path, 2, filter={"keep_share": 0.5})
    wrong = []
    for i in range(4):
        soundfile.write(tmp_path / f"voice-{i}.wav", speak(TEXTS[i], 100 + i)[0], 16_000)
        wrong.append({"id": f"voice-{i}", "audio": f"voice-{i}.wav", "text": TEXTS[(i + 1) % len(TEXTS)]})
    (tmp_path / "voices.jsonl").write_text("".join(json.dumps(row) + "\n" for row in wrong))
    voices = {"uri": str(tmp_path / "voices.jsonl"), "supervised": True, "split": "train"}
    sources = json.dumps([{"uri": str(tmp_path / "manifest.jsonl")}, voices])
    cfg = config.load(str(path), ["rounds=2", f"source={sources}"])
    for arguments in (("index", "--work", cfg.work), ("label", cfg.work)):
        assert cli.main([*map(str, arguments), "--config", str(path), "--set", f"source={sources}"]) == 0
    student = config.Teacher.model_validate({"name": "student", "checkpoint": str(tone_student)})
    second = label.label_utterances(cfg.model_copy(update={"teacher": student})).recipe
    filtering.filter_labels(rounds.of_round(cfg, 2, second))
    verdicts = recipes.finished_verdicts(rounds.of_round(cfg, 2, second))
    work = Store(str(tmp_path / "work"))
    rows = tables.read(work, workdir.prefix("scores", verdicts.scores), Score)
    disagreement = {row.utterance_id: row.disagreement for row in rows}
    kept = VerdictMap(work, verdicts.recipe)
    assert [disagreement[row["id"]] for row in wrong] == [None] * 4
    assert kept.of([row["id"] for row in wrong]) == [(True, None)] * 4
    assert any(disagreement.values())


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (("teacher=reference",), "teacher: reference"),
        (("filter.second_teacher=whisper",), "filter.second_teacher"),
        (("train.corpora=[{work: elsewhere}]",), "train.corpora"),
    ],
)
def test_rounds_that_make_no_sense_are_refused_before_any_work(
    overrides: tuple[str, ...], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = configure(tmp_path, 1)
    settings = [argument for override in ("rounds=2", *overrides) for argument in ("--set", override)]
    assert cli.main(["run", str(path), *settings]) == 2
    assert f"`rounds: 2` and `{name}` cannot be combined" in capsys.readouterr().err
    assert not (tmp_path / "work").exists()


def test_only_the_last_student_is_uploaded() -> None:
    cfg = config.load(None, ["rounds=2", "train.upload=s3://bucket/students"])
    assert rounds.of_round(cfg, 1).train.upload is None
    assert rounds.of_round(cfg, 2, "recipe").train.upload == "s3://bucket/students"


def test_later_rounds_learn_as_the_first_did(tmp_path: Path) -> None:
    """Its experiment may be from before there was a choice of the optimizer."""
    cfg = config.load(None, ["rounds=2"])
    (tmp_path / "config.yaml").write_text("student: {normalization: level}\ntrain: {lr: 0.002}\n")
    trained: Any = SimpleNamespace(trained=SimpleNamespace(path=str(tmp_path)))
    own = rounds.as_begun(cfg, trained)
    assert (own.student.normalization, own.train.optimizer) == ("level", "adamw")
