"""What the tests of storage share: servers, the environment that points to them, and one store of each kind."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers import SetEnvironment, moto_server, oss_environment, oss_server, s3_environment
from voxstill.storage import clients, retry
from voxstill.storage.store import Store

_numbers = itertools.count()


@pytest.fixture(scope="module")
def s3_port() -> Iterator[int]:
    with moto_server("bucket") as port:
        yield port


@pytest.fixture(scope="module")
def oss_port() -> Iterator[int]:
    with oss_server() as port:
        yield port


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time limits and retries that take a minute elsewhere take a second here."""
    monkeypatch.setattr(clients, "STALL_S", 0.4)
    monkeypatch.setattr(clients, "WHOLE_S", 1.0)
    monkeypatch.setattr(retry, "MAX_RETRIES", 2)
    monkeypatch.setattr(retry, "MAX_PAUSE_S", 0.2)


@pytest.fixture(params=["folder", "file", "memory", "s3", "oss"])
def store(request: pytest.FixtureRequest, tmp_path: Path, set_environment: SetEnvironment) -> Store:
    root = tmp_path / "a folder ü"
    if request.param == "s3":
        set_environment(s3_environment(request.getfixturevalue("s3_port")))
    if request.param == "oss":
        set_environment(oss_environment(request.getfixturevalue("oss_port")))
    roots = {
        "folder": str(root),
        "file": f"file://{root}",
        "memory": f"memory://test-store-{next(_numbers)}",
        "s3": f"s3://bucket/a folder ü/{next(_numbers)}",
        "oss": f"oss://127/a folder ü/{next(_numbers)}",
    }
    return Store(roots[request.param])
