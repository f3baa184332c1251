"""What trainings of the tests learn from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from narrow_models import narrow_models
from tones import write_shards
from voxstill.storage.store import Store


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder with shards of tones."""
    folder: Path = tmp_path_factory.mktemp("work")
    write_shards(Store(str(folder)), "shards/r", {"train": 24, "dev": 4})
    return folder


@pytest.fixture(scope="module")
def narrow() -> Iterator[None]:
    """Models that are built in this process are narrow, those of commands too."""
    with narrow_models():
        yield
