from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from engine_works import (
    FunctionWork,
    Twice,
    aside,
    flat,
    names,
    run,
)
from voxstill import engine
from voxstill.core import process
from voxstill.core.config import Config, Engine
from voxstill.core.errors import ConfigError
from voxstill.engine import Chunk, Stage, chunks_of, ray_cluster


def test_more_workers_than_cores_do_not_wait_for_each_other(ray: Any) -> None:
    workers = 2 * (os.cpu_count() or 1) + 1
    committed, _ = run(
        chunks_of(range(20), 1, str),
        (
            Stage(name="a", work=Twice(), workers=workers, num_cpus=1),
            Stage(name="b", work=FunctionWork(names), workers=2, num_cpus=4),
        ),
    )
    assert len(committed) == 20


def test_missing_gpus_are_an_error_and_not_waited_for(ray: Any) -> None:
    with pytest.raises(ConfigError, match="need 64 GPUs"):
        run([Chunk("c", (1,))], (Stage(name="teach", work=FunctionWork(names), workers=2, num_gpus=32),))


def test_a_resource_that_no_machine_has_is_an_error_and_not_waited_for(ray: Any) -> None:
    stage = Stage(name="teach", work=FunctionWork(names), workers=2, resources={"TPU": 4})
    with pytest.raises(ConfigError, match="need 8 of the resource `TPU` but the cluster has 0") as caught:
        run([Chunk("c", (1,))], (stage,))
    assert caught.value.why == "`teach`: 2 workers of 4 of the resource `TPU`"
    assert "--resources" in caught.value.fix


def test_as_many_workers_fit_as_each_machine_holds() -> None:
    def worker(**resources: float) -> Stage:
        gpus = resources.pop("GPU", 0)
        return Stage(name="teach", work=FunctionWork(names), num_gpus=gpus, resources=resources)

    cluster: Any = SimpleNamespace(
        nodes=lambda: [
            {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 3.0, "TPU": 8.0}},
            {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 3.0}},
            {"Alive": False, "Resources": {"CPU": 4.0, "GPU": 64.0, "TPU": 64.0}},
        ],
        cluster_resources=lambda: {"CPU": 8.0, "GPU": 6.0, "TPU": 8.0},
    )
    stages = (worker(), worker(GPU=0.5), worker(GPU=2), worker(TPU=3), worker(TPU=1, GPU=1))
    assert ray_cluster.num_workers(cluster, stages) == [8, 12, 2, 2, 3]
    assert ray_cluster.cpu_share(cluster, (worker(GPU=3),), [2]) == 1.0
    with pytest.raises(
        ConfigError, match="no machine of the cluster has the resources that a worker of the stage `teach` reserves"
    ):
        ray_cluster.cpu_share(cluster, (worker(GPU=4),), [1])


def test_workers_reserve_resources_and_ray_has_the_memory_that_is_set(ray: Any) -> None:
    def disks() -> Any:
        import ray

        return lambda items, _: [ray.get_runtime_context().get_assigned_resources().get("big_disk") for _ in items]

    assert int(ray.cluster_resources()["object_store_memory"]) == 100_000_000
    stage = Stage(name="decode", work=FunctionWork(disks), workers=2, resources={"big_disk": 1})
    committed, _ = run(chunks_of(range(4), 1, str), (stage,))
    assert flat(committed) == [1.0] * 4


@pytest.mark.parametrize(
    "options",
    [
        {"resources": {"GPU": 1.0}},
        {"teacher_resources": {"CPU": 1.0}},
        {"resources": {"disk": 0.0}},
        {"object_store_memory": 4},
    ],
    ids=str,
)
def test_resources_that_ray_counts_itself_and_amounts_of_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"engine.{next(iter(options))}"):
        Config.model_validate({"engine": options})


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


def test_our_cluster_has_no_process_that_it_does_not_use(ray: Any) -> None:
    port = ray.get_runtime_context().gcs_address.rpartition(":")[2]
    commands = [other.command_line for other in process.processes() if port in other.command_line]
    programs = {word.rpartition("/")[2] for command in commands for word in command.split()}
    assert "raylet" in programs
    assert not programs & {"monitor.py", "log_monitor.py", "dashboard.py"}


@pytest.mark.slow
def test_two_teachers_share_a_gpu_and_the_number_that_fits_is_started(ray: Any) -> None:
    def places() -> Any:
        def work(items: Sequence[Any], _: Any) -> list[tuple[str, int]]:
            time.sleep(0.2)
            return [(os.environ["CUDA_VISIBLE_DEVICES"], os.getpid()) for _ in items]

        return work

    seen: set[tuple[str, int]] = set()

    def source() -> Iterator[Chunk]:
        for chunk in chunks_of(range(1000), 1, str):
            if len(seen) == 4:
                return
            yield chunk

    stage = Stage(name="teach", work=FunctionWork(places), num_gpus=0.5)
    summary = engine.run(source(), (stage,), lambda _, rows: seen.update(rows), aside, Engine())
    assert sorted(gpu for gpu, _ in seen) == ["0", "0", "1", "1"]
    assert list(summary.busy) == ["teach"]
