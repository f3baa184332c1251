"""Processes that torchrun, srun or Ray has started train together, in one folder, to what one process learns."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
import torch
from safetensors.torch import load_file
from torch.multiprocessing.spawn import ProcessExitedException

from forked import command, finish, free_port, start, torchrun_variables
from tones import write_shards
from voxstill import cli
from voxstill.core import config, world
from voxstill.core.errors import ConfigError, DataError, TrainingError, VoxstillError
from voxstill.core.world import Ranks
from voxstill.storage import tables
from voxstill.storage.fetch import RefusedError
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.training import cluster, parallel

SETTINGS = """
work: {work}
plan: {{budget_ms: 6000{batches_per_step}}}
augment: {{noise_prob: 0.0, gain_db: 0.0, tempo: 0.0, vtlp: 0.0, time_masks: 0, mel_masks: 0}}
train: {{steps: 3, seed_mode: debug, loader_workers: 0, log_every: 1, root: {root}}}
"""
CLEAN = {name: text for name, text in os.environ.items() if not name.startswith(("SLURM", "TORCHELASTIC"))}


class Alone(NamedTuple):
    figures: list[dict[str, float]]
    weights: dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder of which every step says that it is finished."""
    folder = tmp_path_factory.mktemp("work")
    store = Store(str(folder))
    for kind in ("utterances", "labels", "verdicts"):
        store.write_json(f"{kind}/r/{tables.SUCCESS}", {"recipe": "r", "sha256": ""})
    write_shards(store, "shards/r", {"train": 24, "dev": 4})
    return folder


@pytest.fixture(scope="module")
def alone(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """What one process learns."""
    folder = tmp_path_factory.mktemp("alone")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert cli.main(["train", str(written(folder, corpus, batches_per_step=2)), "--json"]) == 0
    summary = json.loads(output.getvalue())
    return Alone(figures(Path(summary["path"])), learnt(folder, summary))


def written(folder: Path, corpus: Path, batches_per_step: int | None = None) -> Path:
    path = folder / "train.yaml"
    option = "" if batches_per_step is None else f", batches_per_step: {batches_per_step}"
    path.write_text(SETTINGS.format(work=corpus, root=folder / "exp", batches_per_step=option))
    return path


def figures(run: Path) -> list[dict[str, float]]:
    rows = map(json.loads, RunDir(run).metrics.read_text().splitlines())
    return [row for row in rows if "loss" in row]


def learnt(folder: Path, figures: dict[str, object]) -> dict[str, torch.Tensor]:
    (run,) = (folder / "exp").iterdir()
    assert figures["path"] == str(run)
    weights = load_file(RunDir(run).last / "model.safetensors")
    return {name: weight for name, weight in weights.items() if "running_" not in name and "num_batches" not in name}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    assert one.keys() == two.keys()
    return max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5


@pytest.mark.slow
def test_torchrun_trains_the_same_weights_as_one_process(corpus: Path, alone: Alone, tmp_path: Path) -> None:
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    run += ["-m", "voxstill.cli", "train", str(written(tmp_path, corpus)), "--json"]
    process = subprocess.run(run, capture_output=True, text=True, env=CLEAN, timeout=250, check=False)
    assert process.returncode == 0, process.stderr[-3000:]
    (line,) = process.stdout.splitlines()  # rank 0 alone says the figures
    assert same(learnt(tmp_path, json.loads(line)), alone.weights)
    rows = figures(Path(json.loads(line)["path"]))
    for name in ("loss", "ctc", "align"):  # of all ranks together
        one, two = ([row[name] for row in run_rows if name in row] for run_rows in (rows, alone.figures))
        assert one == pytest.approx(two, rel=1e-5)


def test_every_rank_refuses_another_number_of_devices(corpus: Path, tmp_path: Path) -> None:
    arguments, log = ["train", written(tmp_path, corpus), "--set", "train.devices=4"], tmp_path / "log"
    ranks = [start(command, arguments, log=log, environment=CLEAN | more) for more in torchrun_variables(2)]
    for rank in ranks:
        rank.join(120)
        assert rank.exitcode == 2, log.read_text()[-3000:]
    assert log.read_text().count("`train.devices` is 4") == 2
    assert log.read_text().count("torchrun has started 2 processes on this machine") == 2
    assert not (tmp_path / "exp").exists()


@pytest.mark.slow
def test_srun_trains_the_same_weights_as_one_process(corpus: Path, alone: Alone, tmp_path: Path) -> None:
    arguments, log = ["train", written(tmp_path, corpus), "--json"], tmp_path / "log"
    variables = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "localhost"}
    variables |= {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "MASTER_PORT": str(free_port())}
    ranks = []
    for rank in ("0", "1"):
        env = CLEAN | variables | {"SLURM_PROCID": rank, "SLURM_LOCALID": rank}
        ranks.append(start(command, arguments, log=log, output=tmp_path / rank, environment=env))
    finish(*ranks, log=log)
    assert (tmp_path / "1").read_text() == ""
    assert same(learnt(tmp_path, json.loads((tmp_path / "0").read_text())), alone.weights)


