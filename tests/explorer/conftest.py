"""One corpus and one explorer for all tests of this folder that change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from explorer_process import ExplorerProcess, copy_corpus, exploring, make_corpus, make_experiments, write_config
from voxstill.core.config import Config


@pytest.fixture(scope="session")
def fresh_corpus(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A corpus that no explorer has opened, to be copied."""
    return make_corpus(tmp_path_factory.mktemp("fresh"))


@pytest.fixture(scope="session")
def corpus(fresh_corpus: Config, tmp_path_factory: pytest.TempPathFactory) -> Config:
    return copy_corpus(fresh_corpus, tmp_path_factory.mktemp("explored"))


@pytest.fixture(scope="session")
def experiments(corpus: Config, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_experiments(tmp_path_factory.mktemp("experiments"), corpus)


@pytest.fixture(scope="session")
def explorer(
    corpus: Config, experiments: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ExplorerProcess]:
    """An explorer that only reads."""
    folder = tmp_path_factory.mktemp("explorer")
    config = write_config(folder, corpus)
    with exploring(folder, corpus.work, *experiments, "--config", config) as process:
        yield process
