"""`voxstill estimate` says what a training takes, of every kind of student, and how each figure is known."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoints import write_waveform_checkpoint, write_whisper_checkpoint
from narrow_models import narrow_models
from small_students import write_student
from tones import TEXTS, speak
from voxstill import cli
from voxstill.audio import codec
from voxstill.core import config
from voxstill.core.errors import ConfigError
from voxstill.pipeline import estimate_time
from voxstill.pipeline.estimate import EstimateResult, estimate
from voxstill.pipeline.filter import filter_labels
from voxstill.pipeline.index import index
from voxstill.pipeline.label import label_utterances
from voxstill.pipeline.shard import shard
from voxstill.pipeline.train import train

FIELDS = {"parameters", "memory_bytes", "largest_budget_ms", "label_seconds", "train_seconds", "cost", "disk_bytes"}
SPLITS = ("train", "train", "train", "dev")
OPTIONS = (
    "engine={name: inline, workers: 1, chunk: 4}",
    "filter={min_chars_per_s: 0, max_chars_per_s: 1e9}",
    "plan.budget_ms=6000",
    "train={steps: 6, log_every: 1, loader_workers: 0}",
)


@pytest.fixture(scope="module", autouse=True)
def narrow() -> Iterator[None]:
    """What is estimated differs by the kind of a model, and not by its width."""
    with narrow_models():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder with shards, and an experiment that was trained on them."""
    folder = tmp_path_factory.mktemp("estimate")
    rows = []
    for number in range(16):
        text = TEXTS[number % len(TEXTS)]
        (folder / f"{number}.wav").write_bytes(codec.encode(speak(text, number)[0], "wav"))
        row = {"audio": f"{number}.wav", "text": text, "speaker": f"s{number % 4}", "split": SPLITS[number % 4]}
        rows.append(json.dumps(row))
    (folder / "manifest.jsonl").write_text("\n".join(rows) + "\n")
    cfg = config_of(folder)
    index(cfg)
    label_utterances(cfg)
    filter_labels(cfg)
    shard(cfg)
    train(cfg)
    return folder


def config_of(folder: Path, *overrides: str, work: str = "work") -> config.Config:
    own = (f"work={folder / work}", f"source.uri={folder / 'manifest.jsonl'}", f"train.root={folder / 'exp'}")
    return config.load(None, ["teacher=reference", *OPTIONS, *own, *overrides])


def test_each_figure_has_a_basis(folder: Path) -> None:
    result = estimate(config_of(folder), price=2.0)
    assert set(result.to_dict()) >= FIELDS
    assert set(result.basis) == FIELDS
    assert set(result.basis.values()) <= {"measured", "probed", "assumed"}
    assert EstimateResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    assert sum(result.memory_bytes.values()) >= result.total_memory_bytes
    lines = result.to_text().splitlines()
    named = [line for line in lines if not line.startswith(("corpus", "it does not fit"))]
    assert all(any(basis in line for basis in ("measured", "probed", "assumed")) for line in named)


def test_what_was_done_is_measured(folder: Path) -> None:
    result = estimate(config_of(folder), price=3.6)
    assert result.basis["label_seconds"] == result.basis["train_seconds"] == "measured"
    assert result.label_seconds is not None
    assert result.train_seconds is not None
    assert result.cost == pytest.approx((result.label_seconds + result.train_seconds) / 1000)
    summaries = [json.loads(path.read_text()) for path in (folder / "exp").glob("*/summary.json")]
    assert result.parameters == summaries[0]["parameters"]
    [figures] = [json.loads(path.read_text()) for path in folder.glob("work/shards/*/_SUCCESS.json")]
    assert result.disk_bytes_by_part["shards"] == figures["num_bytes"]


def test_a_longer_training_of_the_same_steps_is_measured_by_the_shorter(folder: Path) -> None:
    short = estimate(config_of(folder))
    long = estimate(config_of(folder, "train.steps=600"))
    assert long.basis["train_seconds"] == "measured"
    assert short.train_seconds is not None
    assert long.train_seconds == pytest.approx(100 * short.train_seconds)


def test_steps_that_nobody_made_yet_are_probed_here_and_assumed_on_a_card(folder: Path) -> None:
    cfg = config_of(folder, "plan.budget_ms=4000")
    here, there = estimate(cfg), estimate(cfg, gpu="h200")
    assert here.basis["train_seconds"] == "probed"
    assert there.basis["train_seconds"] == "assumed"
    assert here.train_seconds is not None
    assert there.train_seconds is not None
    assert 0 < there.train_seconds < here.train_seconds
    assert (here.precision, there.precision) == ("fp32", "bf16")
    assert here.memory_limit_bytes != there.memory_limit_bytes == int(139.8 * 2**30)


