"""Where Ray's processes would wait for memory that they cannot have, the error comes before they start."""

from __future__ import annotations

import subprocess
import sys

import pytest

from voxstill.core.errors import ClusterError
from voxstill.engine import ray_cluster

GB = 1 << 30
PLENTY = {"/dev/shm": 64 * GB, "/tmp": 64 * GB}


def test_where_there_is_room_nothing_is_said() -> None:
    for address_bytes in (None, 16 * GB):
        ray_cluster.check_room(8 * GB, address_bytes, PLENTY)
    ray_cluster.check_room(8 * GB, None, {"/dev/shm": 64 << 20, "/tmp": 9 * GB})  # Ray takes files in /tmp


@pytest.mark.parametrize("address_bytes", [GB, 8 * GB, 10 * GB])
def test_a_limit_of_addresses_that_is_too_low_is_an_error(address_bytes: int) -> None:
    with pytest.raises(ClusterError, match="Ray cannot start") as caught:
        ray_cluster.check_room(8 * GB, address_bytes, PLENTY)
    assert "ulimit -v" in caught.value.why
    assert "engine.object_store_memory" in caught.value.fix


def test_too_little_shared_memory_is_an_error() -> None:
    with pytest.raises(ClusterError, match="Ray cannot start") as caught:
        ray_cluster.check_room(8 * GB, None, {"/dev/shm": 64 << 20, "/tmp": GB})
    assert "67 MB in /dev/shm and 1,074 MB in /tmp" in caught.value.why


def test_under_ulimit_the_error_comes_before_ray_starts() -> None:
    code = (
        "import resource\n"
        "from voxstill import engine\nfrom voxstill.core.config import Engine\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "try:\n    engine.start_ray(Engine(object_store_memory=1 << 30))\n"
        "except engine.ray_cluster.ClusterError as error:\n    print(error.why)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert "ulimit -v" in ended.stdout, ended.stderr[-2000:]
