"""What trainings of the tests learn from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tones import write_shards
from voxstill.storage.store import Store


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder with shards of tones."""
    folder: Path = tmp_path_factory.mktemp("work")
    write_shards(Store(str(folder)), "shards/r", {"train": 24, "dev": 4})
    return folder