def test_labels_that_have_begun_tell_the_time_by_their_chunks(folder: Path) -> None:
    shutil.copytree(folder / "work", folder / "begun", dirs_exist_ok=True)
    for table in ("shards", "verdicts", "scores"):
        shutil.rmtree(folder / "begun" / table)
    [labels] = (folder / "begun/labels").iterdir()
    (labels / "_SUCCESS.json").unlink()
    (labels / "_manifest").unlink()
    chunks = sorted(labels.glob("*.parquet"))
    assert len(chunks) == 4
    for number, chunk in enumerate(chunks):
        os.utime(chunk, (0, 1_000_000 + 10 * number))
    result = estimate(config_of(folder, work="begun"))
    assert result.basis["label_seconds"] == "measured"
    assert result.label_seconds == pytest.approx(40, rel=0.3)  # four chunks, one in ten seconds
    assert result.basis["memory_bytes"] == "assumed"  # there are no shards


def test_without_labels_a_minute_of_labelling_is_tried_where_that_is_asked_for(folder: Path) -> None:
    cfg = config_of(folder, "teacher=echo", work="indexed")
    index(cfg)
    before = sorted(path for path in (folder / "indexed").rglob("*"))
    untried = estimate(cfg)
    assert untried.label_seconds is None
    assert "--probe" in untried.about["label_seconds"]
    tried = estimate(cfg, probe=True)
    assert tried.basis["label_seconds"] == "probed"
    assert tried.label_seconds is not None
    assert sorted(path for path in (folder / "indexed").rglob("*")) == before  # nothing is kept


def test_where_nothing_is_indexed_lengths_are_assumed_and_epochs_have_no_end(tmp_path: Path) -> None:
    cfg = config.load(None, [f"work={tmp_path / 'none'}", "train.epochs=3"])
    result = estimate(cfg, gpu="h100", price=3.0)
    assert result.basis["parameters"] == result.basis["memory_bytes"] == "assumed"
    assert (result.label_seconds, result.train_seconds, result.cost) == (None, None, None)
    assert "nothing is indexed" in result.to_text()
    assert not (tmp_path / "none").exists()


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints to start from."""
    folder = tmp_path_factory.mktemp("starts")
    write_whisper_checkpoint(folder / "whisper", TEXTS)
    write_waveform_checkpoint(folder / "wav2vec2", "Wav2Vec2")
    write_student(folder / "parakeet", "ctc", "level")
    return folder


KINDS: dict[str, tuple[str, ...]] = {
    "rnnt": ("student.kind=rnnt",),
    "tdt": ("student.kind=tdt",),
    "streaming": ("student.kind=rnnt", "student.streaming=true"),
    "seq2seq": ("student.kind=seq2seq", "student.checkpoint={starts}/whisper"),
    "waveform": ("student.checkpoint={starts}/wav2vec2",),
    "frozen": ("student.checkpoint={starts}/parakeet", "student.freeze_layers=0.5"),
    "classes": ("student.task=classes",),
    "speakers": ("student.task=speakers",),
    "distilled": ("train.distill.checkpoint={starts}/parakeet",),
    "checkpointed": ("train.activation_checkpointing=true",),
    "sharded": ("train.devices=4", "train.shard_above=0"),
    "pretrained wav2vec2": ("pretrain.size=tiny",),
    "pretrained best_rq": ("pretrain.method=best_rq",),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_student_has_an_estimate(kind: str, starts: Path, tmp_path: Path) -> None:
    overrides = [option.format(starts=starts) for option in KINDS[kind]]
    cfg = config.load(None, [f"work={tmp_path / 'none'}", "train.steps=100", "plan.budget_ms=40000", *overrides])
    result = estimate(cfg, gpu="l4", pretrain=kind.startswith("pretrained"))
    assert result.parameters > 0
    assert result.memory_bytes["activations"] > 0
    assert ("teacher" in result.memory_bytes) == (kind == "distilled")
    assert result.largest_budget_ms is not None
    assert result.train_seconds is not None
    assert result.fits


def test_the_command_prints_json_and_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "my.yaml"
    path.write_text(config.dump(config_of(folder)))
    assert cli.main(["estimate", str(path), "--gpu", "h200", "--price", "3.5", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert set(figures) >= FIELDS
    assert cli.main(["estimate", str(path)]) == 0
    assert "largest budget" in capsys.readouterr().out
    assert cli.main(["estimate", str(path), "--gpu", "voodoo2"]) == ConfigError.exit_code


def row(step: int, seconds: float, speed: float = 100.0) -> dict[str, Any]:
    return {"step": step, "seconds": seconds, "audio_seconds_per_second": speed}


def test_the_time_of_a_step_counts_validations_by_the_speed_of_their_lines() -> None:
    plain = [row(20, 10.0), row(40, 20.0), row(60, 30.0)]
    assert estimate_time.step_seconds(plain) == pytest.approx(0.5)
    judged = [*plain[:2], {"step": 40, "split": "dev", "seconds": 20.0}, row(60, 30.0, speed=50.0)]
    assert estimate_time.step_seconds(judged) == pytest.approx((10 + 20) / 40)
    assert estimate_time.step_seconds(plain[:1]) is None
    assert estimate_time.step_seconds([]) is None
