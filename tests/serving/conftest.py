"""One server for all tests of this folder that do not change it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from serving_process import ServerProcess, serving


@pytest.fixture(scope="session")
def server(tone_student: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the student of the tones as `tone`."""
    with serving(tmp_path_factory.mktemp("server"), [f"tone={tone_student}"]) as process:
        yield process
