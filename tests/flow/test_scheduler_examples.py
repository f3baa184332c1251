"""The examples of schedulers start commands that exist, one for each step, and say which part they are."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import voxstill
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


def nested(value: Any) -> Iterator[dict[str, Any]]:
    """All mappings in a manifest."""
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from nested(part)


def manifests() -> list[Any]:
    return [pytest.param(yaml.safe_load(path.read_text()), id=path.stem) for path in sorted(EXAMPLES.glob("*.yml"))]


@pytest.mark.parametrize("manifest", manifests())
def test_a_manifest_has_the_image_of_this_version_and_mounts_the_volumes_of_its_pod(manifest: dict[str, Any]) -> None:
    pods = [part for part in nested(manifest) if "containers" in part]
    assert pods != []
    for pod in pods:
        volumes = {volume["name"] for volume in pod.get("volumes", ())}
        for container in pod["containers"]:
            assert container["image"].endswith(f"/voxstill:{voxstill.__version__}")
            assert {mount["name"] for mount in container.get("volumeMounts", ())} == volumes


@pytest.mark.parametrize("manifest", manifests())
def test_a_cluster_of_a_manifest_has_the_ray_of_the_tests_a_token_and_the_dashboard_that_the_operator_asks(
    manifest: dict[str, Any],
) -> None:
    version = re.search(r"^ray==(\S+)$", (EXAMPLES.parents[1] / "constraints.txt").read_text(), re.M)
    assert version is not None
    clusters = [part for part in nested(manifest) if "headGroupSpec" in part]
    assert len(clusters) == (manifest["apiVersion"] == "ray.io/v1")
    for cluster in clusters:
        assert (cluster["rayVersion"], cluster["authOptions"]) == (version[1], {"mode": "token"})
        assert cluster["headGroupSpec"]["rayStartParams"].get("include-dashboard", "true") == "true"


def test_the_ray_job_runs_a_command_that_parses_on_the_configuration_that_it_mounts() -> None:
    job = yaml.safe_load((EXAMPLES / "rayjob.yml").read_text())
    assert (job["kind"], job["spec"]["shutdownAfterJobFinishes"]) == ("RayJob", True)
    program, *words = shlex.split(job["spec"]["entrypoint"])
    command, common, _ = parse(words)
    assert (program, command.name, config.load(None, common.overrides).engine.address) == ("voxstill", "label", "auto")
    [head] = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
    assert words[words.index("--config") + 1].startswith(head["volumeMounts"][0]["mountPath"])


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.sh")), ids=lambda script: script.stem)
def test_a_script_of_slurm_is_bash(script: Path) -> None:
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
