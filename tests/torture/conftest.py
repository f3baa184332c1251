"""How much is done: a short form, or a share of the full counts (`TORTURE_SHARE`, which is 1 in `make torture`)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from torture.runs import SHARE


@dataclass(slots=True)
class Torture:
    """One fault: how often it is to come, and the line that says what came of it."""

    reporter: Any
    captured: pytest.CaptureFixture[str]
    since: float = field(default_factory=time.monotonic)

    def count(self, *, short: int, full: int) -> int:
        """How often, between the short form and the full one."""
        return short if SHARE is None else max(short, round(float(SHARE) * full))

    def sample_size(self, num: int, *, short: int) -> int:
        """How many of so many things."""
        return min(num, self.count(short=short, full=num))

    def tell(self, fault: str, outcome: str) -> None:
        """One line, said at once where the full form runs."""
        if SHARE is not None:
            with self.captured.disabled():
                self.reporter.write_line(f"\n{fault}: {outcome} ({time.monotonic() - self.since:.0f} s)")


@pytest.fixture
def torture(pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]) -> Torture:
    return Torture(pytestconfig.pluginmanager.get_plugin("terminalreporter"), capsys)
