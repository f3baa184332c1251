from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_works import (
    FunctionWork,
    Twice,
    aside,
    misbehave,
)
from voxstill import engine
from voxstill.core.config import Engine
from voxstill.core.errors import TeacherError, VoxstillError
from voxstill.core.metrics.figures import Summary
from voxstill.engine import Change, Chunk, Stage, StageWork, chunks_of, ray_driver


class Asked:
    """Changes that a test asks for while a run goes on, and what came of them."""

    def __init__(self) -> None:
        self.next: Change | None = None
        self.outcomes: list[Any] = []

    def poll(self) -> Change | None:
        change, self.next = self.next, None
        return change

    def applied(self, stages: Sequence[Stage]) -> None:
        self.outcomes.append("applied")

    def rejected(self, error: VoxstillError) -> None:
        self.outcomes.append(error)


class Slow:
    def __call__(self, items: Sequence[Any], _: Any) -> list[Any]:
        time.sleep(0.1)
        return list(items)


@dataclass(frozen=True)
class NamedWork(StageWork):
    """A work that writes its name with each item, and where it was closed."""

    name: str
    closed: Path | None = None
    mischief: str = ""
    delay_s: float = 0.1

    def open(self) -> None:
        if self.mischief == "cannot start":
            raise TeacherError("there is no such revision", why="the Hub does not know it", fix="name another")
        if self.mischief == "dies at the start":
            os._exit(3)

    def __call__(self, items: Sequence[Any], payload: Any) -> list[str]:
        misbehave(self.mischief)
        if self.mischief == "ends":
            raise TeacherError("the server does not know the model")
        time.sleep(self.delay_s)
        return [f"{self.name} {os.getpid()} {item}" for item in items]

    def close(self) -> None:
        if self.closed is not None:
            (self.closed / f"{self.name}.{os.getpid()}").touch()


def staged(work: StageWork, workers: int = 1) -> tuple[Stage, ...]:
    return (Stage(name="decode", work=Twice(), workers=1), Stage(name="teach", work=work, workers=workers))


def run_and_ask(
    asks: dict[int, tuple[Stage, ...]], stages: Sequence[Stage], num: int, after: int = 0, **options: Any
) -> tuple[list[list[str]], Summary, Asked]:
    """Rows of each chunk of two in the order of their commits, where so many commits ask for these stages.

    Where nothing has come of the question before, the next one waits for that. There are `num` chunks, or more: `after`
    that follow the answer to the last question.
    """
    changes, committed, items, one_at_a_time = Asked(), [], [], threading.Lock()
    waiting = deque(sorted(asks.items()))

    def source() -> Iterator[Chunk]:
        countdown = after
        for chunk in chunks_of(count(), 2, str):
            countdown -= len(changes.outcomes) == len(asks)
            if len(items) >= num and countdown < 0:
                return
            items.extend(chunk.items[::2])
            yield chunk

    def commit(chunk: Chunk, rows: list[Any]) -> None:
        with one_at_a_time:  # threads commit side by side: the number of one could be passed over
            committed.append(rows)
            ask()

    def ask() -> None:
        is_answered = len(changes.outcomes) + len(waiting) == len(asks)
        if waiting and is_answered and len(committed) >= waiting[0][0]:
            _, wanted = waiting.popleft()
            changes.next = Change(wanted, Engine(**options))

    ask()
    summary = engine.run(source(), stages, commit, aside, Engine(**options), None, changes)
    rows = [row for part in committed for row in part]
    assert sorted(int(row.split()[-1]) for row in rows) == list(range(2 * len(items)))
    return committed, summary, changes


def names_of(committed: list[list[str]]) -> list[str]:
    """Who made each chunk: nobody makes half a chunk."""
    assert all(len({row.split()[0] for row in rows}) == 1 for rows in committed)
    return [rows[0].split()[0] for rows in committed]


