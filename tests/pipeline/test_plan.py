"""`voxstill plan`: figures that scripts can rely on, and a picture for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from voxstill import cli
from voxstill.core.config import Config, Plan
from voxstill.core.errors import DataError
from voxstill.core.records import UtteranceInfo
from voxstill.pipeline.plan import plan_
from voxstill.storage import shard_format
from voxstill.storage.figures import ShardFigures
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store


def lengths(num: int = 3000) -> np.ndarray:
    return np.clip(np.random.default_rng(0).lognormal(2.0, 0.6, num) * 1000, 300, 30_000).astype(int)


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "lengths.parquet"
    pq.write_table(pa.table({"duration_ms": lengths()}), path)
    return str(path)


def figures(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert cli.main(["plan", *argv, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def error(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    return cli.main(["plan", *argv]), capsys.readouterr().err


def test_the_global_batches_are_the_same_on_1_2_4_and_8_ranks(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    by_ranks = [figures(capsys, table, "--ranks", str(ranks), "--budget", "60s") for ranks in (1, 2, 4, 8)]
    assert len({result["sha256"] for result in by_ranks}) == 1
    assert len({result["steps"] for result in by_ranks}) == 1
    assert [result["ranks"] for result in by_ranks] == [1, 2, 4, 8]
    # who has more batches of a step to himself waits less for the others
    assert by_ranks[0]["efficiency"] >= by_ranks[1]["efficiency"] >= by_ranks[3]["efficiency"] > 0.95
    assert by_ranks[0]["imbalance_mean"] == 1


def test_figures_are_of_the_whole_corpus(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = figures(capsys, table, "--ranks", "2", "--budget", "20s")
    durations_ms = lengths()
    fit = durations_ms <= 20_000
    assert result["utterances"] == fit.sum() + result["repeated"]
    assert result["dropped"] == {"empty": 0, "longer_than_a_batch": int((~fit).sum())}
    assert result["hours"] == pytest.approx(durations_ms[fit].sum() / 3_600_000, rel=0.01)
    assert result["efficiency"] == pytest.approx((1 - result["padding"]) / result["imbalance_mean"])


@pytest.mark.parametrize("other", [["--epoch", "1"], ["--seed", "1"], ["--budget", "61s"]])
def test_another_epoch_seed_or_budget_is_another_plan(
    table: str, other: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    one = figures(capsys, table, "--budget", "1m")
    assert figures(capsys, table, "--budget", "60000ms")["sha256"] == one["sha256"]
    assert figures(capsys, table, "--budget", "60", *other)["sha256"] != one["sha256"]


def test_a_table_without_durations_and_files_that_are_no_tables_are_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"seconds": [1.0]}), tmp_path / "other.parquet")
    (tmp_path / "bad.parquet").write_bytes(b"not this")
    (tmp_path / "empty").mkdir()
    for name, why in (("other", "no column `duration_ms`"), ("bad", "is not a Parquet file")):
        code, message = error(capsys, str(tmp_path / f"{name}.parquet"))
        assert code == 3
        assert why in message
    code, message = error(capsys, str(tmp_path / "empty"))
    assert code == 3
    assert "nothing to plan" in message


@pytest.mark.parametrize("name", ["duration_ms", "num_tokens"])
@pytest.mark.parametrize(
    ("value", "why"),
    [
        (pa.array(["long", "1000"]), "long"),
        (pa.array([None, ""]), ""),
        (pa.array([1000, -1]), "row 2 has -1"),
        (pa.array([1000, 2**31]), "row 2 has 2.14748e+09"),
        (pa.array([2**62, 1000]), "row 1 has 4.61169e+18"),
        (pa.array([1e300, 1.0]), "row 1 has 1e+300"),
        (pa.array([1000.0, float("nan")]), "row 2 has nan"),
        (pa.array([float("-inf"), 1.0]), "row 1 has -inf"),
        (pa.array([[1000], [1]]), "list"),
        (pa.array([{"ms": 1}, {"ms": 2}]), "struct"),
        (pa.array([b"\xff", b"1"]), "parse"),
        (pa.array([1, 2], pa.duration("ms")), "duration"),
    ],
)
def test_what_is_no_number_of_milliseconds_or_tokens_is_an_error_that_names_it(
    name: str, value: pa.Array, why: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    pq.write_table(pa.table({"duration_ms": [1000, 1000], name: value}), tmp_path / "a.parquet")
    with pytest.raises(DataError) as caught:
        plan_(str(tmp_path / "a.parquet"), None, 0, Config())
    assert f"`{name}` of `{tmp_path / 'a.parquet'}`" in caught.value.what
    assert why in caught.value.why
    assert caught.value.fix
    assert not recwarn.list


def test_a_column_that_is_there_twice_or_names_no_shard_is_an_error(tmp_path: Path) -> None:
    twice = pa.table([pa.array([1000]), pa.array([1000])], names=["duration_ms", "duration_ms"])
    nested = pa.table({"duration_ms": [1000], "shard": [{"name": 1}]})
    for name, rows in (("duration_ms", twice), ("shard", nested)):
        pq.write_table(rows, tmp_path / f"{name}.parquet")
        with pytest.raises(DataError, match=f"`{name}`"):
            plan_(str(tmp_path / f"{name}.parquet"), None, 0, Config())


def test_lengths_may_be_of_any_type_of_number_and_absent(tmp_path: Path) -> None:
    columns = ([1000, None, 0, 2000], [1000.4, None, 0.0, 2000.0], ["1000", None, "0", "2000"])
    for number, durations_ms in enumerate(columns):
        pq.write_table(pa.table({"duration_ms": durations_ms}), tmp_path / f"{number}.parquet")
    planned = plan_(str(tmp_path), None, 0, Config(plan=Plan(batches_per_step=1)))
    assert (planned.utterances - planned.repeated, planned.dropped["empty"]) == (6, 6)


def test_ranks_that_cannot_share_a_step_are_refused(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, message = error(capsys, table, "--ranks", "3", "--set", "plan.batches_per_step=8")
    assert code == 2
    assert "plan.batches_per_step" in message
    assert error(capsys, table, "--ranks", "0")[0] == 2


def test_columns_of_tokens_and_shards_are_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in range(40):
        rows = {"duration_ms": [1000.0 + part] * 50, "num_tokens": [part % 7] * 50, "shard": [f"s{part}"] * 50}
        pq.write_table(pa.table(rows), tmp_path / f"{part}.parquet")
    few_tokens = ["--set", "plan.budget_tokens=12", "--set", "plan.batches_per_step=1"]
    result = figures(capsys, str(tmp_path), "--layout", "remote", "--set", "plan.window=100", *few_tokens)
    assert result["dropped"]["empty"] == 6 * 50
    assert result["steps"] >= sum(50 // (12 // (part % 7)) for part in range(40) if part % 7) * 0.9
    assert figures(capsys, str(tmp_path), "--layout", "local")["sha256"] != result["sha256"]


def write_shards(store: Store, num: int = 200) -> None:
    index = store.root + "/00000.tar"
    Path(store.root).mkdir(parents=True, exist_ok=True)
    with open(index, "wb") as file:
        samples = [
            Sample(
                id=f"u{i}",
                split="train" if i % 10 else "dev",
                duration_ms=1000 + i,
                num_samples=16 * (1000 + i),
                text="a",
                info=UtteranceInfo(dataset="big" if i % 4 else "small", dialect="north" if i % 5 else None),
            )
            for i in range(num)
        ]
        rows = shard_format.write(file, ((sample, b"x") for sample in samples))
    from voxstill.storage import tables

    store.create("00000.parquet", tables.to_parquet(rows, Sample))
    shard_format.finish(store, "", ShardFigures(shards=1, utterances=num))


def test_shards_are_planned_with_the_weights_of_their_data_sets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(str(tmp_path / "shards"))
    write_shards(store)
    plain = figures(capsys, store.root)
    assert plain["utterances"] - plain["repeated"] == 180  # the dev split is not learnt
    halves = figures(capsys, store.root, "--set", "plan.weights={big: 1, small: 1}")
    few = len([i for i in range(200) if i % 10 and not i % 4])
    assert halves["utterances"] == pytest.approx(2 * (180 - few), rel=0.05)
    assert halves["utterances"] - halves["repeated"] == 180
    north = figures(capsys, store.root, "--set", "plan.dialect_sampling_rate={north: 3}")
    assert north["repeated"] == pytest.approx(2 * len([i for i in range(200) if i % 10 and i % 5]), abs=8)
    for wrong in (
        "plan.weights={big: 1}",
        "plan.weights={big: 1, small: 1, huge: 2}",
        "plan.dialect_sampling_rate={west: 2}",
    ):
        code, message = error(capsys, store.root, "--set", wrong)
        assert code == 2, message
        assert "in the shards there are" in message
    for wrong in (
        "plan.weights={big: 1, small: 0}",
        "plan.weights={big: 1, small: -1}",
        "plan.dialect_sampling_rate={north: 0.5}",
    ):
        code, message = error(capsys, store.root, "--set", wrong)
        assert code == 2, message
        assert "every utterance is used in every epoch" in message
    code, message = error(capsys, store.root, "--set", "plan.weights={big: 1000000, small: 0.000001}")
    assert code == 2, message
    assert "an epoch would have" in message


def test_the_picture_shows_every_length_and_every_batch(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = figures(capsys, table, "--ranks", "4", "--budget", "60s")
    assert cli.main(["plan", table, "--ranks", "4", "--budget", "60s"]) == 0
    shown = capsys.readouterr().out
    assert f"{result['steps']:,} steps of 8 batches on 4 ranks" in shown
    rows = [line.split() for line in shown.splitlines() if " to " in line and "█" in line]
    assert sum(int(row[4].replace(",", "")) for row in rows) == result["utterances"]
    assert sum(int(row[5].replace(",", "")) for row in rows) == result["steps"] * 8
