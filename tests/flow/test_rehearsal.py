"""A rehearsal does every step on a part of the source and leaves the real folders alone."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from voxstill import cli
from voxstill.core import config
from voxstill.indexing.failure import Failure
from voxstill.indexing.formats.entry import SourceEntry
from voxstill.indexing.scan import SourceFile, by_file, scan, split_of
from voxstill.pipeline import dry_run
from voxstill.pipeline.run_result import RunResult
from voxstill.storage.store import Store

pytestmark = pytest.mark.usefixtures("narrow_students")

Command = Callable[..., dict[str, Any]]
Configure = Callable[..., Path]
STEPS = ["index", "label", "filter", "shard", "train", "evaluate", "report"]


def everything(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_dry_run_does_every_step_in_folders_of_its_own(
    digits: Path, voxstill: Command, configure: Configure, tmp_path: Path
) -> None:
    settings = {"max_minutes": 90, "loader_workers": 0, "root": str(tmp_path / "exp")}
    path = configure(tmp_path, digits / "manifest.jsonl", train=settings)
    for name in ("work", "exp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text("as it was")
    before = everything(tmp_path / "work"), everything(tmp_path / "exp"), everything(digits)
    summary = voxstill("run", path, "--rehearse", "--max-batches", "4")
    assert (everything(tmp_path / "work"), everything(tmp_path / "exp"), everything(digits)) == before
    assert {"teacher", "student", "steps", "seconds", "report", "rehearsal"} <= summary.keys()
    assert [row["step"] for row in summary["steps"]] == STEPS
    assert summary["student"]["wer"] is not None
    run = Path(summary["student"]["path"])
    assert run.parent == tmp_path / "exp-rehearsal"
    assert json.loads((run / "summary.json").read_text())["steps"] == 4
    assert "the largest step fits" in (run / "train.log").read_text()
    rehearsal = summary["rehearsal"]
    assert Path(rehearsal["work"]).parent == tmp_path / "work-rehearsal"
    assert (rehearsal["files"], rehearsal["share"]) == (24, 1.0)
    indexed = summary["steps"][0]["figures"]
    assert rehearsal["whole"]["hours"] == pytest.approx(indexed["hours"])
    assert rehearsal["whole"]["train_hours"] == 1.5  # as the configuration says, however short the rehearsal was
    assert "Every step works" in RunResult.from_dict(summary).to_text()


def test_a_dry_run_of_two_rounds_reads_local_files_with_work_in_a_bucket(
    digits: Path, voxstill: Command, configure: Configure, tmp_path: Path, s3: Store
) -> None:
    path = configure(tmp_path, digits / "manifest.jsonl")
    settings = ("--set", "work=s3://bucket/work", "--set", "rounds=2")
    summary = voxstill("run", path, "--rehearse", "--max-batches", "2", *settings)
    assert [row["round"] for row in summary["rounds"]] == [1, 2]
    assert summary["rehearsal"]["whole"]["train_hours"] > 0
    assert summary["steps"][0]["figures"]["utterances"] == 24
    assert {entry.key.partition("/")[0] for entry in s3.list()} == {"work-rehearsal"}


def test_a_dry_run_warns_of_a_training_without_an_end(
    digits: Path, configure: Configure, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = configure(tmp_path, digits / "manifest.jsonl", train={"root": str(tmp_path / "exp")})
    assert cli.main(["run", str(path), "--rehearse"]) == 2
    assert "the training has no end" in capsys.readouterr().err


def source_files(folder: Path) -> list[SourceFile]:
    source = config.Source(uri=str(folder / "manifest.jsonl"))
    return list(by_file(scan(source)))


def test_the_manifest_of_a_dry_run_keeps_ids_splits_texts_and_metadata(digits: Path, tmp_path: Path) -> None:
    shutil.copytree(digits, tmp_path / "digits")
    with tarfile.open(tmp_path / "digits.tar", "w") as tar:  # no file of its own: a stretch of a tar
        tar.add(tmp_path / "digits" / "m1-0.flac", "m1-0.flac")
    tarred = list(by_file(scan(config.Source(uri=str(tmp_path / "digits.tar")))))
    cfg = config.Config()
    for files in (source_files(digits), tarred):
        (tmp_path / "manifest.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for file in files for row in dry_run.manifest_rows(file, cfg))
        )
        again = source_files(tmp_path)
        assert [row.id for row in again] == [row.id for row in files]
        for one, other in zip(files, again, strict=True):
            assert other.entries[0].split == split_of(one.entries[0], config.sources_of(cfg.source)[0], cfg.seed)
            assert other.entries[0].text == one.entries[0].text
            assert other.entries[0].info == one.entries[0].info


def test_few_files_of_every_split_are_chosen_and_always_the_same() -> None:
    cfg = config.Config()

    def source(num_bytes: int) -> list[SourceFile]:
        splits = ("train", "train", "train", "dev", "test")
        rows = [SourceEntry(uri=f"/{i}.wav", num_bytes=num_bytes, split=splits[i % 5]) for i in range(1000)]
        damaged = SourceEntry(uri="/damaged.wav", failure=Failure("damaged"), split="test")
        return [SourceFile(row.recording_id, (row,)) for row in [*rows, damaged]]

    part = dry_run.choose(source(100_000), cfg)
    assert {split: sum(one == split for one, _ in part.files) for split in dry_run.FILES} == dry_run.FILES
    assert part == dry_run.choose(source(100_000), cfg)
    assert part.share == pytest.approx(sum(dry_run.FILES.values()) / 1000, rel=0.01)
    assert all(file.entries[0].failure is None for _, file in part.files)
    large = dry_run.choose(source(500_000_000), cfg)
    assert len(large.files) == 3 * dry_run.FEW