@pytest.mark.parametrize("name", ["inline", "ray"])
def test_another_work_takes_over_between_chunks_and_the_one_before_is_closed(
    ray: Any, name: str, tmp_path: Path
) -> None:
    old, new = NamedWork("old", tmp_path), NamedWork("new", tmp_path)
    committed, summary, changes = run_and_ask({3: staged(new, 2)}, staged(old, 2), 6, after=30, name=name)
    names = names_of(committed)
    assert names.count("old") >= 3
    assert names.count("new") > 20  # all of the 30 that follow but what the old ones had in hand
    assert changes.outcomes == ["applied"]
    assert (summary.num_retries, summary.num_restarts, summary.num_skipped) == (0, 0, 0)
    closed = {path.name for path in tmp_path.iterdir()}
    assert {".".join(row.split()[:2]) for rows in committed for row in rows} <= closed


IN_PROCESS = {
    "cannot start": "no such revision",
    "ends": "does not know the model",
    "raise": "this item is bad",
}
IN_WORKERS = {**IN_PROCESS, "die": "Died", "dies at the start": "Died", "hang": "time limit of 6 s"}


@pytest.mark.parametrize(("name", "reasons"), [("inline", IN_PROCESS), ("ray", IN_WORKERS)])
def test_canaries_that_fail_one_after_the_other_change_nothing(ray: Any, name: str, reasons: dict[str, str]) -> None:
    canaries = [staged(NamedWork("new", mischief=mischief), 3) for mischief in reasons]
    asks, old = dict(enumerate(canaries, start=2)), staged(NamedWork("old"))
    committed, summary, changes = run_and_ask(asks, old, 6, after=6, name=name, lease_s=6.0, attempts=2)
    assert set(names_of(committed)) == {"old"}
    for error, why in zip(changes.outcomes, reasons.values(), strict=True):
        assert why in f"{error.what} {error.why}"
    assert summary.num_skipped == summary.num_retries == 0
    assert len({row.split()[1] for rows in committed for row in rows}) == 1  # nor was another of the old ones started


@pytest.mark.parametrize("name", ["inline", "ray"])
def test_what_is_asked_for_before_the_first_chunk_holds_from_there_on(ray: Any, name: str) -> None:
    asks = {0: staged(NamedWork("new"))}
    committed, _, changes = run_and_ask(asks, staged(NamedWork("old", mischief="cannot start")), 6, name=name)
    assert set(names_of(committed)) == {"new"}
    assert changes.outcomes == ["applied"]
    asks = {0: staged(NamedWork("new", mischief="cannot start"))}
    committed, _, changes = run_and_ask(asks, staged(NamedWork("old")), 6, name=name)
    assert set(names_of(committed)) == {"old"}
    assert "no such revision" in changes.outcomes[0].what


def test_workers_are_started_and_drained_while_the_run_goes_on(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_driver, "LOOK_SHARE", 1e-9)  # a look that takes long puts the next one off
    work, changes, workers, drained = NamedWork("one"), Asked(), list[str](), list[str]()
    to_ask, one_at_a_time = [Change(staged(work, num), Engine(in_flight=1)) for num in (1, 4)], threading.Lock()

    def source() -> Iterator[Chunk]:
        countdown = 30
        for chunk in chunks_of(count(), 2, str):
            countdown -= len(changes.outcomes) == 2
            if countdown < 0:
                return
            yield chunk

    def commit(chunk: Chunk, rows: list[Any]) -> None:
        worker = rows[0].split()[1]
        with one_at_a_time:
            workers.append(worker)
            if len(changes.outcomes) == 2:
                drained.append(worker)
            are_four = len(set(workers)) == 4 and len(changes.outcomes) == 1
            # each change once: one that is asked for while it is made would be made again
            if (len(to_ask) == 2 and len(workers) >= 4) or (len(to_ask) == 1 and are_four):
                changes.next = to_ask.pop()

    summary = engine.run(source(), staged(work, 1), commit, aside, Engine(), None, changes)
    assert changes.outcomes == ["applied", "applied"]
    assert len(set(workers[:4])) == 1
    assert len(set(workers)) == 4
    assert max(Counter(drained).values()) > len(drained) - 10  # each of the others had a chunk or none in hand
    assert (summary.num_retries, summary.num_restarts) == (0, 0)


