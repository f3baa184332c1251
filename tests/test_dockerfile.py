"""The Dockerfile: without a finding of its linter, with files and extras that there are, and enough for its probes."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_the_linter_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, ROOT / "Dockerfile"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_it_copies_and_installs_exists() -> None:
    copied = [name for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.M) for name in line.split()[:-1]]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = re.findall(r"^ARG EXTRAS=(.*)$", DOCKERFILE, re.M)[0].split(",")
    assert set(extras) <= set(project["optional-dependencies"])


def test_the_image_with_cuda_has_the_compiler_that_triton_needs() -> None:
    [install] = re.findall(r"^RUN if \[ -z .*?fi$", DOCKERFILE, re.M | re.S)
    assert "${TORCH_INDEX}" in install
    assert {"gcc", "libc6-dev"} <= set(install.split())


def test_the_workers_of_a_rayservice_are_probed_without_a_program_that_the_image_lacks() -> None:
    """KubeRay asks Ray of 2.53 or newer by HTTP, but the proxies of Ray Serve on workers by wget."""
    service = yaml.safe_load((ROOT / "examples/cluster/rayservice.yml").read_text(encoding="utf-8"))
    cluster = service["spec"]["rayClusterConfig"]
    assert tuple(map(int, cluster["rayVersion"].split("."))) >= (2, 53)
    for group in cluster["workerGroupSpecs"]:
        [worker] = group["template"]["spec"]["containers"]
        assert worker["readinessProbe"]["httpGet"] == {"path": "/-/healthz", "port": 8000}
