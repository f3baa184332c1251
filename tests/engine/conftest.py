"""A Ray cluster for the tests of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import engine_works
from voxstill import engine
from voxstill.core.config import Engine


@pytest.fixture(scope="module")
def ray(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A cluster of our own, shared by the tests of one file and ended after them."""
    ray = engine.start_ray(Engine())
    for module in (request.module, engine_works):  # workers cannot import a test file
        ray.cloudpickle.register_pickle_by_value(module)
    yield ray
    engine.shutdown()
