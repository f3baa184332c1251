"""Every label that says something is held against its audio once, whatever ends the step or is added later."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from tones import TEXTS, speak
from voxstill import engine
from voxstill.audio import codec
from voxstill.core.config import Config
from voxstill.core.errors import DataError, StorageError, VoxstillError
from voxstill.core.records import Alignment, Label, Utterance, Verdict
from voxstill.filtering import measures
from voxstill.indexing.recipe import utterances_recipe
from voxstill.labelling import label
from voxstill.pipeline import filter as filtering
from voxstill.pipeline import recipes
from voxstill.storage import lease, tables, workdir
from voxstill.storage.figures import LabelFigures
from voxstill.storage.store import Store

WRONG = {1: "ko du mi", 5: "du", 6: "mi ba ko du mi ba"}
SILENT = {2: "", 3: "what tones cannot say"}


def config(work: Path, aligner: Path | None, name: str = "inline", **more: Any) -> Config:
    loose = {"min_chars_per_s": 0.0, "max_chars_per_s": 1e9, "frame_ms": 1}
    return Config.model_validate(
        {
            "work": str(work / "work"),
            "engine": {"name": name, "chunk": 3, "workers": 1, "teachers": 1},
            "teacher": {"name": "echo"},
            "filter": {**loose, "aligner": None if aligner is None else str(aligner)} | more,
        }
    )


def add(cfg: Config, folder: Path, numbers: range) -> None:
    """Spoken utterances with their labels, some of them wrong, beside those that are there."""
    work, recipe, task = Store(cfg.work), utterances_recipe(cfg), label.task(cfg.teacher)
    utterances, labels = [], []
    for i in numbers:
        text = TEXTS[i % len(TEXTS)]
        samples_T, _ = speak(text, i)
        path = folder / f"{i}.wav"
        path.write_bytes(codec.encode(samples_T, "wav"))
        utterances.append(Utterance(id=f"u{i}", recording_id=f"r{i}", uri=str(path), end_ms=len(samples_T) // 16))
        transcript = WRONG.get(i, SILENT.get(i, text))
        labels.append(Label(utterance_id=f"u{i}", recipe=task.recipe, teacher=task.name, text=transcript))
    work.create(f"utterances/{recipe}/{numbers.start}.parquet", tables.to_parquet(utterances, Utterance))
    work.write_json(f"utterances/{recipe}/{tables.SUCCESS}", {"recipe": recipe, "utterances": 1, "hours": 1.0})
    for chunk in engine.chunks_of(labels, cfg.engine.chunk, lambda row: row.utterance_id):
        work.create(f"{task.prefix}/{chunk.id}.parquet", tables.to_parquet(chunk.items, Label))
    finish(cfg, numbers.stop)


def finish(cfg: Config, sha256: object) -> None:
    work, task = Store(cfg.work), label.task(cfg.teacher)
    listing = tables.parts_hash(work, task.prefix)
    success = {"recipe": task.recipe, "teacher": task.name, "sha256": str(sha256), "listing": listing}
    work.write_json(f"{task.prefix}/{tables.SUCCESS}", success)


def reasons(cfg: Config) -> dict[str, str | None]:
    recipe = filtering.filter_labels(cfg).recipe
    return {row.utterance_id: row.reason for row in tables.read(Store(cfg.work), f"verdicts/{recipe}", Verdict)}


def parts(cfg: Config) -> dict[str, bytes]:
    """Every part of the alignments."""
    work = Store(cfg.work)
    return {key: work.read(key) for key in tables.parts(work, "alignments")}


def aligned(cfg: Config) -> dict[tuple[str, str], float | None]:
    """Of each utterance and text; that none comes twice is checked."""
    rows = list(tables.read(Store(cfg.work), "alignments", Alignment))
    logprobs = {(row.utterance_id, row.text): row.logprob for row in rows}
    assert len(logprobs) == len(rows)
    return logprobs


def test_badly_aligned_labels_are_dropped_and_those_without_a_score_are_kept(
    tmp_path: Path, tone_student: Path
) -> None:
    cfg = config(tmp_path, tone_student)
    add(cfg, tmp_path, range(8))
    verdicts = reasons(cfg)
    assert verdicts == {f"u{i}": "badly_aligned" if i in WRONG else "empty" if i == 2 else None for i in range(8)}
    rows = aligned(cfg)
    assert {id_ for id_, _ in rows} == {f"u{i}" for i in range(8) if i != 2}  # of nothing there is no alignment
    assert [id_ for (id_, _), logprob in rows.items() if logprob is None] == ["u3"]
    before = parts(cfg)
    assert set(reasons(config(tmp_path, tone_student, min_alignment=-1000.0)).values()) == {None, "empty"}
    assert parts(cfg) == before  # another threshold hears nothing
    assert set(reasons(config(tmp_path, None)).values()) == {None, "empty"}


def test_only_missing_alignments_are_computed(tmp_path: Path, tone_student: Path) -> None:
    cfg = config(tmp_path, tone_student)
    work = Store(cfg.work)
    add(cfg, tmp_path, range(8))
    reasons(cfg)
    whole = aligned(cfg)
    (recipe,) = workdir.finished_recipes(work, "alignments")
    first = next(iter(parts(cfg)))
    for key in (first, f"alignments/{recipe}/{tables.SUCCESS}"):  # as a step leaves it that is ended
        (tmp_path / "work" / key).unlink()
    shutil.rmtree(tmp_path / "work/scores")
    shutil.rmtree(tmp_path / "work/verdicts")
    contents = parts(cfg)
    for i in range(8):
        if f"u{i}" in {id_ for data in contents.values() for id_ in ids(data)}:
            (tmp_path / f"{i}.wav").unlink()  # nobody asks for it any more
    reasons(cfg)
    assert aligned(cfg) == whole
    add(cfg, tmp_path, range(8, 10))  # as a second `index` and `label` do
    reasons(cfg)
    more = aligned(cfg)
    assert {key: more[key] for key in whole} == whole
    assert {id_ for id_, _ in more.keys() - whole.keys()} == {"u8", "u9"}


def ids(data: bytes) -> list[str]:
    return [row.utterance_id for row in tables.from_parquet(data, Alignment)]


def test_a_label_with_new_words_is_aligned_again(tmp_path: Path, tone_student: Path) -> None:
    cfg = config(tmp_path, tone_student)
    work, task = Store(cfg.work), label.task(cfg.teacher)
    add(cfg, tmp_path, range(3))
    assert reasons(cfg)["u1"] == "badly_aligned"
    for key in tables.parts(work, task.prefix):
        rows = tables.from_parquet(work.read(key), Label)
        mended = [dataclasses.replace(row, text=TEXTS[1]) if row.utterance_id == "u1" else row for row in rows]
        work.replace(key, tables.to_parquet(mended, Label))
    finish(cfg, "mended")
    assert reasons(cfg)["u1"] is None
    assert {text for id_, text in aligned(cfg) if id_ == "u1"} == {WRONG[1], TEXTS[1]}


def test_a_label_whose_audio_is_away_is_aligned_when_it_is_back(tmp_path: Path, tone_student: Path) -> None:
    cfg = config(tmp_path, tone_student)
    add(cfg, tmp_path, range(5))
    (tmp_path / "1.wav").rename(tmp_path / "away")
    with pytest.raises(StorageError, match="1 labels are not done"):
        reasons(cfg)
    assert len(list(tables.read(Store(cfg.work), "alignments", Alignment))) == 3  # one of five has no words
    (tmp_path / "away").rename(tmp_path / "1.wav")
    reasons(cfg)
    rows = {row.utterance_id: row for row in tables.read(Store(cfg.work), "alignments", Alignment)}
    assert len(rows) == 4
    assert rows["u1"].error is None


def test_damaged_audio_is_a_row_with_its_reason_and_no_reason_to_drop(tmp_path: Path, tone_student: Path) -> None:
    cfg = config(tmp_path, tone_student)
    add(cfg, tmp_path, range(5))
    (tmp_path / "1.wav").write_bytes((tmp_path / "1.wav").read_bytes()[:100])
    assert reasons(cfg)["u1"] is None
    (row,) = (row for row in tables.read(Store(cfg.work), "alignments", Alignment) if row.utterance_id == "u1")
    assert row.logprob is None
    assert row.error


def test_alignments_under_ray_have_the_bytes_of_inline(tmp_path: Path, tone_student: Path) -> None:
    cfg = config(tmp_path, tone_student)
    add(cfg, tmp_path, range(8))
    reasons(cfg)
    one = parts(cfg)
    for table in ("alignments", "scores", "verdicts"):
        shutil.rmtree(tmp_path / "work" / table)
    reasons(config(tmp_path, tone_student, "ray"))
    assert parts(cfg) == one


def test_an_aligner_that_cannot_tokenize_any_label_is_an_error(tmp_path: Path, tone_student: Path) -> None:
    cfg = config(tmp_path, tone_student)
    add(cfg, tmp_path, range(3, 4))
    with pytest.raises(DataError, match="aligns none of the 1 labels"):
        filtering.filter_labels(cfg)
    with pytest.raises(VoxstillError, match="there is no student"):
        filtering.filter_labels(config(tmp_path, tmp_path))


def test_each_part_of_the_filter_aligns_the_labels_that_it_measures(
    tmp_path: Path, tone_student: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures, "PARTS", 1)
    cfg, whole = config(tmp_path, tone_student), config(tmp_path / "whole", tone_student)
    for cfg_of, folder in ((cfg, tmp_path), (whole, tmp_path / "whole")):
        folder.mkdir(exist_ok=True)
        for number in range(8):
            add(cfg_of, folder, range(number, number + 1))
    nums, finished = [], []
    for number in (1, 2, 3):
        finished.append(filtering.filter_labels(cfg, part=f"{number}/3").finished)
        nums.append(len(aligned(cfg)))
    assert finished == [False, False, None]
    assert nums[0] < nums[1] < nums[2]
    assert reasons(cfg) == reasons(whole)
    assert aligned(cfg) == pytest.approx(aligned(whole))
    assert len(workdir.finished_recipes(Store(cfg.work), "alignments")) == 1


def test_one_process_at_a_time_aligns(tmp_path: Path, tone_student: Path) -> None:
    cfg = config(tmp_path, tone_student)
    add(cfg, tmp_path, range(2))
    work = Store(cfg.work)
    labels = workdir.finished(work, LabelFigures)
    task = recipes.alignment_task(cfg, labels)
    assert task is not None
    with (
        lease.hold(work, task.prefix, "filter"),
        pytest.raises(StorageError, match="runs `voxstill filter` there since"),
    ):
        filtering.filter_labels(cfg)
