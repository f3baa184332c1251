"""The examples of schedulers start commands that exist, one for each step, and say which part they are."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from command_lines import parse
from voxstill.core import config
from voxstill.storage.parts import Part

EXAMPLES = Path(__file__).parents[2] / "examples/cluster"
STEPS = ["index", "label", "filter", "shard"]


@pytest.fixture
def shims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`voxstill` and `sbatch` that note how they were called, the latter running the first task of the array."""
    folder = tmp_path / "bin"
    folder.mkdir()
    log = tmp_path / "commands"
    note = f'echo "$@" >> {log}\n'
    task = "SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_COUNT=4"
    skip = 'while case "$1" in -*) true ;; *) false ;; esac; do shift; done\n'
    for name, script in (("voxstill", note), ("sbatch", f'{skip}{task} bash "$@" >&2\necho 7\n')):
        (folder / name).write_text("#!/bin/sh\n" + script)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return log


def check(log: Path) -> None:
    commands = [line.split() for line in log.read_text().splitlines()]
    assert [words[0] for words in commands] == STEPS
    for words in commands:
        _, common, values = parse(words)
        assert values["part"] == "auto"
        config.load(None, common.overrides)


def test_the_slurm_array_goes_through_all_steps(shims: Path) -> None:
    subprocess.run(
        ["bash", EXAMPLES / "slurm_parts.sh", "s3://bucket/audio", "s3://bucket/work", "my.yaml"], check=True
    )
    check(shims)


def test_the_kubernetes_job_goes_through_all_steps(shims: Path) -> None:
    template = (EXAMPLES / "parts_job.yml").read_text()
    for step in STEPS:
        job = yaml.safe_load(template.replace("STEP", step))["spec"]
        container = job["template"]["spec"]["containers"][0]
        environment = {row["name"]: row["value"] for row in container["env"]}
        subprocess.run([*container["command"], *container["args"]], env=os.environ | environment, check=True)
        assert Part.parse("auto", environment | {"JOB_COMPLETION_INDEX": "0"}) == Part(1, job["completions"])
    check(shims)
