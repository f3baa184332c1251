"""What `environment.json` says of the code, the command and the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from voxstill.training import environment


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=n", "-c", "user.email=e@x")
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_commit_of_the_project_and_whether_it_was_changed_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert environment.commit_of(tmp_path) is None
    assert "project" not in environment.commits()
    git(tmp_path, "init", "-q")
    assert environment.commit_of(tmp_path) is None  # without a commit
    (tmp_path / "my.yaml").write_text("one")
    git(tmp_path, "add", "my.yaml")
    git(tmp_path, "commit", "-q", "-m", "one")
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "untracked").touch()
    clean = {"commit": git(tmp_path, "rev-parse", "HEAD"), "dirty": False}
    assert environment.commits()["project"] == clean
    (tmp_path / "my.yaml").write_text("two")
    assert environment.commits()["project"] == {**clean, "dirty": True}


def test_a_package_installed_within_a_repository_is_no_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "-q")
    package = tmp_path / ".venv" / "voxstill"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (tmp_path / "a").touch()
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-q", "-m", "one")
    monkeypatch.setattr(environment, "PACKAGE", package)
    assert "voxstill" not in environment.commits()
    git(tmp_path, "add", "-f", str(package))
    git(tmp_path, "commit", "-q", "-m", "two")
    assert environment.commits()["voxstill"] == {"commit": git(tmp_path, "rev-parse", "HEAD"), "dirty": False}


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert environment.commits() == {}


def test_the_command_line_is_noted_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["voxstill", "train", "my own.yaml", "--set", "teacher.api_key=CANARY"])
    assert environment.command_line() == "voxstill train 'my own.yaml' --set 'teacher.api_key=***'"


def test_a_machine_with_gpus_names_cuda_and_driver() -> None:
    machine = environment.machine()
    assert len(machine["gpus"]) == torch.cuda.device_count()
    if machine["gpus"]:
        assert machine["cuda"]
        assert machine["driver"]
    else:
        assert "cuda" not in machine


@pytest.mark.parametrize("driver", ["own", "a=b"])
def test_no_program_runs_that_a_repository_names_as_a_filter(tmp_path: Path, driver: str) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitattributes").write_text(f"* filter={driver}\n")
    (tmp_path / "my.yaml").write_text("one")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    git(tmp_path, "config", f"filter.{driver}.clean", f"touch {tmp_path / 'ran'}; cat")
    os.utime(tmp_path / "my.yaml", (0, 0))  # git has to look at its content
    commit = environment.commit_of(tmp_path)
    assert commit is not None
    assert commit["dirty"] is (False if driver == "own" else None)
    assert not (tmp_path / "ran").exists()
