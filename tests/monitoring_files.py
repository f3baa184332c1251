"""The files of `monitoring/`, as tests read them."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

from ruamel.yaml import YAML

from loose_files import load

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
    return load("monitoring/dashboard.py")
