"""Versions side by side: traffic by weights, switches and the end of the server under load lose no request."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving_process import ADMIN_KEY, ServerProcess, serving, wav_of
from tones import TEXTS
from waiting import until

Status = tuple[int, str | None]
ADMIN = {"Authorization": f"Bearer {ADMIN_KEY}"}


@pytest.fixture
def two_versions(tone_student: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server with two versions of one model, which get 90 and 10 of 100 requests."""
    models = [f"tone={tone_student}@90", f"tone={tone_student}@10"]
    with serving(tmp_path, models, "serve.grace_s=1.5", "serve.drain_s=100") as process:
        yield process


Beside = Callable[[httpx.AsyncClient, Counter[Status]], Awaitable[None]]


async def load(server: ServerProcess, num_clients: int, beside: Beside) -> Counter[Status]:
    """The statuses and versions of answers to clients that ask again and again while something else goes on."""
    answers: Counter[Status] = Counter()
    done = asyncio.Event()
    headers = {"Authorization": f"Bearer {server.key}"}
    limits = httpx.Limits(max_connections=num_clients + 4)
    async with httpx.AsyncClient(timeout=200, limits=limits, headers=headers) as client:

        async def ask(number: int) -> None:
            text = TEXTS[number % 4]
            while not done.is_set():
                form: dict[str, Any] = {"files": {"file": ("a.wav", wav_of(text))}, "data": {"model": "tone"}}
                answer = await client.post(f"{server.url}/v1/audio/transcriptions", **form)
                answers[answer.status_code, answer.headers.get("x-voxstill-version")] += 1
                assert answer.json()["text"] == text

        async def work() -> None:
            try:
                await beside(client, answers)
            finally:
                done.set()

        await asyncio.gather(*map(ask, range(num_clients)), work())
    return answers


async def answered_by(version: str, answers: Counter[Status], num: int = 4) -> None:
    """Return when a version has answered so many requests."""
    while answers[200, version] < num:
        await asyncio.sleep(0.01)


