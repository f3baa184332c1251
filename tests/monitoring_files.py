"""The files of `monitoring/`, as tests read them."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ruamel.yaml import YAML

MONITORING = Path(__file__).parents[1] / "monitoring"
_NAME = re.compile(r"\b(?:voxstill|process)_[a-z0-9_]+\b")


def read_yaml(name: str) -> Any:
    return YAML(typ="safe").load(MONITORING / name)


def rules() -> list[dict[str, Any]]:
    return [rule for group in read_yaml("rules.yml")["groups"] for rule in group["rules"]]


def series_of(expression: str) -> set[str]:
    """The names of metrics in a query."""
    return set(_NAME.findall(expression))


def dashboard() -> ModuleType:
    """`monitoring/dashboard.py`, which is no package."""
    spec = importlib.util.spec_from_file_location("monitoring_dashboard", MONITORING / "dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
