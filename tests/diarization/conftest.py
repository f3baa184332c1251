"""Speech of several voices, and the simulator of conversations of the benchmarks."""

from __future__ import annotations

import importlib.util
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def conversations() -> ModuleType:
    """`benchmarks/conversations.py`, which is in no package."""
    spec = importlib.util.spec_from_file_location(
        "conversations", Path(__file__).parents[2] / "benchmarks/conversations.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where a dataclass looks for its own module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def embedded_weights() -> None:
    """Skips the test where the wheel with the weights is not installed."""
    try:
        distribution("resemblyzer")
    except PackageNotFoundError:
        pytest.skip("the wheel of Resemblyzer, which has the weights, is not installed")
