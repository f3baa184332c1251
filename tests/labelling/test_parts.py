"""Several labelling commands share one table: each takes its own chunks, and none is lost or doubled."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests import wav
from voxstill.core.config import Config, load
from voxstill.core.errors import ConfigError, StorageError
from voxstill.core.records import Label, fingerprint
from voxstill.labelling import label, retry_failed
from voxstill.pipeline.index import index
from voxstill.pipeline.label import label_utterances
from voxstill.storage import lease, tables
from voxstill.storage.parts import Part
from voxstill.storage.store import Store

NUM = 60


def configured(tmp_path: Path, *overrides: str) -> Config:
    folder = tmp_path / "source"
    folder.mkdir(exist_ok=True)
    rows = []
    for number in range(NUM):
        (folder / f"{number}.wav").write_bytes(wav(300 + 10 * number))
        rows.append({"audio": f"{number}.wav", "text": str(number), "speaker": str(number)})
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    overrides = (
        f"work={tmp_path / 'work'}",
        f"source.uri={folder / 'manifest.jsonl'}",
        "engine={name: inline, chunk: 3}",
        "teacher=echo",
        *overrides,
    )
    cfg = load(None, list(overrides), {})
    index(cfg)
    return cfg


def labels(cfg: Config) -> Counter[str]:
    """How many labels each utterance has."""
    work = Store(cfg.work)
    return Counter(row.utterance_id for row in tables.read(work, label.task(cfg.teacher, work).prefix, Label))


@pytest.mark.parametrize(
    "environment",
    [
        {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "3"},  # --array=1,3,7
        {"JOB_COMPLETION_INDEX": "5", "VOXSTILL_PARTS": "4"},
    ],
)
def test_a_part_above_the_total_is_refused_and_does_not_silently_do_nothing(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"is part [67] of [34]"):
        Part.parse("auto", environment)


def test_one_part_ends_a_removal_of_failed_labels_that_was_begun(tmp_path: Path) -> None:
    """Another that had read its plan could take new labels out."""
    cfg = configured(tmp_path)
    label_utterances(cfg)
    work = Store(cfg.work)
    table = label.task(cfg.teacher, work).prefix
    first = tables.parts(work, table)[0]
    work.write_json(f"{table}/{retry_failed.PLAN}", {"replaced_by": {first: None}})
    work.delete(f"{table}/{tables.SUCCESS}")
    with (
        lease.hold(work, f"{table}/removal", "label --part 1/2"),
        pytest.raises(StorageError, match="runs `voxstill label --part 1/2` there since"),
    ):
        retry_failed.finish_removal(work, table)
    assert work.exists(first)
    for number in (1, 2):
        label_utterances(cfg, part=f"{number}/2")
    assert not work.exists(f"{table}/{retry_failed.PLAN}")
    assert list(labels(cfg).values()) == [1] * NUM


@given(names=st.lists(st.integers(0, 2**64 - 1).map(fingerprint), max_size=50), total=st.integers(1, 9))
def test_every_chunk_is_of_exactly_one_part(names: list[str], total: int) -> None:
    parts = [Part(number, total) for number in range(1, total + 1)]
    assert all(sum(part.takes(name) for part in parts) == 1 for name in names)


def test_parts_one_after_the_other_label_everything_once_and_the_last_one_finishes(tmp_path: Path) -> None:
    cfg = configured(tmp_path)
    finished = [label_utterances(cfg, part=f"{number}/4").finished for number in (3, 1, 4, 2)]
    assert finished == [False, False, False, True]
    assert list(labels(cfg).values()) == [1] * NUM
    figures = label_utterances(cfg)
    assert (figures.labels, figures.finished) == (NUM, True)


def test_parts_of_another_number_or_size_are_refused_and_one_without_parts_does_the_rest(tmp_path: Path) -> None:
    cfg = configured(tmp_path)
    label_utterances(cfg, part="1/4")
    with pytest.raises(ConfigError, match="is made in 4 parts with chunks of 3") as caught:
        label_utterances(cfg, part="2/5")
    assert "--part K/4" in caught.value.fix
    other_size = cfg.model_copy(update={"engine": cfg.engine.model_copy(update={"chunk": 7})})
    with pytest.raises(ConfigError, match="chunks of 3"):
        label_utterances(other_size, part="2/4")
    assert label_utterances(other_size).finished
    assert list(labels(cfg).values()) == [1] * NUM


def test_the_whole_and_a_part_do_not_label_at_once(tmp_path: Path) -> None:
    cfg = configured(tmp_path)
    work = Store(cfg.work)
    table = label.task(cfg.teacher, work).prefix
    with (
        lease.hold(work, f"{table}/part-1-of-4", "label --part 1/4"),
        pytest.raises(StorageError, match="runs `voxstill label --part 1/4` there since"),
    ):
        label_utterances(cfg)
    with lease.hold(work, table, "label"), pytest.raises(StorageError, match="runs `voxstill label` there since"):
        label_utterances(cfg, part="2/4")
    assert label_utterances(cfg).finished


@pytest.mark.parametrize(
    ("environment", "part"),
    [
        (
            {
                "SLURM_ARRAY_TASK_ID": "12",
                "SLURM_ARRAY_TASK_MIN": "10",
                "SLURM_ARRAY_TASK_COUNT": "4",
                "SLURM_ARRAY_TASK_STEP": "2",
            },
            Part(2, 4),
        ),
        ({"JOB_COMPLETION_INDEX": "0", "VOXSTILL_PARTS": "8"}, Part(1, 8)),
    ],
)
def test_a_scheduler_says_which_part_it_is(environment: dict[str, str], part: Part) -> None:
    assert Part.parse("auto", environment) == part


@pytest.mark.parametrize("text", ["auto", "0/4", "5/4", "1", "a/b", "1/0", ""])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--part"):
        Part.parse(text, {"JOB_COMPLETION_INDEX": "3"})