def test_workers_that_wait_take_turns(ray: Any) -> None:
    """Where the stage before is the slower one, none of them is left without a chunk."""
    stages = (Stage(name="decode", work=FunctionWork(Slow), workers=1), *staged(NamedWork("one", delay_s=0.0), 3)[1:])
    workers: list[str] = []

    def commit(chunk: Chunk, rows: list[Any]) -> None:
        workers.append(rows[0].split()[1])

    def source() -> Iterator[Chunk]:
        for chunk in chunks_of(range(200), 2, str):
            if len(set(workers)) == 3:
                return
            yield chunk

    engine.run(source(), stages, commit, aside, Engine(in_flight=1))
    assert len(set(workers)) == 3


def test_gpus_that_are_not_there_are_refused_and_the_run_goes_on(ray: Any) -> None:
    decode, teacher_stage = staged(NamedWork("old"))
    greedy = decode, replace(teacher_stage, workers=2, num_gpus=32)
    committed, _, changes = run_and_ask({2: greedy}, (decode, teacher_stage), 10)
    assert set(names_of(committed)) == {"old"}
    assert "need 64 GPUs" in changes.outcomes[0].what


def test_a_draining_worker_that_fails_returns_its_chunk(ray: Any, tmp_path: Path) -> None:
    class Fickle:
        def __call__(self, items: Sequence[Any], _: Any) -> list[str]:
            if (tmp_path / "gone").exists():
                raise TeacherError("the server of before is gone")
            time.sleep(0.3)
            return [f"old 1 {item}" for item in items]

    class Leaving(Asked):
        def applied(self, stages: Sequence[Stage]) -> None:
            (tmp_path / "gone").touch()

    changes, committed, one_at_a_time = Leaving(), [], threading.Lock()

    def commit(chunk: Chunk, rows: list[Any]) -> None:
        with one_at_a_time:
            committed.extend(rows)
            if len(committed) == 4:
                changes.next = Change(staged(NamedWork("new")), Engine())

    stages = staged(FunctionWork(Fickle))
    engine.run(chunks_of(range(40), 2, str), stages, commit, aside, Engine(in_flight=4), None, changes)
    assert sorted(int(row.split()[-1]) for row in committed) == list(range(40))


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(st.integers(0, 19), st.sampled_from(["a", "b", "c", "cannot start", "raise", "ends"]), max_size=8)
)
def test_whatever_is_asked_for_each_item_is_done_once_by_the_last_work_that_passed(asks: dict[int, str]) -> None:
    def work(kind: str) -> NamedWork:
        return NamedWork(kind, delay_s=0.0, mischief=kind if len(kind) > 1 else "")

    wanted = {number: staged(work(kind)) for number, kind in asks.items()}
    committed, _, changes = run_and_ask(wanted, staged(work("a")), 20, name="inline")
    expected, now = [], "a"
    for number in range(20):
        now = asks[number] if len(asks.get(number, "??????")) == 1 else now
        expected.append(now)
    assert names_of(committed) == expected
    assert [outcome == "applied" for outcome in changes.outcomes] == [len(asks[number]) == 1 for number in sorted(asks)]


@pytest.mark.slow
def test_without_a_spare_gpu_one_worker_stops_for_the_canary_and_returns_if_it_fails(ray: Any) -> None:
    def staged_on_all_gpus(work: StageWork) -> tuple[Stage, ...]:
        return (Stage(name="teach", work=work, num_gpus=2),)

    bad, new = (staged_on_all_gpus(work) for work in (NamedWork("bad", mischief="cannot start"), NamedWork("new")))
    committed, _, changes = run_and_ask({4: bad, 12: new}, staged_on_all_gpus(NamedWork("old")), 8, after=10)
    names = names_of(committed)
    assert "no such revision" in changes.outcomes[0].what
    assert changes.outcomes[1:] == ["applied"]
    assert names == ["old"] * names.count("old") + ["new"] * names.count("new")
    assert names.count("new") >= 10
