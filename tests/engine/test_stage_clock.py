"""The time of all workers adds up, and an idle one waits for those before it or for those after it."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_works import FunctionWork, aside
from voxstill import engine
from voxstill.core.config import Engine
from voxstill.core.metrics.figures import ModelFigures, StageFigures, Summary
from voxstill.core.metrics.steps import StepMeter
from voxstill.engine import Stage, chunks_of
from voxstill.engine.stage_clock import StageClock, StageLoad
from waiting import until

LOADS = st.builds(
    lambda num, starting, working, queued: StageLoad(
        num_workers=num,
        num_starting=min(starting, num),
        num_working=min(working, num - min(starting, num)),
        num_queued=queued,
    ),
    *(st.integers(0, 5),) * 4,
)


class Clock(StageClock):
    def __init__(self) -> None:
        self.at_s = 0.0
        super().__init__(lambda: self.at_s)

    def lasts(self, seconds: float, *loads: StageLoad, is_full: bool = False) -> tuple[StageFigures, ...]:
        self.update({str(number): load for number, load in enumerate(loads)}, is_full=is_full)
        self.at_s += seconds
        return self.figures()


@given(st.lists(st.tuples(st.integers(0, 100), st.lists(LOADS, min_size=3, max_size=3), st.booleans()), min_size=1))
def test_every_second_of_every_worker_is_counted_once(events: list[tuple[int, list[StageLoad], bool]]) -> None:
    clock, wanted = Clock(), [0.0] * 3
    for seconds, loads, is_full in events:
        figures = clock.lasts(seconds, *loads, is_full=is_full)
        wanted = [before + seconds * load.num_workers for before, load in zip(wanted, loads, strict=True)]
    sums = [stage.start_s + stage.work_s + stage.wait_in_s + stage.wait_out_s for stage in figures]
    assert sums == pytest.approx(wanted)


def test_a_slow_teacher_makes_the_decoders_wait_for_it() -> None:
    decode = StageLoad(num_workers=2)
    decoding, teaching = Clock().lasts(10, decode, StageLoad(num_workers=1, num_working=1, num_queued=5), is_full=True)
    assert (decoding.wait_out_s, decoding.wait_in_s) == (20, 0)
    assert (teaching.work_s, teaching.busy) == (10, 1)


def test_slow_decoders_make_the_teacher_wait_for_them() -> None:
    teach = StageLoad(num_workers=1)
    _, teaching = Clock().lasts(10, StageLoad(num_workers=2, num_working=2, num_queued=3), teach, is_full=True)
    assert (teaching.wait_in_s, teaching.wait_out_s) == (10, 0)


def test_a_slow_source_makes_all_wait_for_input() -> None:
    stages = Clock().lasts(10, StageLoad(num_workers=2), StageLoad(num_workers=1))
    assert [(stage.wait_in_s, stage.wait_out_s) for stage in stages] == [(20, 0), (10, 0)]


def test_a_slow_commit_makes_all_wait_for_what_is_after_them() -> None:
    stages = Clock().lasts(10, StageLoad(num_workers=2), StageLoad(num_workers=1), is_full=True)
    assert [(stage.wait_in_s, stage.wait_out_s) for stage in stages] == [(0, 20), (0, 10)]


def test_a_model_that_loads_neither_works_nor_waits() -> None:
    _, teaching = Clock().lasts(10, StageLoad(num_workers=2), StageLoad(num_workers=2, num_starting=2), is_full=True)
    assert (teaching.start_s, teaching.work_s, teaching.wait_in_s) == (20, 0, 0)


class Paused:
    """A work that stands still until it is let go."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.is_reached = threading.Event()

    def __call__(self, items: object, payload: list[str]) -> list[str]:
        self.is_reached.set()
        assert self.goes_on.wait(60)
        return payload


def test_a_teacher_that_hangs_is_seen_at_work_while_the_decoder_waits_for_it() -> None:
    paused = Paused()
    stages = (
        Stage(name="decode", work=FunctionWork(lambda: lambda items, _: list(map(str, items)))),
        Stage(name="teach", work=FunctionWork(lambda: paused)),
    )
    with StepMeter("label", 4, "items") as meter:
        seen: list[Summary] = []
        chunks = chunks_of(range(4), 4, str)
        arguments = (chunks, stages, lambda *_: None, aside, Engine(name="inline"), meter)
        thread = threading.Thread(target=engine.run, args=arguments)
        thread.start()
        assert paused.is_reached.wait(60)
        until(lambda: time.sleep(0.05) or seen.append(meter._summary()) or len(seen) > 3)
        paused.goes_on.set()
        thread.join(60)
    for before, after in itertools.pairwise(seen):
        decode, teach = ({stage.name: stage for stage in summary.stages} for summary in (before, after))
        assert teach["teach"].num_working == 1
        assert teach["teach"].work_s > decode["teach"].work_s
        assert teach["decode"].wait_out_s > decode["decode"].wait_out_s
        assert after.num_items == 0


def test_the_newest_figures_of_each_engine_are_kept() -> None:
    clock = Clock()
    for engine_name, running in (("a", 1.0), ("b", 2.0), ("a", 3.0)):
        clock.record_model("0", ModelFigures(engine=engine_name, measured_at=running, requests_running=running))
    (stage,) = clock.lasts(1.0, StageLoad(num_workers=1))
    assert sorted((model.engine, model.requests_running) for model in stage.models) == [("a", 3.0), ("b", 2.0)]
