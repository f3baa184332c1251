from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill import tables
from voxstill.config import Engine
from voxstill.errors import ConfigError, Interrupted, StorageError, TeacherError, VoxstillError
from voxstill.factory import engine
from voxstill.factory.engine import Chunk, Stage, chunk_id, chunks_of
from voxstill.monitor import Summary
from voxstill.records import Label

DRIVER = Path(__file__).parents[1] / "torture" / "killed_driver.py"
Rows = dict[str, list[Any]]


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A cluster of our own, shared by the tests of this file and ended after them."""
    ray = engine.start_ray(Engine())
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test file
    yield ray
    engine.shutdown()


class Twice:
    """A stage's work: arrays of twice the item, with whatever mischief the items ask for."""

    def __call__(self, items: Sequence[Any], payload: Any) -> Any:
        for item in items:
            misbehave(item)
        return np.array([2 * number(item) for item in items], dtype=np.int64)


def misbehave(item: Any) -> None:
    if item == "raise":
        raise ValueError("this item is bad")
    if item == "die":
        os._exit(7)
    if item == "hang":
        time.sleep(600)


def number(item: Any) -> int:
    return item if isinstance(item, int) else -1


def named(items: Sequence[Any], payload: Any) -> list[str]:
    return [f"{item}:{int(value)}" for item, value in zip(items, payload, strict=True)]


def names() -> Callable[..., list[str]]:
    return named


def plain(items: Sequence[Any], payload: Any) -> list[str]:
    for item in items:
        misbehave(item)
    return [f"ok {item}" for item in items]


def slowly(seconds: float) -> Callable[..., list[str]]:
    def work(items: Sequence[Any], payload: Any) -> list[str]:
        time.sleep(seconds)
        return plain(items, payload)

    return work


def slowly_but_for_hangs(items: Sequence[Any], payload: Any) -> list[str]:
    time.sleep(0.3)
    return plain(items, payload)


TWO_STAGES = (Stage(name="decode", make=Twice, workers=2), Stage(name="teach", make=names, workers=2))
ONE_STAGE = (Stage(name="work", make=lambda: plain, workers=1),)


def aside(item: Any, reason: str) -> str:
    return f"aside {item}: {reason}"


def run(chunks: Any, stages: Sequence[Stage], **options: Any) -> tuple[Rows, Summary]:
    """The committed rows by chunk, each chunk committed once."""
    committed: Rows = {}

    def commit(chunk: Chunk, rows: list[Any]) -> None:
        assert chunk.id not in committed
        committed[chunk.id] = rows

    summary = engine.run(chunks, stages, commit, aside, Engine(**options))
    return committed, summary


def flat(rows: Rows) -> list[Any]:
    return [row for part in rows.values() for row in part]


# ------------------------------------------------------------------------------------------------ chunks


