"""What holds up a training is judged by measured waits, the machine before all else."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxstill.data.bottleneck import Limit, LoaderTimes, Resources, Waits, judge, straggler

IDLE = Resources(cores=8, loader_workers=2)
FULL = Resources(cores=2, loader_workers=2)
seconds = st.floats(0, 100)
loaders = st.builds(LoaderTimes, seconds, seconds, seconds, seconds, seconds)


def waits_of(loader: LoaderTimes, core_wait_s: float = 0.0) -> Waits:
    return Waits(steps=10, seconds=100.0, core_wait_s=core_wait_s, loader=loader)


@pytest.mark.parametrize(
    ("spent", "message"),
    [
        (LoaderTimes(waited_s=1, read_s=90, decode_s=5), "the bottleneck is the model"),
        (
            LoaderTimes(waited_s=60, read_s=120, decode_s=60),
            "storage is the bottleneck of the training: it waited 60.0%",
        ),
        (LoaderTimes(waited_s=11, read_s=1, decode_s=4), "epochs are so short"),
        (LoaderTimes(waited_s=4, decode_s=4), "the bottleneck is the model, not the data: it waited 4.0%"),
        (LoaderTimes(waited_s=60, read_s=20, decode_s=170), "a worker read 10% of the time and decoded 85%"),
        (LoaderTimes(waited_s=60, read_s=20, decode_s=120, prepare_s=20), "decoding is the bottleneck of the training"),
        (
            LoaderTimes(waited_s=40, read_s=2, decode_s=6, prepare_s=83),
            "augmentation is the bottleneck of the training",
        ),
        (LoaderTimes(waited_s=40, read_s=2, decode_s=6, transfer_s=60, prepare_s=20), "transfer is the bottleneck"),
        (LoaderTimes(waited_s=60, decode_s=170, core_wait_s=120), "the machine is the bottleneck"),
    ],
)
def test_the_bottleneck_of_a_run_is_named(spent: LoaderTimes, message: str) -> None:
    assert message in str(judge(waits_of(spent), IDLE))


@given(loaders, st.floats(15, 100), st.builds(Resources, cores=st.floats(0.5, 64), loader_workers=st.integers(0, 9)))
def test_on_a_machine_without_a_free_core_nobody_is_told_to_start_more_processes(
    loader: LoaderTimes, core_wait_s: float, resources: Resources
) -> None:
    verdict = judge(waits_of(loader, core_wait_s), resources)
    assert verdict.limit is Limit.MACHINE
    assert "raise" not in verdict.fix


@given(loaders, seconds, st.builds(Resources, cores=st.floats(0.5, 64), loader_workers=st.integers(0, 9)))
def test_a_worker_more_is_advised_only_where_a_core_is_left_for_it(
    loader: LoaderTimes, computing_s: float, resources: Resources
) -> None:
    verdict = judge(dataclasses.replace(waits_of(loader), computing_s=computing_s), resources)
    if verdict.limit is Limit.DECODING and not verdict.fix.startswith("no core is left"):
        assert computing_s + loader.decode_s < 100 * resources.cores
    assert bool(verdict.fix) == (verdict.limit is not Limit.MODEL)


@given(loaders, st.floats(0, 100), st.sampled_from([0.01, 7.0, 3600.0]))
def test_the_verdict_is_one_of_shares(loader: LoaderTimes, core_wait_s: float, factor: float) -> None:
    longer = Waits(
        steps=10,
        seconds=100.0 * factor,
        core_wait_s=core_wait_s * factor,
        loader=LoaderTimes(*(value * factor for value in dataclasses.astuple(loader))),
    )
    shares = sorted(dataclasses.astuple(loader))
    if all(abs(share - limit) > 0.01 for share in (*shares, core_wait_s) for limit in (3, 10, 15, 25, 50, 100)):
        assert (
            judge(longer, FULL).reason.split(":")[0] == judge(waits_of(loader, core_wait_s), FULL).reason.split(":")[0]
        )


def test_what_shares_too_few_cores_with_itself_is_told_to_take_less() -> None:
    waits = waits_of(LoaderTimes(waited_s=50, decode_s=90), core_wait_s=40)
    for resources, fix in (
        (Resources(cores=2, threads=8), "lower `train.threads`, which is 8"),
        (Resources(cores=2, ranks=4), "lower `train.devices`, which is 4"),
        (Resources(cores=2, loader_workers=6), "lower `train.loader_workers`, which is 6"),
        (Resources(cores=8), "or end the other programs"),
    ):
        assert fix in judge(waits, resources).fix


def test_a_rank_that_takes_longer_for_what_it_does_alone_is_the_straggler() -> None:
    quick = Waits(steps=10, seconds=10.0, own_s=2.0)
    late = dataclasses.replace(quick, own_s=5.0)
    slow = straggler({0: quick, 1: quick, 2: late, 3: quick})
    assert slow is not None
    assert (slow.rank, slow.own_s, slow.others_s) == (2, 0.5, 0.2)
    assert straggler({0: quick, 1: quick}) is None
    assert straggler({0: late}) is None
    hardly = dataclasses.replace(quick, own_s=2.9)
    assert straggler({0: quick, 1: hardly}) is None  # less than a tenth of a step
