"""A kept plan is the plan that would be made, or it is not used."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.core.config import Plan
from voxstill.data.kept_plan import kept_plan
from voxstill.data.plan import EpochPlan, plan, tempos

# the last one fits any of the limits, so that there is always something to plan
DURATIONS = st.lists(st.integers(0, 3000), max_size=200).map(lambda durations: np.array([*durations, 100], np.int64))
LIMITS = st.builds(
    Plan,
    budget_ms=st.integers(200, 20_000),
    max_utterances=st.integers(1, 40),
    batches_per_step=st.sampled_from([1, 2, 3, 4, 8]),
    window=st.integers(1, 300),
    layout=st.sampled_from(["local", "remote"]),
)
OTHER_ARGUMENTS: list[dict[str, Any]] = [
    {"seed": 1},
    {"epoch": 1},
    {"ascending": True},
    {"max_duration_ms": 3_000},
    {"num_frames": np.full(300, 9)},
    {"equal_neighbours": np.ones(300, np.int64)},
    {"shard_of": np.arange(300) // 7},
    {"sampling_rate": np.full(300, 1.5)},
    {"tempo_N": np.full(300, 1.01, np.float32)},
]


def arguments(durations_ms: np.ndarray, cfg: Plan, **options: Any) -> functools.partial[EpochPlan]:
    tokens = durations_ms // 200 + 1
    return functools.partial(plan, durations_ms, tokens, cfg, **({"seed": 0, "epoch": 0} | options))


def some_lengths(num: int = 300) -> np.ndarray:
    return np.random.default_rng(0).integers(100, 4_000, num)


def assert_equal(one: EpochPlan, other: EpochPlan) -> None:
    for field in dataclasses.fields(EpochPlan):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype, field.name
            assert np.array_equal(left, right), field.name
        else:
            assert left == right, field.name


def is_written(path: Path, make: functools.partial[EpochPlan]) -> bool:
    """Whether a plan is made and kept, and not read."""
    before = path.stat().st_ino if path.exists() else None
    kept_plan(path, make)
    return path.stat().st_ino != before


@settings(max_examples=100, deadline=None)
@given(st.data(), DURATIONS, LIMITS, st.integers(0, 2), st.booleans(), st.booleans())
def test_training_goes_on_from_any_step_with_the_batches_of_the_plan_from_the_start(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    durations_ms: np.ndarray,
    cfg: Plan,
    epoch: int,
    ascending: bool,
    has_tempo: bool,
) -> None:
    tempo_N = tempos(len(durations_ms), 0.1, seed=0, epoch=epoch) if has_tempo else None
    make = arguments(
        *(durations_ms, cfg),
        epoch=epoch,
        ascending=ascending,
        num_frames=durations_ms,
        shard_of=np.arange(len(durations_ms)) // 7,
        tempo_N=tempo_N,
    )
    path = tmp_path_factory.mktemp("plans") / "corpus/epoch.plan"
    original, first, resumed = make(), kept_plan(path, make), kept_plan(path, make)
    assert not is_written(path, make)
    assert_equal(original, first)
    assert_equal(original, resumed)
    assert original.sha256() == resumed.sha256()
    ranks = data.draw(st.sampled_from([n for n in (1, 2, 3, 4, 8) if cfg.batches_per_step % n == 0]))
    for step in range(data.draw(st.integers(0, original.steps)), original.steps):
        for rank in range(ranks):
            of_plan, of_kept = original.batches_of(step, rank, ranks), resumed.batches_of(step, rank, ranks)
            assert [batch.tolist() for batch in of_plan] == [batch.tolist() for batch in of_kept]


@pytest.mark.parametrize("other", OTHER_ARGUMENTS, ids=lambda other: next(iter(other)))
def test_a_plan_of_other_arguments_is_not_used(tmp_path: Path, other: dict[str, Any]) -> None:
    path, make = tmp_path / "epoch.plan", arguments(some_lengths(), Plan(budget_ms=20_000))
    kept_plan(path, make)
    changed = functools.partial(make, **other)
    assert_equal(kept_plan(path, changed), changed())
    assert not is_written(path, changed)
    assert is_written(path, make)


def test_a_plan_of_other_lengths_or_tokens_or_options_is_not_used(tmp_path: Path) -> None:
    path, lengths_ms, cfg = tmp_path / "epoch.plan", some_lengths(), Plan(budget_ms=20_000)
    longer_ms = lengths_ms.copy()
    longer_ms[17] += 1
    calls = [
        functools.partial(plan, lengths_ms, lengths_ms, cfg, seed=0, epoch=0),
        functools.partial(plan, longer_ms, lengths_ms, cfg, seed=0, epoch=0),
        functools.partial(plan, lengths_ms, longer_ms, cfg, seed=0, epoch=0),
        functools.partial(plan, lengths_ms, None, cfg, seed=0, epoch=0),
        functools.partial(plan, lengths_ms[:-1], lengths_ms[:-1], cfg, seed=0, epoch=0),
        functools.partial(plan, lengths_ms, lengths_ms, Plan(budget_ms=20_001), seed=0, epoch=0),
        functools.partial(plan, lengths_ms, lengths_ms, Plan(budget_ms=20_000, window=100), seed=0, epoch=0),
    ]
    for make in calls:
        assert is_written(path, make)
        assert not is_written(path, make)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_or_truncated_file_is_noticed_and_replaced(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("plans") / "epoch.plan"
    make = arguments(some_lengths(40), Plan(budget_ms=20_000))
    original = kept_plan(path, make)
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    flipped = whole[:place] + bytes([whole[place] ^ 1 << data.draw(st.integers(0, 7))]) + whole[place + 1 :]
    damaged = data.draw(st.sampled_from([flipped, whole[:place], whole[:place] + bytes(len(whole) - place) + b"0"]))
    path.write_bytes(damaged)
    assert_equal(kept_plan(path, make), original)
    assert path.read_bytes() == whole


def test_of_a_plan_that_was_written_by_half_nothing_is_left(tmp_path: Path) -> None:
    path, make = tmp_path / "epoch.plan", arguments(some_lengths(), Plan(budget_ms=20_000))
    killed = KILLED.format(tests=str(Path(__file__).parent), path=str(path))
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == -9
    assert [file.suffix for file in tmp_path.iterdir()] == [".draft"]
    assert_equal(kept_plan(path, make), make())
    assert list(tmp_path.iterdir()) == [path]


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_kept_plan import Plan, arguments, kept_plan, some_lengths
Path.replace = lambda self, target: os.kill(os.getpid(), signal.SIGKILL)
kept_plan(Path({path!r}), arguments(some_lengths(), Plan(budget_ms=20_000)))
"""


