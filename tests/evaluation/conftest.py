"""What the tests of results share: the command line, and a corpus with a dev split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from judged import Run, corpus, texts_of_splits
from voxstill import cli


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command; returns its JSON, or as `error` what it says where it ends with another code than 0."""

    def call(*arguments: object, code: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        assert cli.main([*map(str, arguments), "--json", "--log-level", "error"]) == code
        printed = capsys.readouterr()
        return json.loads(printed.out) if code == 0 else {"error": printed.err}

    return call


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The texts of `tones` as test split, each of a speaker, and two of them as dev split."""
    return corpus(tmp_path_factory.mktemp("judged"), texts_of_splits(num_dev=2))
