"""A Ray cluster for the tests of the engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

import engine_works
from voxstill import engine
from voxstill.core.config import Engine


@pytest.fixture(scope="module")
def ray(request: pytest.FixtureRequest, ray_of_folder: None) -> Any:
    """A cluster of our own, shared by the files of this folder, with resources that no machine has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_OVERRIDE_RESOURCES", json.dumps({"GPU": 2, "big_disk": 2, "voice": 1}))
        ray = engine.start_ray(Engine(object_store_memory=100_000_000))
    for module in (request.module, engine_works):  # workers cannot import a test file
        ray.cloudpickle.register_pickle_by_value(module)
    return ray