def figures(server: ServerProcess) -> dict[tuple[str, ...], float]:
    """The samples of /metrics by name, version and outcome."""
    text = server.get("/metrics")[1].decode()
    return {
        (sample.name, sample.labels.get("version", ""), sample.labels.get("outcome", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("endpoint", "/v1/audio/transcriptions") == "/v1/audio/transcriptions"
    }


def test_traffic_is_split_by_weights_within_three_sigma(two_versions: ServerProcess) -> None:
    num = 300

    async def ask() -> Counter[Status]:
        answers: Counter[Status] = Counter()
        headers = {"Authorization": f"Bearer {two_versions.key}"}
        async with httpx.AsyncClient(timeout=200, headers=headers) as client:
            limit = asyncio.Semaphore(16)

            async def one() -> None:
                async with limit:
                    form: dict[str, Any] = {"files": {"file": ("a.wav", wav_of("ba"))}, "data": {"model": "tone"}}
                    answer = await client.post(f"{two_versions.url}/v1/audio/transcriptions", **form)
                    answers[answer.status_code, answer.headers["x-voxstill-version"]] += 1

            await asyncio.gather(*(one() for _ in range(num)))
        return answers

    answers: Counter[Status] = Counter()
    for _ in range(2):  # one draw in 400 is not within
        drawn = asyncio.run(ask())
        answers += drawn
        assert set(drawn) == {(200, "v1"), (200, "v2")}
        if is_within := abs(drawn[200, "v2"] - 0.1 * num) < 3 * (num * 0.1 * 0.9) ** 0.5:
            break
    assert is_within
    by_version = figures(two_versions)
    assert by_version["voxstill_requests_total", "v1", ""] == answers[200, "v1"]
    assert by_version["voxstill_batch_utterances_sum", "v2", ""] == answers[200, "v2"]
    assert by_version["voxstill_requests_in_flight", "v1", ""] == 0


def test_switches_under_load_lose_no_request(two_versions: ServerProcess, tone_student: Path) -> None:
    async def switch(client: httpx.AsyncClient, answers: Counter[Status]) -> None:
        for number in range(3):
            body = {"name": "tone", "model": str(tone_student), "version": f"new-{number}"}
            answer = await client.post(f"{two_versions.url}/admin/switch", json=body, headers=ADMIN)
            assert answer.status_code == 200, answer.text
            await answered_by(f"new-{number}", answers)

    answers = asyncio.run(load(two_versions, 8, switch))
    assert {status for status, _ in answers} == {200}
    assert {version for _, version in answers} >= {"v1", "new-0", "new-1", "new-2"}
    until(lambda: not two_versions.admin()[1]["tone"]["draining"])
    assert [row["version"] for row in two_versions.admin()[1]["tone"]["versions"]] == ["new-2"]
    assert "v1 of tone is closed" in two_versions.log.read_text()
    gauges = {version for name, version, _ in figures(two_versions) if name == "voxstill_version_weight"}
    assert gauges == {"new-2"}


def test_the_end_under_load_loses_no_request(two_versions: ServerProcess) -> None:
    async def end(client: httpx.AsyncClient, answers: Counter[Status]) -> None:
        await answered_by("v1", answers)
        os.kill(two_versions.process.pid or 0, signal.SIGTERM)
        while (await client.get(f"{two_versions.url}/ready")).status_code == 200:  # as a load balancer does
            await asyncio.sleep(0.05)
        assert (await client.get(f"{two_versions.url}/health")).status_code == 200

    answers = asyncio.run(load(two_versions, 8, end))
    assert {status for status, _ in answers} == {200}
    two_versions.process.join(200)
    assert two_versions.process.exitcode == 0, two_versions.log.read_text()


def test_a_server_that_cannot_load_a_new_version_goes_on_with_the_old_one(
    two_versions: ServerProcess, tone_student: Path, tmp_path: Path
) -> None:
    status, body = two_versions.admin("/switch", {"name": "tone", "model": str(tmp_path)})
    assert (status, body["error"]["param"], body["error"]["code"]) == (400, "model", "no-model")
    assert two_versions.admin("/switch", {"name": "other", "model": "a"})[0] == 404
    assert two_versions.admin("/switch", {"name": "tone", "model": str(tone_student), "version": "v1"})[0] == 400
    for name in ("версия", "a\r\nb: 1", "\ud800", "a" * 65, "a/b"):
        status, body = two_versions.admin("/switch", {"name": "tone", "model": str(tone_student), "version": name})
        assert (status, body["error"]["param"]) == (400, "version")
    assert [row["version"] for row in two_versions.admin()[1]["tone"]["versions"]] == ["v1", "v2"]


def test_weights_and_shadow_traffic_are_changed_while_it_runs(two_versions: ServerProcess) -> None:
    status, _ = two_versions.admin("/weights", {"name": "tone", "weights": {"v1": 1, "v2": 0}})
    assert status == 200
    assert two_versions.admin("/shadow", {"name": "tone", "version": "v2"})[0] == 200

    async def wait(_: httpx.AsyncClient, answers: Counter[Status]) -> None:
        await answered_by("v1", answers)

    answers = asyncio.run(load(two_versions, 4, wait))
    assert set(answers) == {(200, "v1")}
    num = answers[200, "v1"]
    until(lambda: figures(two_versions).get(("voxstill_shadow_utterances_total", "v2", "equal")) == num)
    assert two_versions.admin()[1]["tone"]["shadow"] == {
        "version": "v2",
        "share": 1.0,
        "equal": num,
        "different": 0,
        "failed": 0,
        "skipped": 0,
    }
    status, body = two_versions.admin("/weights", {"name": "tone", "weights": {"v1": None}})
    assert (status, body["error"]["param"]) == (400, "weights")
    assert two_versions.admin("/weights", {"name": "tone", "weights": {"v1": None, "v2": 1}})[0] == 200
    until(lambda: not two_versions.admin()[1]["tone"]["draining"])
    assert [row["version"] for row in two_versions.admin()[1]["tone"]["versions"]] == ["v2"]
    for path, body in (
        ("/weights", {"name": "tone", "weights": {"v9": 1}}),
        ("/shadow", {"name": "tone", "version": "v9"}),
    ):
        assert two_versions.admin(path, body)[0] == 404
    for body in ({"name": "tone", "weights": {"v2": -1}}, {"name": "tone", "weights": {"v2": "all"}}, {"x": 1}, {}):
        assert two_versions.admin("/weights", body)[0] == 400


def test_two_switches_at_once_do_not_share_a_name(two_versions: ServerProcess, tone_student: Path) -> None:
    async def switch() -> list[int]:
        body = {"name": "tone", "model": str(tone_student), "version": "x", "weight": 1}
        async with httpx.AsyncClient(timeout=200, headers=ADMIN) as client:
            asked = [client.post(f"{two_versions.url}/admin/switch", json=body) for _ in range(3)]
            return [answer.status_code for answer in await asyncio.gather(*asked)]

    assert sorted(asyncio.run(switch())) == [200, 400, 400]
    assert [row["version"] for row in two_versions.admin()[1]["tone"]["versions"]] == ["v1", "v2", "x"]
