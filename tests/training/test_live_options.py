"""A request changes a running training: after one step on all ranks, to the same numbers after a kill, or not."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forked import finish, forked, start, torchrun_variables
from training.test_loop import figures, same, weights
from training.train_once import train_once, train_polling, train_wide
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError
from voxstill.storage import control as control_file
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.training import control, optim, parallel
from voxstill.training.budget import Budget
from voxstill.training.live_options import LiveOptions
from voxstill.training.state import State
from voxstill.training.summary import Segment
from waiting import until

STEPS = 12
LONG = "train.steps=100000"
"""More than a test waits for."""


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training looks all the time."""
    monkeypatch.setattr(control_file, "POLL_S", 0.01)


@pytest.fixture(scope="module")
def straight(work: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A training of which nothing was requested."""
    run = RunDir(tmp_path_factory.mktemp("straight") / "run")
    train_once(str(work), str(run.path), f"train.steps={STEPS}")
    return run


def ask(run: RunDir, *overrides: str, stop_after_epoch: bool = False) -> control_file.Request:
    """Request these options and nothing else."""
    run.path.mkdir(parents=True, exist_ok=True)
    options = control.parse_overrides(overrides)
    return control_file.request(Store(str(run.path)), options, stop_after_epoch=stop_after_epoch)


def steps(run: RunDir) -> list[dict[str, Any]]:
    """The rows of steps."""
    return [row for row in figures(run) if "split" not in row] if run.metrics.exists() else []


def without_answers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "control"} for row in rows]


def status(run: RunDir) -> control.TrainingStatus:
    content = control_file.read(Store(str(run.path)), f"{control_file.STATUS}/{control.NAME}.json")
    return control.TrainingStatus.from_dict(content)


def noted(run: RunDir) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(run.environment.read_text()).get("segments", [])
    return rows


def num_steps(run: RunDir) -> int:
    """Whole rows that are written."""
    return run.metrics.read_text().count('"lr"') if run.metrics.exists() else 0


@contextmanager
def meanwhile(act: Callable[[], object]) -> Iterator[None]:
    """Do something while the block trains; its errors are the test's."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:  # also a failed assertion
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()
    assert not errors, errors


def again(run: RunDir, work: Path, *overrides: str, ranks: int = 1) -> RunDir:
    """A training from the beginning that takes what was noted of another one after the same steps."""
    other = RunDir(run.path.with_name(f"{run.path.name}-again"))
    other.path.mkdir()
    other.environment.write_text(json.dumps({"segments": noted(run)}))
    train_ranks(work, other, *overrides, ranks=ranks)
    return other


def train_ranks(work: Path, run: RunDir, *overrides: str, ranks: int) -> None:
    if ranks == 1:
        train_wide(str(work), str(run.path), *overrides)
        return
    log = run.path.parent / "log"
    processes = [
        start(train_polling, str(work), str(run.path), *overrides, log=log, environment=more)
        for more in torchrun_variables(ranks)
    ]
    finish(*processes, log=log)


def lrs_of(cfg: Config, changes: list[dict[str, Any]], last: int) -> list[float]:
    """The learning rates of all steps, where the changes were taken."""
    budget, rates = Budget.of(cfg.train, 10**9), []
    left = list(changes)
    for step in range(last):
        while left and left[0]["step"] <= step:
            cfg = control.with_segment(cfg, Segment(step, left[0]["changed"]))
            budget = budget.changed(cfg.train, step, 0.0)
            left.pop(0)
        rates.append(optim.lr_at(budget.progress(step, 0.0), cfg.train))
    return rates


# ------------------------------------------------------------------------------------------------ the budget


@given(
    st.integers(1, 500),
    st.lists(st.tuples(st.integers(1, 400), st.integers(1, 500)), max_size=4),
)
def test_progress_goes_on_from_where_it_is_and_ends_with_the_new_end(
    total: int, changes: list[tuple[int, int]]
) -> None:
    cfg = config.Train(steps=total)
    budget, step = Budget.of(cfg, 10), 0
    for num_steps, left in changes:
        step = min(step + num_steps, (budget.steps or 0) - 1)
        before = budget.progress(step, 0.0)
        cfg = config.Train(steps=step + left)
        budget = budget.changed(cfg, step, 0.0)
        assert budget.progress(step, 0.0) == pytest.approx(before, abs=1e-12)
    end = budget.steps or 0
    shares = [budget.progress(k, 0.0) for k in range(step, end + 1)]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert all(share < 1 for share in shares[:-1])


@given(st.integers(1, 500), st.integers(0, 600))
def test_a_budget_that_is_not_changed_counts_to_the_same_bits(total: int, step: int) -> None:
    budget = Budget.of(config.Train(steps=total), 10)
    same_again = budget.changed(config.Train(steps=total, lr_factor=0.5), min(step, total - 1), 3.0)
    assert same_again.progress(step, 9.0) == budget.progress(step, 9.0) == min(step / total, 1.0)


# ------------------------------------------------------------------------------------------------ what may be asked


@pytest.mark.parametrize(
    ("override", "what", "fix"),
    [
        ("monitor.log_level=loud", "option `monitor.log_level` cannot be", "give"),
        ("monitor.port=9", "cannot change `monitor.port`", "a new training"),
        ("train.lr=1e-4", "a running training cannot change `train.lr`", "`train.lr_factor`"),
        ("train.devices=2", "cannot change `train.devices`", "--continue EXP --set train.devices="),
        ("plan.budget_ms=900", "cannot change `plan.budget_ms`", "--continue EXP --set plan.budget_ms="),
        ("student.size=small", "cannot change `student.size`", "a new training"),
        ("seed=3", "cannot change `seed`", "a new training"),
        ("engine=inline", "cannot change `engine`", "a new training"),
        ("train.stesp=3", "unknown option `train.stesp`", "did you mean `train.steps`?"),
        ("train.steps=0", "option `train.steps` cannot be 0", "give whole number"),
        ("train.lr_factor=.nan", "option `train.lr_factor` cannot be", "give number"),
        ("train.lr_factor=1e6", "would set the weights to 0", "lower"),
        ("train.steps=null", "the training has no end", "set one of them"),
        ("train.max_minutes=3", "cannot follow the clock", "`train.steps`"),
    ],
)
def test_what_cannot_change_is_refused_in_words(override: str, what: str, fix: str) -> None:
    started = config.Config.model_validate({"train": {"steps": 10, "seed_mode": "debug"}})
    with pytest.raises(ConfigError) as caught:
        control.apply(control.parse_overrides([override]), started)
    assert what in caught.value.what
    assert fix in caught.value.fix
    assert caught.value.why


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"at": 3, "set": {}}',
        b'{"at": "x", "set": {"train": 3}}',
        b'{"at": "\\ud800\\u001b[2J", "set": {"train": {"steps": "\\ud800"}}}',
        b'{"at": "x", "set": {"train": {"steps": 1e400}}}',
        b'{"at": "x", "set": {"train": {"loader_workers": 1000000}}}',
        b'{"at": "x", "set": {"train": {"profile": 3}}}',
        b'{"at": "x", "set": {"work": "/"}, "stop_after_epoch": true}',
        b'{"at": "x", "set": {"a": ' + b'{"a": ' * 900 + b"1" + b"}" * 902,
    ],
    ids=lambda content: str(content[:40]),
)
def test_odd_files_change_nothing(work: Path, straight: RunDir, tmp_path: Path, content: bytes, fast: None) -> None:
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    (run.path / control_file.REQUEST).write_bytes(content)
    train_once(str(work), str(run.path), "train.steps=2")
    assert steps(run)[0]["loss"] == steps(straight)[0]["loss"]
    assert json.loads(run.summary.read_text())["steps"] == 2
    assert noted(run) == []
    answer = status(run)
    assert not answer.running
    assert answer.refused or "the request cannot be read" in run.log.read_text()


