"""The plan's promises, for any corpus and any limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.core.config import Plan
from voxstill.core.errors import ConfigError, DataError
from voxstill.data.plan import EpochPlan, mixture_rates, plan, tempos

# the last one fits any of the limits, so that there is always something to plan
DURATIONS = st.lists(st.integers(0, 3000), max_size=200).map(lambda durations: np.array([*durations, 100], np.int64))
LIMITS = st.builds(
    Plan,
    budget_ms=st.integers(100, 20_000),
    max_utterances=st.integers(1, 40),
    batches_per_step=st.sampled_from([1, 2, 3, 4, 8]),
    window=st.integers(1, 300),
    layout=st.sampled_from(["local", "remote"]),
)


def planned(durations_ms: np.ndarray, cfg: Plan, **options: Any) -> EpochPlan:
    shard_of = np.arange(len(durations_ms)) // 7
    return plan(durations_ms, None, cfg, **({"seed": 0, "epoch": 0, "shard_of": shard_of} | options))


def batches_of(epoch_plan: EpochPlan, ranks: int = 1) -> list[list[int]]:
    steps = range(epoch_plan.steps)
    return [batch.tolist() for k in steps for rank in range(ranks) for batch in epoch_plan.batches_of(k, rank, ranks)]


def whole_corpus(epoch_plan: EpochPlan) -> Counter[int]:
    return Counter(row for batch in batches_of(epoch_plan) for row in batch)


@settings(max_examples=200, deadline=None)
@given(DURATIONS, LIMITS)
def test_no_batch_is_above_its_limits_or_empty(durations_ms: np.ndarray, cfg: Plan) -> None:
    for batch in batches_of(planned(durations_ms, cfg)):
        assert 0 < len(batch) <= cfg.max_utterances
        assert durations_ms[batch].max() * len(batch) <= cfg.budget_ms


@settings(max_examples=200, deadline=None)
@given(DURATIONS, LIMITS)
def test_nothing_is_lost_and_nothing_comes_twice_but_what_is_counted(durations_ms: np.ndarray, cfg: Plan) -> None:
    epoch_plan = planned(durations_ms, cfg)
    occurrences = whole_corpus(epoch_plan)
    assert set(occurrences) == set(np.flatnonzero((durations_ms > 0) & (durations_ms <= cfg.budget_ms)).tolist())
    assert sum(occurrences.values()) - len(occurrences) == epoch_plan.num_repeated
    assert sum(epoch_plan.dropped.values()) == len(durations_ms) - len(occurrences)
    assert epoch_plan.num_repeated < cfg.batches_per_step * -(-len(durations_ms) // max(1, cfg.window // 2))


@settings(max_examples=100, deadline=None)
@given(DURATIONS, LIMITS)
def test_every_step_has_all_its_batches_and_they_differ_by_one_utterance_at_most(
    durations_ms: np.ndarray, cfg: Plan
) -> None:
    epoch_plan = planned(durations_ms, cfg)
    for k in range(epoch_plan.steps):
        sizes = [len(batch) for batch in epoch_plan.batches_of(k)]
        assert len(sizes) == cfg.batches_per_step
        assert max(sizes) - min(sizes) <= 1


@settings(max_examples=100, deadline=None)
@given(DURATIONS, LIMITS, st.integers(0, 5))
def test_the_global_batches_are_the_same_on_any_number_of_ranks(
    durations_ms: np.ndarray, cfg: Plan, epoch: int
) -> None:
    epoch_plan = planned(durations_ms, cfg, epoch=epoch)
    alone = batches_of(epoch_plan)
    for ranks in range(2, cfg.batches_per_step + 1):
        if cfg.batches_per_step % ranks == 0:
            assert batches_of(epoch_plan, ranks) == alone


def test_ranks_that_do_not_divide_the_batches_of_a_step_are_refused() -> None:
    epoch_plan = plan(np.full(64, 100), None, Plan(batches_per_step=4), seed=0, epoch=0)
    with pytest.raises(ConfigError, match="3 ranks"):
        epoch_plan.batches_of(0, 0, 3)


@settings(max_examples=50, deadline=None)
@given(DURATIONS, LIMITS, st.integers(0, 2**40))
def test_equal_seeds_give_equal_plans(durations_ms: np.ndarray, cfg: Plan, seed: int) -> None:
    epoch_plan = [planned(durations_ms, cfg, seed=seed, epoch=3).sha256() for _ in range(2)]
    assert epoch_plan[0] == epoch_plan[1]


@pytest.mark.parametrize("other", [{"epoch": 1}, {"seed": 1}])
@pytest.mark.parametrize("lengths", [lambda n: 100 + np.arange(n), lambda n: np.full(n, 500)])
def test_another_epoch_or_seed_has_other_batches_not_only_another_order(
    lengths: Callable[[int], np.ndarray], other: dict[str, int]
) -> None:
    durations_ms, cfg = lengths(500), Plan(budget_ms=5000)
    first, second = (plan(durations_ms, None, cfg, **({"seed": 0, "epoch": 0} | changes)) for changes in ({}, other))
    assert first.sha256() != second.sha256()
    same = {frozenset(batch) for batch in batches_of(first)} & {frozenset(batch) for batch in batches_of(second)}
    assert len(same) < first.steps / 4


@settings(max_examples=100, deadline=None)
@given(st.data(), DURATIONS, LIMITS)
def test_what_cannot_be_trained_on_is_dropped_by_its_first_reason_and_counts_are_of_what_is_left(
    data: st.DataObject, durations_ms: np.ndarray, cfg: Plan
) -> None:
    num = len(durations_ms) - 1
    counts = st.lists(st.integers(0, 12), min_size=num, max_size=num)
    tokens, repeats = np.array([*data.draw(counts), 1]), np.array([*data.draw(counts), 0])
    frames = durations_ms // 80
    empty = (durations_ms == 0) | (tokens == 0)
    longer = ~empty & (durations_ms > cfg.budget_ms)
    short = ~empty & ~longer & (frames < tokens + repeats)
    epoch_plan = plan(durations_ms, tokens, cfg, seed=0, epoch=0, num_frames=frames, equal_neighbours=repeats)
    expected = {"empty": empty.sum(), "longer_than_a_batch": longer.sum(), "too_short_for_ctc": short.sum()}
    assert epoch_plan.dropped == expected
    assert set(whole_corpus(epoch_plan)) == set(np.flatnonzero(~empty & ~longer & ~short).tolist())
    for k in range(epoch_plan.steps):
        rows = np.concatenate(epoch_plan.batches_of(k))
        assert epoch_plan.step_tokens[k] == tokens[rows].sum()
        assert epoch_plan.step_frames[k] == frames[rows].sum()


def test_a_corpus_of_which_nothing_is_left_is_an_error_that_says_why() -> None:
    with pytest.raises(DataError) as caught:
        plan(np.array([200_000, 300_000]), None, Plan(), seed=0, epoch=0)
    assert caught.value.why == "of 2 utterances 2 are longer than a batch"
    with pytest.raises(DataError):
        plan(np.zeros(0, np.int64), None, Plan(), seed=0, epoch=0)


@settings(max_examples=50, deadline=None)
@given(DURATIONS, LIMITS)
def test_statistics_agree_with_the_batches(durations_ms: np.ndarray, cfg: Plan) -> None:
    epoch_plan = planned(durations_ms, cfg)
    cost = [
        [durations_ms[batch].max() * len(batch) for batch in epoch_plan.batches_of(k)] for k in range(epoch_plan.steps)
    ]
    audio = sum(durations_ms[batch].sum() for batch in batches_of(epoch_plan))
    figures: dict[str, Any] = epoch_plan.statistics()
    assert figures["steps"] == epoch_plan.steps
    assert figures["hours"] == pytest.approx(audio / 3_600_000)
    assert figures["padding"] == pytest.approx(1 - audio / np.sum(cost))
    assert figures["efficiency"] == pytest.approx(audio / (cfg.batches_per_step * sum(map(max, cost))))
    assert figures["efficiency"] == pytest.approx((1 - figures["padding"]) / figures["imbalance_mean"])


def like_librispeech(num: int) -> np.ndarray:
    random = np.random.default_rng(0)
    long_s, short_s = random.normal(14.2, 1.3, num), random.uniform(1.4, 14.5, num)
    return (np.clip(np.where(random.random(num) < 0.68, long_s, short_s), 1.3, 17) * 1000).astype(np.int64)


@pytest.mark.parametrize(("batches_per_step", "least"), [(1, 0.998), (8, 0.99), (64, 0.97)])
def test_almost_all_of_the_devices_time_goes_to_speech(batches_per_step: int, least: float) -> None:
    epoch_plan = plan(
        like_librispeech(281_241), None, Plan(budget_ms=300_000, batches_per_step=batches_per_step), seed=0, epoch=0
    )
    assert epoch_plan.statistics()["efficiency"] > least


def test_steps_of_a_small_corpus_are_equally_full() -> None:
    epoch_plan = plan(np.full(101, 1000), None, Plan(budget_ms=20_000, batches_per_step=2), seed=0, epoch=0)
    sizes = [sum(map(len, epoch_plan.batches_of(k))) for k in range(epoch_plan.steps)]
    assert len(sizes) == 3
    assert max(sizes) - min(sizes) <= 3


def test_ascending_goes_from_short_to_long() -> None:
    durations_ms = like_librispeech(5000)
    epoch_plan = plan(durations_ms, None, Plan(), seed=0, epoch=0, ascending=True)
    longest = np.array([durations_ms[np.concatenate(epoch_plan.batches_of(k))].max() for k in range(epoch_plan.steps)])
    assert (np.diff(longest) > -0.1 * longest[1:]).all()
    assert longest[0] < longest[-1] / 2


@settings(max_examples=100, deadline=None)
@given(DURATIONS, LIMITS, st.floats(0, 0.4))
def test_no_batch_is_above_its_limits_after_tempo_augmentation(
    durations_ms: np.ndarray, cfg: Plan, most: float
) -> None:
    tempo_N = tempos(len(durations_ms), most, seed=0, epoch=0)
    augmented_ms = np.ceil(durations_ms * tempo_N).astype(int)
    fit = (augmented_ms > 0) & (augmented_ms <= cfg.budget_ms)
    if not fit.any():
        return
    epoch_plan = planned(durations_ms, cfg, tempo_N=tempo_N)
    assert set(epoch_plan.order.tolist()) == set(np.flatnonzero(fit).tolist())
    assert all(augmented_ms[batch].max() * len(batch) <= cfg.budget_ms for batch in batches_of(epoch_plan))
    assert np.array_equal(epoch_plan.augmented_ms(), augmented_ms[epoch_plan.order])
    assert epoch_plan.sha256() == planned(durations_ms, cfg, tempo_N=tempo_N.copy()).sha256()


@pytest.mark.parametrize(
    ("layout", "ascending", "start_of_hash"),
    [
        ("local", False, "aeaa3908db17287b"),
        ("local", True, "47f1d73eea8f9658"),
        ("remote", False, "87e7222859ab67e1"),
        ("remote", True, "af3911b9d13fa2b4"),
    ],
)
def test_the_order_of_the_data_is_the_one_of_experiments_that_have_begun(
    layout: str, ascending: bool, start_of_hash: str
) -> None:
    # with another hash a training would go on with other batches than it began with
    num = 5000
    durations_ms = like_librispeech(num)
    cfg = Plan.model_validate(
        {"budget_ms": 60_000, "budget_tokens": 150, "window": 1500, "layout": layout, "batches_per_step": 4}
    )
    epoch_plan = plan(
        *(durations_ms, durations_ms // 300, cfg),
        seed=7,
        epoch=2,
        shard_of=np.arange(num) // 100,
        sampling_rate=1 + np.arange(num) % 3 / 2,
        tempo_N=tempos(num, 0.1, seed=7, epoch=2),
        ascending=ascending,
    )
    assert epoch_plan.sha256().startswith(start_of_hash)


@pytest.mark.parametrize(
    ("num", "longest_ms", "window", "start_of_hash"),
    [
        (150_000, 35_000, 65_536, "a0dfb7f7d5d16d0b"),  # several blocks and windows
        (150_000, 900_000, 131_072, "23db9ef46a4db8b2"),  # lengths above 16 bits, a window of two blocks
        (70_000, 250, 100, "22236e98655b60df"),  # lengths of 8 bits, many windows in a block
    ],
)
def test_the_order_of_a_corpus_of_many_blocks_is_the_one_of_experiments_that_have_begun(
    num: int, longest_ms: int, window: int, start_of_hash: str
) -> None:
    durations_ms = np.random.default_rng(0).integers(longest_ms // 50, longest_ms, num)
    num_tokens = durations_ms // 100 + 1
    cfg = Plan(budget_ms=max(120_000, longest_ms), window=window, batches_per_step=8)
    epoch_plan = plan(durations_ms, num_tokens, cfg, seed=7, epoch=2, num_frames=2 * num_tokens)
    assert epoch_plan.sha256().startswith(start_of_hash)
    assert epoch_plan.step_frames.sum() == 2 * num_tokens[epoch_plan.order].sum()
    assert np.array_equal(2 * epoch_plan.step_tokens, epoch_plan.step_frames)


def test_many_ranks_do_not_wait_where_the_window_grows_with_them() -> None:
    for sigma in (0.5, 0.8):
        durations_ms = np.random.default_rng(0).lognormal(2.4, sigma, 140_000) * 1000
        lengths_ms = np.clip(durations_ms, 300, 60_000).astype(np.int64)
        cfg = Plan(budget_ms=300_000, batches_per_step=64, window=131_072)
        assert plan(lengths_ms, None, cfg, seed=0, epoch=0).statistics()["efficiency"] >= 0.97


def test_by_shards_a_step_touches_few_of_them_and_the_whole_epoch_all() -> None:
    shard_of = np.repeat(np.arange(100), 200)
    durations_ms = like_librispeech(len(shard_of))
    cfg = Plan(layout="remote", window=1000, batches_per_step=2)
    epoch_plan = plan(durations_ms, None, cfg, seed=0, epoch=0, shard_of=shard_of)
    touched = [set(shard_of[np.concatenate(epoch_plan.batches_of(k))].tolist()) for k in range(epoch_plan.steps)]
    assert max(map(len, touched)) <= 6
    assert set(whole_corpus(epoch_plan)) == set(range(len(shard_of)))
    recent = [set().union(*touched[max(0, k - 40) : k + 1]) for k in range(epoch_plan.steps)]
    assert max(map(len, recent)) <= 18


def test_by_shards_a_rank_reads_its_own_shards_and_does_not_wait() -> None:
    shard_of = np.repeat(np.arange(200), 1000)
    epoch_plan = planned(
        like_librispeech(len(shard_of)), Plan(budget_ms=300_000, layout="remote", batches_per_step=8), shard_of=shard_of
    )
    assert epoch_plan.statistics()["efficiency"] >= 0.98
    rows_R = [
        np.concatenate([epoch_plan.batches_of(k, rank, 8)[0] for k in range(epoch_plan.steps)]) for rank in range(8)
    ]
    assert sum(len(np.unique(shard_of[rows])) for rows in rows_R) <= 200 + 3 * 8  # one more where two meet


def test_by_shards_of_unlike_lengths_no_rank_waits_either() -> None:
    shard_of = np.repeat(np.arange(200), 1000)
    durations_ms = np.where(shard_of < 100, 1, 4) * like_librispeech(len(shard_of)) // 4
    epoch_plan = planned(durations_ms, Plan(budget_ms=300_000, layout="remote", batches_per_step=8), shard_of=shard_of)
    assert epoch_plan.statistics()["efficiency"] >= 0.98


@settings(max_examples=200, deadline=None)
@given(st.data(), DURATIONS, LIMITS, st.integers(1, 200))
def test_no_batch_has_more_tokens_than_its_budget(
    data: st.DataObject, durations_ms: np.ndarray, cfg: Plan, budget_tokens: int
) -> None:
    sizes = st.lists(st.integers(0, 60), min_size=len(durations_ms), max_size=len(durations_ms))
    num_tokens = np.array(data.draw(sizes), np.int64)
    num_tokens[-1] = 1
    epoch_plan = plan(
        durations_ms, num_tokens, cfg.model_copy(update={"budget_tokens": budget_tokens}), seed=0, epoch=0
    )
    for batch in batches_of(epoch_plan):
        assert num_tokens[batch].max() * len(batch) <= budget_tokens
        assert durations_ms[batch].max() * len(batch) <= cfg.budget_ms
    fit = (num_tokens > 0) & (num_tokens <= budget_tokens) & (durations_ms > 0) & (durations_ms <= cfg.budget_ms)
    assert set(whole_corpus(epoch_plan)) == set(np.flatnonzero(fit).tolist())


@settings(max_examples=100, deadline=None)
@given(st.data(), DURATIONS, LIMITS)
def test_every_utterance_comes_at_least_once_and_as_often_as_its_sampling_rate_says(
    data: st.DataObject, durations_ms: np.ndarray, cfg: Plan
) -> None:
    often = st.lists(st.floats(1, 5), min_size=len(durations_ms), max_size=len(durations_ms))
    sampling_rate = np.array(data.draw(often))
    epoch_plan = planned(durations_ms, cfg, sampling_rate=sampling_rate)
    occurrences = whole_corpus(epoch_plan)
    fit = np.flatnonzero((durations_ms > 0) & (durations_ms <= cfg.budget_ms))
    assert set(occurrences) == set(fit.tolist())
    assert sum(occurrences.values()) - len(occurrences) == epoch_plan.num_repeated
    filled_up = cfg.batches_per_step * -(-len(epoch_plan.order) // max(1, cfg.window // 2))
    assert -1 <= sum(occurrences.values()) - sampling_rate[fit].sum() <= filled_up
    if cfg.batches_per_step == 1:  # nothing is filled up
        assert all(int(sampling_rate[row]) <= num <= int(sampling_rate[row]) + 1 for row, num in occurrences.items())


def test_weights_and_temperature_set_the_shares_of_audio() -> None:
    hours = np.array([1.0, 10.0, 100.0])
    assert mixture_rates(hours, np.array([1.0, 1.0, 2.0]), 1.0) == pytest.approx([50.0, 5.0, 1.0])
    assert mixture_rates(hours, None, 1.0) == pytest.approx([1.0, 1.0, 1.0])
    shares = hours * mixture_rates(hours, None, 2.0)
    assert shares / shares[0] == pytest.approx(np.sqrt(hours))
