from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.audio import codec, read_utterances
from voxstill.core import config
from voxstill.core.errors import DataError, TeacherError, VoxstillError
from voxstill.core.metrics.steps import StepMeter
from voxstill.core.records import Label, Utterance
from voxstill.labelling import label, label_figures
from voxstill.labelling.transcribe import Transcribe
from voxstill.storage import tables
from voxstill.storage.figures import LabelFigures
from voxstill.storage.store import Store

PREFIX = "utterances/test"
NUM = 12


@pytest.fixture(scope="module")
def wav(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("audio") / "a.wav"
    noise_T = np.random.default_rng(0).integers(-3000, 3000, 16_000 * NUM, dtype=np.int16)
    path.write_bytes(codec.encode(noise_T, "wav"))
    return path


READING = read_utterances.reading(config.Config())


def utterances(wav: Path, **changes: Any) -> list[Utterance]:
    """A second of the file each, with words."""
    common = {"recording_id": "r", "uri": str(wav), "text": "one two three"} | changes
    return [Utterance(id=f"u{i:02}", start_ms=1000 * i, end_ms=1000 * (i + 1), **common) for i in range(NUM)]


def work_of(folder: Path, *parts: list[Utterance]) -> Store:
    work = Store(str(folder))
    for number, part in enumerate(parts):
        work.create(f"{PREFIX}/{number:05}.parquet", tables.to_parquet(part, Utterance))
    return work


def run(work: Store, teacher: dict[str, Any], **options: Any) -> tuple[LabelFigures, list[Label]]:
    task = label.task(config.Teacher.model_validate(teacher))
    options = {"name": "inline", "chunk": 4, "workers": 1, "teachers": 1} | options
    limits = {name: options.pop(name) for name in ("max_chunks", "limit_hours") if name in options}
    with StepMeter("label", None, "utterances") as meter:
        figures = label.label(work, PREFIX, task, config.Engine(**options), READING, meter, **limits)
    assert figures.recipe == task.recipe
    return figures, list(tables.read(work, task.prefix, Label))


def parts(work: Store) -> dict[str, bytes]:
    return {key: work.read(key) for key in tables.parts(work, "labels")}


@settings(deadline=None, max_examples=15)
@given(st.sets(st.integers(0, NUM - 1)), st.integers(1, NUM + 2), st.integers(1, NUM + 2), st.integers(0, NUM))
def test_each_utterance_has_one_row_whatever_fails_and_however_it_is_divided(
    wav: Path, tmp_path_factory: pytest.TempPathFactory, bad: set[int], size: int, other: int, cut: int
) -> None:
    rows = utterances(wav)
    names = [f"u{i:02}" for i in sorted(bad)]
    teacher = {"name": "echo", "fail_on": names}
    work = work_of(tmp_path_factory.mktemp("work"), rows[:cut])
    if not bad >= set(range(cut)):
        run(work, teacher, chunk=size)
    work.create(f"{PREFIX}/more.parquet", tables.to_parquet(rows[cut:], Utterance))
    if len(bad) == NUM:
        with pytest.raises(TeacherError):
            run(work, teacher, chunk=other)
        return
    figures, labels = run(work, teacher, chunk=other)
    assert sorted(row.utterance_id for row in labels) == [row.id for row in rows]
    assert sorted(row.utterance_id for row in labels if row.error is not None) == names
    assert (figures.labels, figures.failed, figures.quarantined) == (NUM, len(bad), 0)
    assert all(row.finish == "failed" for row in labels if row.error is not None)


@pytest.mark.slow
def test_inline_and_ray_give_the_same_bytes(wav: Path, tmp_path: Path) -> None:
    works = {name: work_of(tmp_path / name, utterances(wav)) for name in ("inline", "ray")}
    for name, work in works.items():
        run(work, {"name": "echo", "substitute": 0.3}, name=name, teachers=2)
    assert parts(works["inline"]) == parts(works["ray"])
    assert len(parts(works["ray"])) == 3


@pytest.mark.slow
def test_an_utterance_that_kills_the_teacher_is_set_aside_with_its_reason(wav: Path, tmp_path: Path) -> None:
    work = work_of(tmp_path, utterances(wav))
    figures, labels = run(work, {"name": "echo", "crash_on": ["u05"]}, name="ray", attempts=1)
    assert (figures.labels, figures.failed, figures.quarantined) == (NUM, 1, 1)
    (row,) = [entry for entry in labels if entry.error is not None]
    assert (row.utterance_id, row.finish, row.text) == ("u05", "failed", "")
    assert row.error == "set aside: its worker died"


@pytest.mark.slow
def test_an_utterance_without_an_answer_is_set_aside_with_its_reason(wav: Path, tmp_path: Path) -> None:
    work = work_of(tmp_path, utterances(wav)[:3])
    _, labels = run(work, {"name": "echo", "hang_on": ["u01"]}, name="ray", lease_s=4.0, attempts=1)
    assert [row.error is None for row in labels] == [True, False, True]
    assert labels[1].error == "set aside: no answer within the time limit of 4 s, `engine.lease_s`"


def test_a_teacher_that_reads_no_texts_is_not_shown_any(wav: Path) -> None:
    shown = []
    for name in ("echo", "pocketsphinx"):
        task = label.task(config.Teacher(name=name))
        row = utterances(wav)[0]
        shown.append(Transcribe(task).clip(row, np.zeros(16_000, np.int16)).utterance.text)
    assert shown == ["one two three", None]


def test_audio_that_cannot_be_read_is_a_row_with_the_reason(wav: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.wav"
    cut.write_bytes(wav.read_bytes()[:100_000])
    intact, short = utterances(wav)[:2]
    rows = [
        intact,
        Utterance(id="cut", recording_id="c", uri=str(cut), end_ms=1000, text="one"),
        Utterance(id="late", recording_id="r", uri=str(wav), start_ms=60_000, end_ms=61_000, text="one"),
        short,
    ]
    figures, labels = run(work_of(tmp_path / "work", rows), {"name": "echo"})
    errors = {row.utterance_id: row.error for row in labels if row.error is not None}
    assert errors.keys() == {"cut", "late"}
    assert errors["cut"].startswith("truncated: ")
    assert errors["late"].startswith("shorter than when it was indexed: ")
    assert (figures.failed, figures.quarantined) == (2, 0)


def test_a_teacher_that_fails_on_everything_is_an_error_that_says_why(wav: Path, tmp_path: Path) -> None:
    work = work_of(tmp_path, utterances(wav, text=None))
    with pytest.raises(TeacherError, match="failed on all 12") as caught:
        run(work, {"name": "echo"})
    assert caught.value.why == "the manifest has no text for this utterance"
    assert not work.exists(f"labels/{label.task(config.Teacher(name='echo')).recipe}/{tables.SUCCESS}")


def test_a_teacher_that_cannot_be_opened_says_so_and_leaves_no_labels(wav: Path, tmp_path: Path) -> None:
    grammar = tmp_path / "g.jsgf"
    grammar.write_text("#JSGF V1.0; grammar g; public <g> = qwertzuiop;")
    work = work_of(tmp_path / "work", utterances(wav))
    with pytest.raises(VoxstillError, match="qwertzuiop"):
        run(work, {"name": "pocketsphinx", "grammar": str(grammar)})
    assert parts(work) == {}


def test_the_speed_is_that_of_the_run_that_labelled(wav: Path, tmp_path: Path) -> None:
    work = work_of(tmp_path, utterances(wav))
    first, _ = run(work, {"name": "echo", "delay_ms": 20})
    again, _ = run(work, {"name": "echo", "delay_ms": 20})
    assert again == first
    assert 1 < first.rtfx < 1000 / 20


# ------------------------------------------------------------------------------------------------ limits and resuming


def test_a_limit_leaves_the_run_unfinished_and_the_same_call_goes_on(wav: Path, tmp_path: Path) -> None:
    work, teacher = work_of(tmp_path, utterances(wav)), {"name": "echo"}
    first, rows = run(work, teacher, max_chunks=2)
    assert (len(rows), first.finished, first.labels) == (8, False, 8)
    assert not work.exists(f"labels/{first.recipe}/{tables.SUCCESS}")
    second, rows = run(work, teacher, limit_hours=1.5 / 3600)
    assert (len(rows), second.finished) == (12, True)
    assert work.exists(f"labels/{first.recipe}/{tables.SUCCESS}")


def test_a_limit_of_audio_takes_whole_chunks_until_it_is_reached(wav: Path, tmp_path: Path) -> None:
    work = work_of(tmp_path, utterances(wav))
    figures, rows = run(work, {"name": "echo"}, limit_hours=4.5 / 3600)
    assert (len(rows), figures.finished) == (8, False)


def test_a_finished_run_is_recognised_without_opening_a_part(
    wav: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = work_of(tmp_path, utterances(wav))
    first, _ = run(work, {"name": "echo"})
    with monkeypatch.context() as patch:
        patch.setattr(tables, "to_arrow", None)
        patch.setattr(tables, "from_parquet", None)
        with StepMeter("label", None, "utterances") as meter:
            task = label.task(config.Teacher(name="echo"))
            assert label.label(work, PREFIX, task, config.Engine(name="inline"), READING, meter) == first


def test_a_part_that_was_removed_is_labelled_again_to_the_same_bytes(wav: Path, tmp_path: Path) -> None:
    work = work_of(tmp_path, utterances(wav))
    first, _ = run(work, {"name": "echo"})
    before = parts(work)
    (tmp_path / sorted(before)[1]).unlink()
    again, _ = run(work, {"name": "echo"})
    assert parts(work) == before
    assert again.sha256 == first.sha256


def test_options_of_pace_alone_cause_no_relabelling() -> None:
    def recipe(**options: object) -> str:
        settings = {"name": "openai", "base_url": "http://127.0.0.1:1/v1", "model": "whisper-1", **options}
        return label.task(config.Teacher.model_validate(settings)).recipe

    assert recipe() == recipe(concurrency=64, retries=9, timeout_s=5.0)
    assert len({recipe(), recipe(language="en"), recipe(model="whisper-2"), recipe(temperature=0.5)}) == 4


def test_a_torn_part_of_labels_is_named(tmp_path: Path) -> None:
    work, task = Store(str(tmp_path)), label.task(config.Teacher(name="echo"))
    work.create(f"{task.prefix}/0.parquet", b"PAR1 and no more")
    with pytest.raises(DataError, match=r"0\.parquet` is not a table of Label rows"):
        label_figures.count(work, task)