# ------------------------------------------------------------------------------------------------ what is taken


def test_a_request_for_what_it_is_already_changes_no_bit(
    work: Path, straight: RunDir, tmp_path: Path, fast: None
) -> None:
    run = RunDir(tmp_path / "run")
    overrides = (f"train.steps={STEPS}", "train.lr_factor=1.0", "train.loader_workers=0", "train.log_every=1")

    def act() -> None:
        until(lambda: num_steps(run) >= 3)
        ask(run, *overrides)

    asked = ask(run, *overrides)
    with meanwhile(act):
        train_once(str(work), str(run.path), f"train.steps={STEPS}")
    assert same(weights(run), weights(straight))
    rows = figures(run)
    assert rows[0]["control"] == {"asked_at": asked.at, "since": 0}
    assert without_answers(rows) == figures(straight)
    assert noted(run)[0] == {"step": 0, "changed": {}, "requested_at": asked.at, "seconds": 0.0}


def test_steps_rate_logging_and_workers_change_after_one_step_on_both_ranks(work: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    overrides = ("plan.batches_per_step=2", "train.checkpoint_every=12", "train.validate_every=100000")
    wanted = ("train.steps=25", "train.lr_factor=0.5", "train.log_every=3", "train.loader_workers=1")

    def act() -> None:
        until(lambda: num_steps(run) >= 4)
        ask(run, *wanted, "monitor.log_level=debug")

    with meanwhile(act):
        train_ranks(work, run, *overrides, LONG, ranks=2)
    [change] = noted(run)
    step = change["step"]
    assert 4 <= step < 25
    assert {name: after for name, (_, after) in change["changed"].items()} == {
        "train.steps": 25,
        "train.lr_factor": 0.5,
        "train.log_every": 3,
        "train.loader_workers": 1,
        "monitor.log_level": "debug",
    }
    summary = json.loads(run.summary.read_text())
    assert (summary["steps"], summary["segments"]) == (25, [change])
    rows = steps(run)
    assert [row["step"] for row in rows] == [*range(1, step + 1), *(k for k in range(step + 1, 26) if k % 3 == 0), 25]
    cfg = config.load(None, ["train.steps=100000", "train.seed_mode=debug"])
    rates = lrs_of(cfg, [change], 25)
    assert [row["lr"] for row in rows] == [rates[row["step"] - 1] for row in rows]
    last = status(run)
    assert (last.asked_at, last.refused, last.since, last.running) == (change["requested_at"], None, step, False)
    assert (last.train["steps"], last.log_level) == (25, "debug")
    [answer] = [row["control"] for row in rows if "control" in row]
    assert answer == {"asked_at": change["requested_at"], "since": step}
    assert f"control: from step {step} on: `train.steps` 100000 -> 25" in run.log.read_text()
    assert same(weights(again(run, work, *overrides, LONG, ranks=2)), weights(run))


def test_a_training_that_is_killed_takes_the_change_after_the_same_step(work: Path, tmp_path: Path) -> None:
    run, log = RunDir(tmp_path / "run"), tmp_path / "log"
    overrides = ("train.checkpoint_every=10", "train.validate_every=100000", LONG)
    with forked(train_polling, str(work), str(run.path), *overrides, log=log) as process:
        until(lambda: num_steps(run) >= 12 or not process.is_alive())
        ask(run, "train.steps=48", "train.lr_factor=3", "train.keep_every=10")
        until(lambda: status(run).since is not None or not process.is_alive())
    [change] = noted(run)
    assert 12 <= change["step"] < 48
    assert not run.summary.exists()
    for folder in run.checkpoints.glob("epoch=*"):  # the one before the change is what is whole
        if int(folder.name.rpartition("=")[2]) > 10:
            shutil.rmtree(folder)
    run.last.unlink()
    run.last.symlink_to(next(run.checkpoints.glob("epoch=*")).name)
    train_wide(str(work), str(run.path), *overrides)
    assert noted(run) == [change]
    assert json.loads(run.summary.read_text())["steps"] == 48
    other = again(run, work, *overrides)
    assert same(weights(run), weights(other))
    assert without_answers(figures(run)) == figures(other)
    assert status(run).train["steps"] == 48
    assert f"control: from step {change['step']} on, as before: `train.steps` 100000 -> 48" in run.log.read_text()


def test_the_second_of_two_quick_requests_holds_and_a_request_is_taken_back(
    work: Path, tmp_path: Path, fast: None
) -> None:
    run = RunDir(tmp_path / "run")
    requests = []

    def act() -> None:
        until(lambda: num_steps(run) >= 3)
        requests.append(ask(run, "train.lr_factor=0.25", "train.log_every=2"))
        requests.append(ask(run, "train.lr_factor=0.5"))
        until(lambda: status(run).asked_at == requests[1].at)
        edited = {**requests[1].to_dict(), "set": {"train": {"lr_factor": 0.75}}}  # by hand: its time stays
        Store(str(run.path)).write_json(control_file.REQUEST, edited)
        until(lambda: status(run).train["lr_factor"] == 0.75)
        requests.append(ask(run))
        until(lambda: status(run).asked_at == requests[2].at)
        requests.append(ask(run, "train.steps=1"))
        until(lambda: status(run).refused)
        requests.append(ask(run, f"train.steps={num_steps(run) + 40}"))

    with meanwhile(act):
        train_once(str(work), str(run.path), LONG, "train.validate_every=100000", "train.checkpoint_every=100000")
    changes = noted(run)
    assert [change["requested_at"] for change in changes][-3:] == [requests[i].at for i in (1, 2, 4)]
    last = changes[-3:]
    assert last[0]["changed"] == {"train.lr_factor": [0.5, 0.75]}
    assert last[1]["changed"] == {"train.lr_factor": [0.75, 1.0]}
    assert last[2]["changed"].keys() == {"train.steps"}
    cfg = config.load(None, [LONG, "train.seed_mode=debug"])
    rates = lrs_of(cfg, changes, steps(run)[-1]["step"])
    rows = steps(run)
    assert [row["lr"] for row in rows] == [rates[row["step"] - 1] for row in rows]
    [refusal] = [row["control"]["refused"] for row in rows if "refused" in row.get("control", {})]
    assert "the training would already be over" in refusal
    assert "--stop-after-epoch" in refusal


def test_a_training_stops_after_its_epoch_with_a_finished_student(work: Path, tmp_path: Path, fast: None) -> None:
    run = RunDir(tmp_path / "run")

    def act() -> None:
        until(lambda: num_steps(run) >= 2)
        ask(run, stop_after_epoch=True)

    with meanwhile(act):
        train_once(str(work), str(run.path), "train.epochs=100000", "train.validate_every=100000")
    summary = json.loads(run.summary.read_text())
    [change] = noted(run)
    [(before, end)] = change["changed"].values()
    assert (before, end) == (None, summary["steps"])
    rows = steps(run)
    assert {row["epoch"] for row in rows if row["step"] > change["step"]} <= {rows[change["step"] - 1]["epoch"]}
    assert summary["epochs"] == rows[-1]["epoch"] + 1
    assert (run.model / "model.safetensors").exists()


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_request_taken_late_does_not_hide_that_a_later_one_was_refused(
    tmp_path: Path, fast: None, is_refused: bool
) -> None:
    run = RunDir(tmp_path)
    cfg = Config.model_validate({"train": {"steps": STEPS}})
    fabric = parallel.fabric(cfg.train)
    with LiveOptions(fabric, run, cfg, Budget.of(cfg.train, 10**9), lambda: None) as live:
        ask(run, "train.steps=2" if is_refused else "train.lr_factor=0.5")
        until(lambda: live.is_asked)
        later = control_file.request(Store(str(run.path)), {"train": {"loader_workers": 10**6}})
        until(lambda: "loader_workers" in str(live.answer().get("control")))
        live.take(State(step=3), True, lambda: STEPS)
        assert live.cfg.train.lr_factor == (1.0 if is_refused else 0.5)
        assert not live.answer()
    last = status(run)
    assert (last.asked_at, last.train["lr_factor"]) == (later.at, live.cfg.train.lr_factor)
    assert "loader_workers" in str(last.refused)


def test_the_clock_of_a_training_is_made_shorter(work: Path, tmp_path: Path, fast: None) -> None:
    run = RunDir(tmp_path / "run")
    minutes: list[float] = []

    def act() -> None:
        until(lambda: num_steps(run) >= 3)
        spent_s = json.loads(run.metrics.read_text().splitlines()[2])["seconds"]
        minutes.append(round((spent_s + 5) / 60, 4))
        ask(run, f"train.max_minutes={minutes[0]}")

    limits = ("train.seed_mode=production", "train.max_minutes=600", "train.validate_every=100000")
    with meanwhile(act):
        train_once(str(work), str(run.path), *limits)
    [change] = noted(run)
    assert change["changed"] == {"train.max_minutes": [600.0, minutes[0]]}
    assert 60 * minutes[0] <= json.loads(run.summary.read_text())["seconds"] < 60 * minutes[0] + 10
    rows = steps(run)
    assert all(row["progress"] >= before["progress"] for before, row in itertools.pairwise(rows))


@pytest.mark.slow
@settings(deadline=None, max_examples=4)
@given(st.lists(st.tuples(st.integers(0, 11), st.sampled_from([0.5, 1.0, 2.0]), st.integers(12, 16)), max_size=3))
def test_whatever_was_taken_a_training_from_any_checkpoint_ends_in_the_same_bits(
    work: Path, tmp_path_factory: pytest.TempPathFactory, taken: list[tuple[int, float, int]]
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    runs = [RunDir(folder / name) for name in ("straight", "resumed")]
    values: dict[str, float] = {"train.lr_factor": 1.0, "train.steps": STEPS}
    changes = []
    for number, (step, factor, end) in enumerate(sorted(taken)):
        after = {"train.lr_factor": factor, "train.steps": end}
        changed = {name: [values[name], value] for name, value in after.items() if value != values[name]}
        changes.append({"step": step, "changed": changed, "requested_at": f"{number}", "seconds": 0.0})
        values |= after
    for run in runs:
        run.path.mkdir()
        run.environment.write_text(json.dumps({"segments": changes}))
    few = ("train.checkpoint_every=5", "train.keep_every=5", "train.validate_every=100000", f"train.steps={STEPS}")
    train_once(str(work), str(runs[0].path), *few)
    shutil.copytree(runs[0].path, runs[1].path, dirs_exist_ok=True, symlinks=True)
    runs[1].summary.unlink()
    shutil.rmtree(runs[1].model)
    for path in runs[1].checkpoints.glob("epoch=*"):
        if int(path.name.rpartition("=")[2]) > 5:
            shutil.rmtree(path)
    runs[1].last.unlink()
    train_once(str(work), str(runs[1].path), *few)
    assert json.loads(runs[1].summary.read_text())["steps"] == values["train.steps"]
    assert same(weights(runs[0]), weights(runs[1]))
    assert figures(runs[0]) == figures(runs[1])
