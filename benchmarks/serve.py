"""Requests a second and latencies of `voxstill serve` under load, switches of the version, and overload.

    python benchmarks/serve.py exp/2026-11-22_mine --audio recordings --clients 1 8 32 --seconds 20

A server of its own serves the model on loopback. Each client sends one recording after another, as soon as the last
is answered. Then the version is switched once a second under load, and at last more is sent than may wait. Prints a
table and writes `benchmarks/results/serve.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

HERE = Path(__file__).parent
ADMIN_KEY = "key-of-the-benchmark"
SWITCHES = 10


@dataclass(frozen=True)
class Row:
    """One load."""

    name: str
    clients: int
    requests: int
    requests_per_s: float
    p50_ms: float
    p95_ms: float
    max_ms: float
    mean_batch: float
    statuses: dict[str, int]


def main() -> None:
    """Measure every load, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--audio", type=Path, required=True, help="folder of short recordings")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--engine", default="auto")
    args = parser.parse_args()
    paths = sorted(path for path in args.audio.rglob("*") if path.suffix in (".wav", ".flac"))
    recordings = [path.read_bytes() for path in paths[:200]]
    rows: list[Row] = []
    print("| load | clients | requests/s | p50, ms | p95, ms | longest, ms | mean batch | answers |")
    print("|---|---|---|---|---|---|---|---|")

    def add(row: Row) -> None:
        rows.append(row)
        statuses = ", ".join(f"{count} {status}" for status, count in row.statuses.items())
        print(f"| {row.name} | {row.clients} | {row.requests_per_s:.1f} | {row.p50_ms:.0f} | {row.p95_ms:.0f} ", end="")
        print(f"| {row.max_ms:.0f} | {row.mean_batch:.2f} | {statuses} |", flush=True)

    with server(args.model, args.engine) as url:
        for num_clients in args.clients:
            add(asyncio.run(load(url, "steady", recordings, num_clients, args.seconds)))
        switch = switches(url, args.model, args.seconds)
        add(asyncio.run(load(url, "switches", recordings, max(args.clients), args.seconds, switch)))
    with server(args.model, args.engine, "serve.max_queue_s=4") as url:
        add(asyncio.run(load(url, "overload", recordings, 4 * max(args.clients), args.seconds)))
    result = {
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "engine": args.engine,
        "rows": [asdict(row) for row in rows],
    }
    (HERE / "results/serve.json").write_text(json.dumps(result, indent=1) + "\n")


@contextlib.contextmanager
def server(model: str, engine: str, *settings: str) -> Iterator[str]:
    """The address of a server of the model, which stops at the end of the block."""
    command = [sys.executable, "-m", "voxstill", "serve", f"model={model}", "--port", "0", "--engine", engine]
    for setting in ("serve.grace_s=0", *settings):
        command += ["--set", setting]
    environment = os.environ | {"VOXSTILL_ADMIN_KEY": ADMIN_KEY}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            if not url:
                log.seek(0)
                sys.exit(log.read())
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)


async def load(
    url: str,
    name: str,
    recordings: Sequence[bytes],
    num_clients: int,
    seconds: float,
    beside: Callable[[httpx.AsyncClient], Awaitable[None]] | None = None,
) -> Row:
    """The figures of so many clients for so long, while something else goes on."""
    times_s: list[float] = []
    statuses: Counter[str] = Counter()
    limits = httpx.Limits(max_connections=num_clients + 4)
    before = batches(url)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:
        start_s = time.perf_counter()

        async def ask(number: int) -> None:
            choice = random.Random(number)
            while time.perf_counter() - start_s < seconds:
                files = {"file": ("a.flac", choice.choice(recordings))}
                asked_s = time.perf_counter()
                try:
                    answer = await client.post(f"{url}/v1/audio/transcriptions", files=files, data={"model": "model"})
                    statuses[str(answer.status_code)] += 1
                except httpx.HTTPError as error:
                    statuses[type(error).__name__] += 1
                    continue
                if answer.status_code == 200:
                    times_s.append(time.perf_counter() - asked_s)
                else:
                    await asyncio.sleep(0.1)  # a client that waited for Retry-After would end the overload

        jobs: list[Awaitable[None]] = [ask(number) for number in range(num_clients)]
        await asyncio.gather(*jobs, *([] if beside is None else [beside(client)]))
        elapsed_s = time.perf_counter() - start_s
    after = batches(url)
    p50_s, p95_s, max_s = np.quantile(times_s, [0.5, 0.95, 1]) if times_s else (np.nan,) * 3
    return Row(
        name=name,
        clients=num_clients,
        requests=len(times_s),
        requests_per_s=round(len(times_s) / elapsed_s, 2),
        p50_ms=round(1000 * p50_s, 1),
        p95_ms=round(1000 * p95_s, 1),
        max_ms=round(1000 * max_s, 1),
        mean_batch=round((after[0] - before[0]) / max(1, after[1] - before[1]), 3),
        statuses=dict(statuses),
    )


def switches(url: str, model: str, seconds: float) -> Callable[[httpx.AsyncClient], Awaitable[None]]:
    """Switch to a new version of the same model `SWITCHES` times."""

    async def switch(client: httpx.AsyncClient) -> None:
        for _ in range(SWITCHES):
            await asyncio.sleep(seconds / (SWITCHES + 1))
            body = {"name": "model", "model": model}
            headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
            (await client.post(f"{url}/admin/switch", json=body, headers=headers)).raise_for_status()

    return switch


def batches(url: str) -> tuple[float, float]:
    """How many utterances were transcribed so far, and in how many batches."""
    sums: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(httpx.get(f"{url}/metrics").text):
        for sample in family.samples:
            sums[sample.name] += sample.value
    return sums["voxstill_batch_utterances_sum"], sums["voxstill_batch_utterances_count"]


if __name__ == "__main__":
    main()