@pytest.mark.slow
def test_two_workers_of_ray_train_the_same_weights_as_one_process(
    corpus: Path, alone: Alone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas", reason="Ray Train imports it")
    # paths are relative to where the command was given, which is not where Ray runs its workers
    settings = ("train.launcher=ray", "train.devices=2", f"work={corpus.name}")
    arguments = ["train", written(tmp_path, corpus), "--json", *(word for row in settings for word in ("--set", row))]
    output, log = tmp_path / "output", tmp_path / "log"
    monkeypatch.chdir(corpus.parent)
    finish(start(command, arguments, log=log, output=output, environment=CLEAN), log=log)
    assert same(learnt(tmp_path, json.loads(output.read_text())), alone.weights)


def test_of_the_errors_of_several_workers_the_one_with_a_fix_is_reported() -> None:
    closed, empty = RuntimeError("first\nConnection closed by peer"), DataError("there is nothing to learn")
    assert cluster._rank_error({0: closed, 1: empty}) is empty
    error = cluster._rank_error({1: closed, 2: closed})
    assert isinstance(error, TrainingError)
    assert "rank 1" in error.what
    assert error.why == "Connection closed by peer"


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("it is wrong", code="option-value", why="it is 0", fix="raise it"),
        RefusedError("it is not read", code="unreadable-file", why="it is not a file"),
    ],
    ids=["a kind", "a kind of a kind"],
)
def test_the_error_of_a_rank_is_reported_with_its_code(error: VoxstillError, tmp_path: Path) -> None:
    run, fabric = RunDir(tmp_path), SimpleNamespace(world_size=2, global_rank=1)

    def train() -> None:
        with parallel.raise_rank_error(run, 2):
            with contextlib.suppress(VoxstillError), parallel.record_rank_error(run, cast(Any, fabric)):
                raise error
            raise ProcessExitedException("it has ended", error_index=1, error_pid=1, exit_code=6)

    with pytest.raises(VoxstillError) as caught:
        train()
    assert isinstance(error, type(caught.value))
    assert caught.value.to_dict() == error.to_dict()


@pytest.mark.parametrize(
    ("tasks", "nodes", "wanted"),
    [
        (("4", "2(x2)", "1"), "gpu[07-08]", (Ranks("srun", 3, 4, 2), "gpu07")),
        (("2", "2", "1"), "alpha", (Ranks("srun", 3, 2, 2), "alpha")),
        (("3", "1(x3)", "0"), "rack[1,3]n[2-4],login1", (Ranks("srun", 3, 3, 1), "rack1n2")),
        (("1", "1", "0"), "alpha", (None, None)),
    ],
)
def test_the_environment_of_srun_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
    tasks: tuple[str, str, str],
    nodes: str,
    wanted: tuple[Ranks | None, str | None],
) -> None:
    num, here, local = tasks
    variables = {"SLURM_STEP_NUM_TASKS": num, "SLURM_STEP_TASKS_PER_NODE": here, "SLURM_STEP_NODELIST": nodes}
    variables |= {"SLURM_JOB_ID": "99", "SLURM_STEP_ID": "1", "SLURM_PROCID": "3", "SLURM_LOCALID": local}
    monkeypatch.setattr(os, "environ", variables)
    assert world.ranks() == wanted[0]
    assert world.ranks() == wanted[0]  # also when it has been said as torchrun says it
    assert os.environ.get("MASTER_ADDR") == wanted[1]


@pytest.mark.parametrize(("here", "num"), [("2(x2),1", "5"), ("2,1", "3")])
def test_machines_with_different_numbers_of_processes_are_refused(
    monkeypatch: pytest.MonkeyPatch, here: str, num: str
) -> None:
    variables = {"SLURM_STEP_NUM_TASKS": num, "SLURM_STEP_TASKS_PER_NODE": here}
    monkeypatch.setattr(os, "environ", variables)
    with pytest.raises(ConfigError, match="unevenly"):
        world.ranks()


def test_a_single_process_is_no_distributed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"})
    assert world.ranks() is None


def test_every_rank_has_one_batch_unless_batches_per_step_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks("torchrun", 5, 8, 4)
    assert parallel.with_ranks(ranks, config.load(None, [])).plan.batches_per_step == 8
    assert parallel.with_ranks(ranks, config.load(None, ["train.devices=4"])).plan.batches_per_step == 8
    assert parallel.with_ranks(ranks, config.load(None, ["plan.batches_per_step=16"])).plan.batches_per_step == 16
    with pytest.raises(ConfigError, match=r"train\.devices"):
        parallel.with_ranks(ranks, config.load(None, ["train.devices=8"]))