@given(st.lists(st.text(), unique=True), st.integers(1, 9), st.randoms())
def test_every_item_is_in_exactly_one_chunk_whose_id_ignores_order(ids: list[str], size: int, chance: Any) -> None:
    chunks = list(chunks_of(ids, size, str))
    assert [item for chunk in chunks for item in chunk.items] == ids
    assert all(len(chunk.items) == size for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == len(chunks)
    for chunk in chunks:
        shuffled = chance.sample(chunk.items, len(chunk.items))
        assert chunk_id(shuffled) == chunk.id


def test_chunks_are_cut_lazily() -> None:
    source = iter(range(1_000_000_000))
    next(chunks_of(source, 4, str))
    assert next(source) == 4


# ------------------------------------------------------------------------------------------------ inline


@settings(deadline=None, max_examples=60)
@given(st.sets(st.integers(0, 59), max_size=12), st.integers(1, 20), st.integers(1, 4))
def test_only_the_bad_items_are_set_aside_and_rows_keep_their_places(bad: set[int], size: int, attempts: int) -> None:
    def work(items: Sequence[int], _: Any) -> list[str]:
        if wrong := bad.intersection(items):
            raise ValueError(f"bad {sorted(wrong)}")
        return [f"ok {item}" for item in items]

    stages = (Stage(name="work", make=lambda: work, workers=1),)
    committed, summary = run(chunks_of(range(60), size, str), stages, name="inline", attempts=attempts)
    expected = [f"aside {i}: ValueError: bad [{i}]" if i in bad else f"ok {i}" for i in range(60)]
    assert flat(committed) == expected
    assert (summary.num_items, summary.num_set_aside) == (60, len(bad))


def test_a_work_that_gives_too_few_rows_is_a_failure_of_its_items() -> None:
    stages = (Stage(name="work", make=lambda: lambda items, _: [1] * (len(items) - (0 in items)), workers=1),)
    committed, _ = run(chunks_of(range(4), 4, str), stages, name="inline")
    assert flat(committed) == ["aside 0: the last stage gave 0 rows for 1 items", 1, 1, 1]


def test_a_teacher_that_fails_on_everything_is_an_error_and_not_a_table_of_failures() -> None:
    stages = (Stage(name="work", make=lambda: plain, workers=1),)
    with pytest.raises(VoxstillError, match="items all failed") as caught:
        run([Chunk("c", ("raise",) * 40)], stages, name="inline")
    assert caught.value.why == "ValueError: this item is bad"


def test_nothing_to_do_builds_no_worker() -> None:
    def make() -> Any:
        raise AssertionError

    _, summary = run([], (Stage(name="work", make=make, workers=1),), name="ray")
    assert summary.num_chunks == 0


def test_progress_counts_items_that_are_safe() -> None:
    told: list[int] = []
    engine.run(
        chunks_of(range(10), 4, str),
        ONE_STAGE,
        lambda *_: None,
        aside,
        Engine(name="inline"),
        lambda so_far: told.append(so_far.num_items),
    )
    assert told == [4, 8, 10]


# ------------------------------------------------------------------------------------------------ ray


def test_inline_and_ray_give_the_same_bytes(ray: Any) -> None:
    def bytes_of(name: str) -> dict[str, bytes]:
        committed, summary = run(chunks_of([*range(50), "raise", *range(51, 90)], 8, str), TWO_STAGES, name=name)
        assert (summary.num_items, summary.num_set_aside) == (90, 1)
        return {
            key: tables.to_parquet([Label(utterance_id=row, recipe="r", teacher="t") for row in rows], Label)
            for key, rows in committed.items()
        }

    assert bytes_of("ray") == bytes_of("inline")


def test_arrays_reach_the_next_stage_without_a_copy(ray: Any) -> None:
    def big() -> Any:
        return lambda items, _: np.zeros(1_000_000, np.int16)

    def look() -> Any:
        return lambda items, array: [(bool(array.flags.owndata), bool(array.flags.writeable))]

    committed, _ = run(
        [Chunk("c", (0,))], (Stage(name="a", make=big, workers=1), Stage(name="b", make=look, workers=1))
    )
    assert flat(committed) == [(False, False)]


@pytest.mark.parametrize("calls", [1, 3])
def test_an_item_that_raises_kills_or_hangs_is_one_row_with_its_reason(ray: Any, calls: int) -> None:
    items = [0, 1, "raise", 3, 4, "die", 6, 7, "hang", 9, 10]
    committed, summary = run(
        chunks_of(items, 2, str),
        (Stage(name="work", make=lambda: plain, workers=2, calls=calls),),
        lease_s=2.0,
        attempts=1,
    )
    rows = {row.split(":")[0]: row for row in flat(committed)}
    assert sorted(rows) == sorted(
        [*(f"ok {i}" for i in (0, 1, 3, 4, 6, 7, 9, 10)), "aside raise", "aside die", "aside hang"]
    )
    assert "this item is bad" in rows["aside raise"]
    assert "its worker died" in rows["aside die"]
    assert "time limit of 2 s" in rows["aside hang"]
    assert (summary.num_set_aside, summary.num_items) == (3, 11)
    assert [row.split(":")[0].split()[-1] for part in chunks_of(items, 2, str) for row in committed[part.id]] == [
        str(item) for item in items
    ]


def test_chunks_queued_behind_a_deadly_one_are_not_charged(ray: Any) -> None:
    items = [0, 1, "die", *range(3, 12)]
    committed, summary = run(chunks_of(items, 1, str), ONE_STAGE, attempts=1, in_flight=4)
    assert Counter(row.split()[0] for row in flat(committed)) == {"ok": 11, "aside": 1}
    assert summary.num_restarts == 2  # once to learn that somebody is deadly, once to learn who


def test_a_work_that_takes_two_calls_at_once_gets_them_and_is_closed_after_the_last(ray: Any, tmp_path: Path) -> None:
    class Pairs:
        def __init__(self) -> None:
            self.both, self.working = threading.Barrier(2), 0

        def __call__(self, items: Sequence[Any], _: Any) -> list[str]:
            self.working += 1
            self.both.wait(60)  # for ever, were it alone
            self.working -= 1
            return [f"ok {item}" for item in items]

        def close(self) -> None:
            (tmp_path / str(self.working)).touch()

    committed, summary = run(
        chunks_of(range(24), 2, str), (Stage(name="work", make=Pairs, workers=1, calls=2),), in_flight=1
    )
    assert sorted(flat(committed)) == sorted(f"ok {i}" for i in range(24))
    assert [rows for chunk in chunks_of(range(24), 2, str) for rows in committed[chunk.id]] == [
        f"ok {i}" for i in range(24)
    ]
    assert (summary.num_retries, summary.num_restarts) == (0, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def test_a_call_that_hangs_beside_others_that_do_not_is_found(ray: Any) -> None:
    items = ["hang", *range(40)]
    start = time.monotonic()
    stage = Stage(name="work", make=lambda: slowly_but_for_hangs, workers=1, calls=2)
    committed, summary = run(chunks_of(items, 1, str), (stage,), lease_s=3.0, attempts=1)
    assert Counter(row.split()[0] for row in flat(committed)) == {"ok": 40, "aside": 1}
    assert summary.num_restarts == 2
    assert time.monotonic() - start < 120


def test_a_chunk_too_large_for_a_slow_work_is_halved_and_not_tried_again_whole(ray: Any) -> None:
    def slow() -> Any:
        def work(items: Sequence[Any], _: Any) -> list[str]:
            time.sleep(2.0 * len(items))
            return [f"ok {item}" for item in items]

        return work

    stage = Stage(name="work", make=slow, workers=1)
    committed, summary = run(chunks_of(range(4), 4, str), (stage,), lease_s=6.0, attempts=3)
    assert flat(committed) == [f"ok {i}" for i in range(4)]
    assert summary.num_restarts == 1


def test_killed_workers_lose_nothing_and_repeat_nothing(ray: Any, tmp_path: Path) -> None:
    def tracked(stage: str, inner: Callable[[], Any]) -> Any:
        (tmp_path / f"{stage}.{os.getpid()}").touch()
        work = inner()

        def slow(items: Sequence[Any], payload: Any) -> Any:
            time.sleep(0.1)
            return work(items, payload)

        return slow

    stages = [
        Stage(name=stage.name, make=partial(tracked, stage.name, stage.make), workers=stage.workers)
        for stage in TWO_STAGES
    ]
    killed: list[str] = []

    def killer() -> None:
        for stage in ("teach", "decode"):
            while not (alive := sorted(tmp_path.glob(f"{stage}.*"))):
                time.sleep(0.05)
            time.sleep(0.4)
            os.kill(int(alive[0].suffix[1:]), signal.SIGKILL)
            killed.append(stage)

    thread = threading.Thread(target=killer)
    thread.start()
    committed, summary = run(chunks_of(range(160), 4, str), stages)
    thread.join()
    assert killed == ["teach", "decode"]
    assert summary.num_restarts == 2
    assert sorted(flat(committed)) == sorted(f"{i}:{2 * i}" for i in range(160))


def test_a_process_that_an_item_broke_is_replaced_before_it_fails_the_others(ray: Any) -> None:
    def fragile() -> Any:
        broken: list[bool] = []

        def work(items: Sequence[Any], _: Any) -> list[str]:
            if 5 in items:
                broken.append(True)
            if broken:
                raise RuntimeError("device-side assert")
            return [f"ok {item}" for item in items]

        return work

    committed, summary = run(chunks_of(range(24), 4, str), (Stage(name="work", make=fragile, workers=1),))
    assert [row for row in flat(committed) if not row.startswith("ok")] == ["aside 5: RuntimeError: device-side assert"]
    assert summary.num_restarts >= 1


def test_no_more_chunks_are_under_way_than_the_limit(ray: Any) -> None:
    taken, committed, most = [0], [0], [0]
    lock = threading.Lock()

    def source() -> Iterator[Chunk]:
        for chunk in chunks_of(range(80), 2, str):
            with lock:
                taken[0] += 1
                most[0] = max(most[0], taken[0] - committed[0])
            yield chunk

    def commit(chunk: Chunk, rows: list[Any]) -> None:
        time.sleep(0.05)
        with lock:
            committed[0] += 1

    engine.run(source(), TWO_STAGES, commit, aside, Engine(in_flight=2))
    assert committed == [40]
    assert 4 < most[0] <= 2 * 4


def test_more_workers_than_cores_do_not_wait_for_each_other(ray: Any) -> None:
    workers = 2 * (os.cpu_count() or 1) + 1
    committed, _ = run(
        chunks_of(range(20), 1, str),
        (Stage(name="a", make=Twice, workers=workers, num_cpus=1), Stage(name="b", make=names, workers=2, num_cpus=4)),
    )
    assert len(committed) == 20


def test_a_missing_model_is_told_at_once(ray: Any) -> None:
    def make() -> Any:
        raise TeacherError("no model", why="the folder is empty", fix="fetch it")

    start = time.monotonic()
    with pytest.raises(TeacherError, match="no model") as caught:
        run(chunks_of(range(9), 1, str), (Stage(name="teach", make=make, workers=2),))
    assert caught.value.fix == "fetch it"
    assert time.monotonic() - start < 15


@pytest.mark.parametrize("name", ["inline", "ray"])
def test_a_stage_that_cannot_be_built_says_why(ray: Any, name: str) -> None:
    with pytest.raises(VoxstillError, match="the stage `teach` cannot start") as caught:
        run([Chunk("c", (1,))], (Stage(name="teach", make=lambda: {}["gone"], workers=1),), name=name)
    assert caught.value.why == "KeyError: 'gone'"


def test_a_worker_that_dies_while_starting_is_given_up(ray: Any) -> None:
    with pytest.raises(VoxstillError, match="cannot start") as caught:
        run([Chunk("c", (1,))], (Stage(name="teach", make=lambda: os._exit(3), workers=1),), attempts=2)
    assert "died 2 times" in caught.value.why


def test_gpus_that_are_not_there_are_told_and_not_waited_for(ray: Any) -> None:
    with pytest.raises(ConfigError, match="want 64 GPUs"):
        run([Chunk("c", (1,))], (Stage(name="teach", make=names, workers=2, num_gpus=32),))


def test_a_commit_that_fails_ends_the_run_with_its_error(ray: Any) -> None:
    def commit(chunk: Chunk, rows: list[Any]) -> None:
        raise StorageError("the disk is full")

    with pytest.raises(StorageError, match="disk is full"):
        engine.run(chunks_of(range(30), 1, str), ONE_STAGE, commit, aside, Engine())


def test_an_answer_that_cannot_be_pickled_is_a_row_with_a_reason(ray: Any) -> None:
    def make() -> Any:
        return lambda items, _: [threading.Lock() if item == 2 else f"ok {item}" for item in items]

    committed, _ = run(chunks_of(range(4), 4, str), (Stage(name="work", make=make, workers=1),))
    assert [row[:7] for row in flat(committed)] == ["ok 0", "ok 1", "aside 2", "ok 3"]
    assert "cannot pickle" in flat(committed)[2]


def test_a_work_is_closed_in_its_process_at_the_end(ray: Any, tmp_path: Path) -> None:
    class Closing:
        def __call__(self, items: Sequence[Any], _: Any) -> list[Any]:
            return list(items)

        def close(self) -> None:
            (tmp_path / name).touch()

    for name in ("inline", "ray"):
        run([Chunk("c", (1,))], (Stage(name="work", make=Closing, workers=1),), name=name)
    assert {path.name for path in tmp_path.iterdir()} == {"inline", "ray"}


def test_what_a_worker_has_started_dies_with_it(ray: Any, tmp_path: Path) -> None:
    def make() -> Any:
        child = subprocess.Popen(["sleep", "600"])
        (tmp_path / str(child.pid)).touch()
        return plain

    run([Chunk("c", ("die", 1))], (Stage(name="work", make=make, workers=1),), attempts=1)
    children = [Path("/proc") / path.name for path in tmp_path.iterdir()]
    assert len(children) == 3
    deadline = time.monotonic() + 20
    while any(child.exists() for child in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(child.exists() for child in children)


def test_our_cluster_is_on_loopback_and_refuses_a_job_without_the_token(ray: Any) -> None:
    address = ray.get_runtime_context().gcs_address
    assert address.startswith("127.0.0.1:")
    ask = f"from ray._raylet import GcsClient; print(GcsClient({address!r}).internal_kv_keys(b'', b'session'))"

    def answer(token: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"RAY_AUTH_TOKEN": token}
        return subprocess.run(
            [sys.executable, "-c", ask], env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    assert "session_name" in answer(os.environ["RAY_AUTH_TOKEN"]).stdout
    assert "AuthenticationError" in answer("0" * 64).stderr


# ------------------------------------------------------------------------------------------------ changes


class Asked:
    """Changes that a test asks for while a run goes on, and what the run says of them."""

    def __init__(self) -> None:
        self.next: tuple[Sequence[Stage], Engine] | None = None
        self.told: list[Any] = []

    def wanted(self) -> Any:
        wanted, self.next = self.next, None
        return wanted

    def taken(self, stages: Sequence[Stage]) -> None:
        self.told.append("taken")

    def refused(self, error: VoxstillError) -> None:
        self.told.append(error)


@dataclass(frozen=True)
class Says:
    """Makes a work that says its name with each item, and where it was closed."""

    name: str
    closed: Path | None = None
    mischief: str = ""
    delay_s: float = 0.1

    def __call__(self) -> Any:
        if self.mischief == "cannot start":
            raise TeacherError("there is no such revision", why="the Hub does not know it", fix="name another")
        if self.mischief == "dies at the start":
            os._exit(3)
        return Saying(self)


@dataclass
class Saying:
    says: Says

    def __call__(self, items: Sequence[Any], _: Any) -> list[str]:
        misbehave(self.says.mischief)
        if self.says.mischief == "ends":
            raise TeacherError("the server does not know the model")
        time.sleep(self.says.delay_s)
        return [f"{self.says.name} {os.getpid()} {item}" for item in items]

    def close(self) -> None:
        if self.says.closed is not None:
            (self.says.closed / f"{self.says.name}.{os.getpid()}").touch()


def staged(says: Says, workers: int = 1) -> tuple[Stage, ...]:
    return (Stage(name="decode", make=Twice, workers=1), Stage(name="teach", make=says, workers=workers))


def run_and_ask(
    asks: dict[int, tuple[Stage, ...]], stages: Sequence[Stage], num: int, after: int = 0, **options: Any
) -> tuple[list[list[str]], Summary, Asked]:
    """Rows of each chunk of two in the order of their commits, where so many commits ask for these stages.

    There are `num` chunks, or more: `after` that follow the answer to the last question.
    """
    changes, committed, taken = Asked(), [], []

    def source() -> Iterator[Chunk]:
        left = after
        for chunk in chunks_of(count(), 2, str):
            left -= len(changes.told) == len(asks)
            if len(taken) >= num and left < 0:
                return
            taken.extend(chunk.items[::2])
            yield chunk

    def commit(chunk: Chunk, rows: list[Any]) -> None:
        committed.append(rows)
        ask()

    def ask() -> None:
        if (wanted := asks.get(len(committed))) is not None:
            changes.next = wanted, Engine(**options)

    ask()
    summary = engine.run(source(), stages, commit, aside, Engine(**options), None, changes)
    rows = [row for part in committed for row in part]
    assert sorted(int(row.split()[-1]) for row in rows) == list(range(2 * len(taken)))
    return committed, summary, changes


def sayers(committed: list[list[str]]) -> list[str]:
    """Who made each chunk: nobody makes half a chunk."""
    assert all(len({row.split()[0] for row in rows}) == 1 for rows in committed)
    return [rows[0].split()[0] for rows in committed]


@pytest.mark.parametrize("name", ["inline", "ray"])
def test_another_work_takes_over_between_chunks_and_the_one_before_is_closed(
    ray: Any, name: str, tmp_path: Path
) -> None:
    old, new = Says("old", tmp_path), Says("new", tmp_path)
    committed, summary, changes = run_and_ask({3: staged(new, 2)}, staged(old, 2), 6, after=30, name=name)
    made = sayers(committed)
    assert made.count("old") >= 3
    assert made[-1] == "new"
    assert changes.told == ["taken"]
    assert (summary.num_retries, summary.num_restarts, summary.num_set_aside) == (0, 0, 0)
    closed = sorted(path.stem for path in tmp_path.iterdir())
    if name == "ray":  # the second of the new ones may not have started before all was done
        assert closed in (["new", "old", "old"], ["new", "new", "old", "old"])
    else:
        assert closed == ["new", "old"]


@pytest.mark.parametrize(
    ("name", "mischief", "why"),
    [
        ("inline", "cannot start", "no such revision"),
        ("ray", "cannot start", "no such revision"),
        ("inline", "ends", "does not know the model"),
        ("ray", "ends", "does not know the model"),
        ("inline", "raise", "this item is bad"),
        ("ray", "raise", "this item is bad"),
        ("ray", "die", "Died"),
        ("ray", "dies at the start", "Died"),
        ("ray", "hang", "time limit of 6 s"),
    ],
)
def test_a_work_that_does_not_pass_its_trial_changes_nothing(ray: Any, name: str, mischief: str, why: str) -> None:
    asks, old = {2: staged(Says("new", mischief=mischief), 3)}, staged(Says("old"))
    committed, summary, changes = run_and_ask(asks, old, 6, after=6, name=name, lease_s=6.0, attempts=2)
    assert set(sayers(committed)) == {"old"}
    (error,) = changes.told
    assert why in f"{error.what} {error.why}"
    assert summary.num_set_aside == summary.num_retries == 0
    assert len({row.split()[1] for rows in committed for row in rows}) == 1  # nor was another of the old ones hired


@pytest.mark.parametrize("name", ["inline", "ray"])
def test_what_is_asked_for_before_the_first_chunk_holds_from_there_on(ray: Any, name: str) -> None:
    asks = {0: staged(Says("new"))}
    committed, _, changes = run_and_ask(asks, staged(Says("old", mischief="cannot start")), 6, name=name)
    assert set(sayers(committed)) == {"new"}
    assert changes.told == ["taken"]
    asks = {0: staged(Says("new", mischief="cannot start"))}
    committed, _, changes = run_and_ask(asks, staged(Says("old")), 6, name=name)
    assert set(sayers(committed)) == {"old"}
    assert "no such revision" in changes.told[0].what


def test_workers_are_hired_and_let_go_while_the_run_goes_on(ray: Any) -> None:
    says, changes, workers = Says("one"), Asked(), []

    def source() -> Iterator[Chunk]:
        left = 30
        for chunk in chunks_of(count(), 2, str):
            left -= len(changes.told) == 2
            if left < 0:
                return
            yield chunk

    def commit(chunk: Chunk, rows: list[Any]) -> None:
        workers.append(rows[0].split()[1])
        if len(workers) == 4:
            changes.next = staged(says, 4), Engine(in_flight=1)
        if len(set(workers)) == 4 and len(changes.told) == 1:
            changes.next = staged(says, 1), Engine(in_flight=1)

    summary = engine.run(source(), staged(says, 1), commit, aside, Engine(), None, changes)
    assert changes.told == ["taken", "taken"]
    assert len(set(workers[:4])) == 1
    assert len(set(workers)) == 4
    assert len(set(workers[-20:])) == 1  # each of the others had a chunk or none in hand
    assert (summary.num_retries, summary.num_restarts) == (0, 0)


def test_gpus_that_are_not_there_are_refused_and_the_run_goes_on(ray: Any) -> None:
    decode, teach = staged(Says("old"))
    greedy = decode, replace(teach, workers=2, num_gpus=32)
    committed, _, changes = run_and_ask({2: greedy}, (decode, teach), 10)
    assert set(sayers(committed)) == {"old"}
    assert "want 64 GPUs" in changes.told[0].what


def test_one_who_leaves_and_fails_gives_back_what_it_holds(ray: Any, tmp_path: Path) -> None:
    class Fickle:
        def __call__(self, items: Sequence[Any], _: Any) -> list[str]:
            if (tmp_path / "gone").exists():
                raise TeacherError("the server of before is gone")
            time.sleep(0.3)
            return [f"old 1 {item}" for item in items]

    class Leaving(Asked):
        def taken(self, stages: Sequence[Stage]) -> None:
            (tmp_path / "gone").touch()

    changes, committed = Leaving(), []

    def commit(chunk: Chunk, rows: list[Any]) -> None:
        committed.extend(rows)
        changes.next = (staged(Says("new")), Engine()) if len(committed) == 4 else None

    stages = staged(Fickle)  # type: ignore[arg-type]
    engine.run(chunks_of(range(40), 2, str), stages, commit, aside, Engine(in_flight=4), None, changes)
    assert sorted(int(row.split()[-1]) for row in committed) == list(range(40))


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(st.integers(0, 19), st.sampled_from(["a", "b", "c", "cannot start", "raise", "ends"]), max_size=8)
)
def test_whatever_is_asked_for_each_item_is_done_once_by_the_last_work_that_passed(asks: dict[int, str]) -> None:
    def says(kind: str) -> Says:
        return Says(kind, delay_s=0.0, mischief=kind if len(kind) > 1 else "")

    wanted = {number: staged(says(kind)) for number, kind in asks.items()}
    committed, _, changes = run_and_ask(wanted, staged(says("a")), 20, name="inline")
    expected, now = [], "a"
    for number in range(20):
        now = asks[number] if len(asks.get(number, "??????")) == 1 else now
        expected.append(now)
    assert sayers(committed) == expected
    assert [each == "taken" for each in changes.told] == [len(asks[number]) == 1 for number in sorted(asks)]


# ------------------------------------------------------------------------------------------------ signals


@pytest.mark.parametrize("name", ["inline", "ray"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_what_is_in_hand_and_gives_the_rest_back(ray: Any, name: Any, number: int) -> None:
    committed: Rows = {}
    before = signal.getsignal(number)

    def commit(chunk: Chunk, rows: list[Any]) -> None:
        committed[chunk.id] = rows
        if len(committed) == 3:
            os.kill(os.getpid(), number)

    stages = (Stage(name="decode", make=Twice, workers=1), Stage(name="teach", make=names, workers=1))
    with pytest.raises(Interrupted, match=signal.Signals(number).name) as caught:
        engine.run(chunks_of(range(400), 2, str), stages, commit, aside, Engine(name=name))
    assert caught.value.exit_code == 130
    assert 3 <= len(committed) <= 3 + 2 * 2  # at most what two workers had in hand
    assert f"{len(committed)} chunks are safe" in caught.value.why
    assert all(len(rows) == 2 for rows in committed.values())
    assert signal.getsignal(number) is before
    rest, _ = run((each for each in chunks_of(range(400), 2, str) if each.id not in committed), stages, name=name)
    assert sorted(flat(committed) + flat(rest)) == sorted(f"{i}:{2 * i}" for i in range(400))


def test_a_second_signal_stops_at_once(ray: Any, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def make() -> Callable[..., list[str]]:
        def work(items: Sequence[Any], payload: Any) -> list[str]:
            begun.touch()
            time.sleep(60)
            return plain(items, payload)

        return work

    def impatient() -> None:
        while not begun.exists():
            time.sleep(0.1)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)

    thread = threading.Thread(target=impatient)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run(chunks_of(range(4), 2, str), (Stage(name="work", make=make, workers=1),), name="ray")
    assert time.time() - begun.stat().st_mtime < 30  # and not the minute that the work takes
    thread.join()


# ------------------------------------------------------------------------------------------------ resources


@pytest.mark.slow
def test_two_teachers_share_a_gpu_and_the_number_that_fits_is_started() -> None:
    code = """
import os, time, ray
from voxstill.config import Engine
from voxstill.factory import engine
ray.init(address="local", num_cpus=2, num_gpus=2, include_dashboard=False)
def make():
    def work(items, _):
        time.sleep(0.2)
        return [f"{os.environ['CUDA_VISIBLE_DEVICES']} {os.getpid()}" for _ in items]
    return work
rows = []
def commit(chunk, some):
    rows.extend(some)
stage = engine.Stage(name="teach", make=make, num_gpus=0.5)
summary = engine.run(engine.chunks_of(range(80), 1, str), (stage,), commit, None, Engine())
places = {row.split()[0]: {other.split()[1] for other in rows if other.split()[0] == row.split()[0]} for row in rows}
print(sorted((gpu, len(pids)) for gpu, pids in places.items()), list(summary.busy))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "[('0', 2), ('1', 2)] ['teach']", done.stderr[-2000:]


@pytest.mark.slow
def test_where_there_is_no_gpu_to_spare_one_worker_makes_room_and_is_back_where_the_other_fails() -> None:
    code = """
import os, time, ray
from itertools import count
from voxstill.config import Engine
from voxstill.errors import TeacherError
from voxstill.factory import engine
ray.init(address="local", num_cpus=2, num_gpus=1, include_dashboard=False)
def make(name):
    def made():
        if name == "bad":
            raise TeacherError("no such revision")
        def work(items, _):
            time.sleep(0.1)
            return [f"{name} {os.environ['CUDA_VISIBLE_DEVICES']}" for _ in items]
        return work
    return made
makes = {name: make(name) for name in ("old", "bad", "new")}
def stages(name):
    return (engine.Stage(name="teach", make=makes[name], num_gpus=1),)
class Changes:
    todo, told = ["bad", "new"], []
    def wanted(self):
        now = self.todo and len(rows) >= 4 * (3 - len(self.todo))
        return (stages(self.todo.pop(0)), Engine(attempts=2)) if now else None
    def taken(self, _):
        self.told.append("taken")
    def refused(self, error):
        self.told.append(error.what)
changes, rows = Changes(), []
def source():
    left = 10
    for chunk in engine.chunks_of(count(), 1, str):
        left -= len(changes.told) == 2
        if left < 0:
            return
        yield chunk
engine.run(source(), stages("old"), lambda _, some: rows.extend(some), None, Engine(attempts=2), None, changes)
print(changes.told, sorted(set(rows)), rows[0], rows[-1])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    told = "['no such revision', 'taken'] ['new 0', 'old 0'] old 0 new 0"
    assert done.stdout.strip() == told, done.stderr[-2000:]


# ------------------------------------------------------------------------------------------------ the driver killed


@pytest.mark.slow
def test_a_run_whose_driver_was_killed_twice_ends_with_the_same_bytes_and_leaves_no_process(
    tmp_path: Path,
) -> None:
    def start(folder: str) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environment["VOXSTILL_TORTURE"] = str(tmp_path)  # every process of the run inherits it: how we find them
        return subprocess.Popen(
            [sys.executable, str(DRIVER), str(tmp_path / folder)], stdout=subprocess.PIPE, text=True, env=environment
        )

    def files(folder: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (tmp_path / folder).glob("*.parquet")}

    def processes() -> list[str]:
        """All but Ray's two agents, idle ones that may wait a minute for a server that was killed, and then end."""
        mark = f"VOXSTILL_TORTURE={tmp_path}".encode()
        marked = [each.parent for each in Path("/proc").glob("[0-9]*/environ") if mark in _bytes(each)]
        names = [_bytes(each / "cmdline").replace(b"\0", b" ").decode().strip() for each in marked]
        return [name for name in names if name and name not in {"ray::DashboardAgent", "ray::RuntimeEnvAgent"}]

    assert start("undisturbed").wait(120) == 0
    chance = random.Random()
    for targets in ((0, 5), (5, 13)):
        target = chance.randint(*targets)
        driver = start("killed")
        deadline = time.monotonic() + 60
        while len(files("killed")) < target and driver.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(chance.random())
        driver.kill()
        driver.wait()
    before = files("killed")
    assert start("killed").wait(120) == 0
    assert files("killed") == files("undisturbed")
    assert len(before) < 15 or before == files("killed")
    deadline = time.monotonic() + 20
    while (left := processes()) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert left == []


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it ended meanwhile
        return b""
