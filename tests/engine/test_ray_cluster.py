from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from engine_works import (
    FunctionWork,
    Twice,
    names,
    run,
)
from voxstill.core.errors import ConfigError
from voxstill.engine import Chunk, Stage, chunks_of


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
    with pytest.raises(ConfigError, match="want 64 GPUs"):
        run([Chunk("c", (1,))], (Stage(name="teach", work=FunctionWork(names), workers=2, num_gpus=32),))


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


@pytest.mark.slow
def test_two_teachers_share_a_gpu_and_the_number_that_fits_is_started() -> None:
    code = """
import os, time, ray
from voxstill.core.config import Engine
from voxstill import engine
ray.init(address="local", num_cpus=2, num_gpus=2, include_dashboard=False)
class Work(engine.StageWork):
    def __call__(self, items, payload):
        time.sleep(0.2)
        return [f"{os.environ['CUDA_VISIBLE_DEVICES']} {os.getpid()}" for _ in items]
rows = []
def commit(chunk, chunk_rows):
    rows.extend(chunk_rows)
stage = engine.Stage(name="teach", work=Work(), num_gpus=0.5)
summary = engine.run(engine.chunks_of(range(80), 1, str), (stage,), commit, None, Engine())
places = {row.split()[0]: {other.split()[1] for other in rows if other.split()[0] == row.split()[0]} for row in rows}
print(sorted((gpu, len(pids)) for gpu, pids in places.items()), list(summary.busy))
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert process.stdout.strip() == "[('0', 2), ('1', 2)] ['teach']", process.stderr[-2000:]