def test_processes_that_plan_at_the_same_time_have_the_same_plan_and_leave_one_file(tmp_path: Path) -> None:
    path, make = tmp_path / "epoch.plan", arguments(some_lengths(), Plan(budget_ms=20_000))
    code = AT_ONCE.format(tests=str(Path(__file__).parent), path=str(path))
    processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    hashes = {process.communicate(timeout=120)[0].strip() for process in processes}
    assert hashes == {make().sha256()}
    assert list(tmp_path.iterdir()) == [path]
    assert not is_written(path, make)


AT_ONCE = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_kept_plan import Plan, arguments, kept_plan, some_lengths
for epoch in (1, 0, 1, 0, 1, 0):
    planned = kept_plan(Path({path!r}), arguments(some_lengths(), Plan(budget_ms=20_000), epoch=epoch))
    assert planned.sha256() == arguments(some_lengths(), Plan(budget_ms=20_000), epoch=epoch)().sha256()
print(planned.sha256())
"""


def test_where_nothing_can_be_written_the_plan_is_made_and_not_kept(tmp_path: Path) -> None:
    make = arguments(some_lengths(), Plan(budget_ms=20_000))
    (tmp_path / "file").write_text("in the place of a folder")
    assert_equal(kept_plan(tmp_path / "file/epoch.plan", make), make())
    (tmp_path / "epoch.plan").mkdir()
    (tmp_path / "epoch.plan/file").write_text("in the place of a plan")
    assert_equal(kept_plan(tmp_path / "epoch.plan", make), make())
