"""Several labelling commands share one table: each takes its own chunks, and none is lost or doubled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests import wav
from seeds import seeded_random
from voxstill.core.config import Config, load
from voxstill.core.errors import ConfigError, StorageError
from voxstill.core.records import Label, fingerprint
from voxstill.labelling import label
from voxstill.labelling.parts import Part
from voxstill.pipeline.index import index
from voxstill.pipeline.label import label_utterances
from voxstill.storage import lease, tables
from voxstill.storage.store import Store

NUM = 60
TEACHER = "{name: echo, delay_ms: 5}"


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
        f"teacher={TEACHER}",
        *overrides,
    )
    cfg = load(None, list(overrides), {})
    index(cfg)
    return cfg


def labels(cfg: Config) -> Counter[str]:
    """How many labels each utterance has."""
    work = Store(cfg.work)
    return Counter(row.utterance_id for row in tables.read(work, label.task(cfg.teacher, work).prefix, Label))


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
    with pytest.raises(ConfigError, match="is labelled in 4 parts with chunks of 3") as caught:
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


def test_parts_that_are_killed_at_random_lose_and_double_nothing(tmp_path: Path) -> None:
    cfg = configured(tmp_path)
    random = seeded_random()
    command = [sys.executable, "-m", "voxstill", "label", cfg.work, "--set", "engine={name: inline, chunk: 3}"]
    command += ["--set", f"teacher={TEACHER}", "--set", f"source.uri={cfg.source.uri}"]

    def start(number: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*command, "--part", f"{number}/3"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ
        )

    running = {number: start(number) for number in (1, 2, 3)}
    kills, until = 6, time.monotonic() + 90
    while running and time.monotonic() < until:
        time.sleep(random.uniform(0.1, 0.6))
        number = random.choice(list(running))
        if running[number].poll() is None and kills:
            running[number].send_signal(signal.SIGKILL)
            running[number].wait()
            kills -= 1
        if (code := running[number].poll()) is not None:
            del running[number]
            if code != 0:
                running[number] = start(number)
    assert not running
    figures = label_utterances(cfg)
    assert (figures.labels, figures.finished) == (NUM, True)
    assert list(labels(cfg).values()) == [1] * NUM
