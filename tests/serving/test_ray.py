"""The server on Ray: equal answers from replicas, one of which may die; the builder for a RayService."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
import yaml

from serving_process import wav_of
from tones import TEXTS
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError
from waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples/cluster/rayservice.yml"


@pytest.fixture(scope="module")
def on_ray(exported_tone_student: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """Address and process of a server with two replicas."""
    log = tmp_path_factory.mktemp("ray") / "serve.log"
    command = [sys.executable, "-m", "voxstill", "serve", f"tone={exported_tone_student}", "--ray", "--port", "0"]
    for setting in ("serve.min_replicas=2", "serve.max_replicas=2", "serve.replica_cpus=0.1"):
        command += ["--set", setting]
    environment = os.environ | {"VOXSTILL_API_KEYS": "key-of-the-tests"}
    with (
        log.open("w") as messages,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=messages, text=True, env=environment, start_new_session=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url, log.read_text()
            yield url, process.pid
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0, log.read_text()
        finally:
            process.kill()


def replicas(server: int) -> list[int]:
    """The processes of replicas that a server's Ray has."""

    def children(pid: int) -> list[int]:
        listed = Path(f"/proc/{pid}/task").glob("*/children")
        return [int(child) for path in listed for child in path.read_text().split()]

    replicas, waiting = [], [server]
    while waiting:
        pid = waiting.pop()
        try:
            waiting += children(pid)
            if b"ServeReplica" in Path(f"/proc/{pid}/cmdline").read_bytes():
                replicas.append(pid)
        except OSError:
            continue  # it has ended
    return replicas


@pytest.mark.slow
def test_replicas_answer_as_one_server_does(on_ray: tuple[str, int]) -> None:
    url, _ = on_ray
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="key-of-the-tests", max_retries=0)
    for _ in range(8):
        answer = client.audio.transcriptions.create(model="tone", file=("a.wav", wav_of()))
        assert answer.text == TEXTS[0]
    deltas = list(client.audio.transcriptions.create(model="tone", file=("a.wav", wav_of()), stream=True))
    assert deltas[-1].type == "transcript.text.done"
    assert deltas[-1].text == TEXTS[0]
    assert client.models.list().data[0].id == "tone"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0).models.list()
    answer = httpx.get(f"{url}/metrics", headers={"Authorization": "Bearer key-of-the-tests"})
    assert answer.status_code == 404
    assert "one of several replicas" in answer.json()["error"]["message"]


@pytest.mark.slow
def test_a_replica_that_dies_is_replaced(on_ray: tuple[str, int]) -> None:
    url, server = on_ray
    before = replicas(server)
    assert len(before) == 2
    os.kill(before[0], signal.SIGKILL)
    until(lambda: len(set(replicas(server)) - set(before)) == 1, 100)
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="key-of-the-tests", max_retries=0)
    for _ in range(4):
        assert client.audio.transcriptions.create(model="tone", file=("a.wav", wav_of())).text == TEXTS[0]


BUILD = """
import json, sys
from voxstill.core.errors import ConfigError
from voxstill.pipeline import serve_on_ray
for arguments in map(json.loads, sys.argv[1:]):
    try:
        deployment = serve_on_ray.application(arguments)._bound_deployment
    except ConfigError as error:
        print(error.what)
    else:
        scaling = deployment._deployment_config.autoscaling_config
        print(deployment.name, scaling.min_replicas, scaling.max_replicas)
"""


def test_the_example_of_a_rayservice_builds_an_application_and_its_arguments_are_checked(
    exported_tone_student: Path,
) -> None:
    """In a process of its own: Ray Serve changes what is logged where."""
    service = yaml.safe_load(EXAMPLE.read_text())
    assert (service["apiVersion"], service["kind"]) == ("ray.io/v1", "RayService")
    [application] = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    assert application["import_path"] == "voxstill.pipeline.serve_on_ray:application"
    good = {**application["args"], "models": f"tone={exported_tone_student}"}
    bad = ({"models": "m=x", "engine": "jax"}, {"models": "m=x", "serve.replicas": "3"}, {"models": "m=x@0"})
    command = [sys.executable, "-c", BUILD, *map(json.dumps, (good, *bad))]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200).stdout.splitlines()
    assert lines[0] == "voxstill 2 8"
    assert "unknown engine `jax`" in lines[1]
    assert "serve.replicas" in lines[2]
    assert "no traffic" in lines[3]


def test_replicas_need_a_range() -> None:
    with pytest.raises(ConfigError, match=r"`serve\.max_replicas` is 2"):
        Config.model_validate({"serve": {"min_replicas": 3, "max_replicas": 2}})
