"""Requests a second and latencies of `voxstill serve` under load, switches, restarts, a split, a shadow, and overload.

    python benchmarks/serve.py mine-onnx --audio recordings --clients 1 8 32 --seconds 20

Servers of its own serve the model on loopback. Each client sends one recording after another, as soon as the last is
answered, over a connection of its own, and never a second time. With `--sherpa` the server of sherpa-onnx (from
`pip install sherpa-onnx-bin`) serves the same export beside it, in the same run; it is sent samples, which it need not
decode. Prints a table and writes `benchmarks/results/serve.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import platform
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import soundfile
import websockets
from prometheus_client.parser import text_string_to_metric_families

HERE = Path(__file__).parent
ADMIN_KEY = "key-of-the-benchmark"
BOUNDARY = "boundary-of-the-benchmark"
SPLIT_REQUESTS = 2000
PATIENCE_S = 0.1
"""A refused client asks again after this: one that waited for Retry-After would end the overload."""
_SHERPA_BYTES = 1 << 20


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
    answers: dict[str, int]
    versions: dict[str, int]


@dataclass
class Server:
    """A server process; `url` changes where it is started again."""

    process: subprocess.Popen[str]
    url: str
    takes_requests: bool = True

    @property
    def rss_mb(self) -> float:
        """Resident memory of the server and its decoders."""
        pages = 0
        for pid in (self.process.pid, *children(self.process.pid)):
            with contextlib.suppress(OSError):
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    """Measure every load, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--audio", type=Path, required=True, help="folder of short recordings")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--switches", type=int, default=50)
    parser.add_argument("--restarts", type=int, default=10)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--sherpa", metavar="PATH", help="sherpa-onnx-offline-websocket-server, measured beside it")
    args = parser.parse_args()
    paths = sorted(path for path in args.audio.rglob("*") if path.suffix in (".wav", ".flac"))
    recordings = [path.read_bytes() for path in paths[:200]]
    bodies = [form(recording, "model") for recording in recordings]
    most = max(args.clients)
    rows: list[Row] = []
    print("| load | clients | requests/s | p50, ms | p95, ms | longest, ms | mean batch | answers |")
    print("|---|---|---|---|---|---|---|---|")

    def add(row: Row) -> Row:
        rows.append(row)
        answers = ", ".join(f"{count} of {status}" for status, count in row.answers.items())
        print(f"| {row.name} | {row.clients} | {row.requests_per_s:.1f} | {row.p50_ms:.0f} | {row.p95_ms:.0f} ", end="")
        print(f"| {row.max_ms:.0f} | {row.mean_batch:.2f} | {answers} |", flush=True)
        return row

    messages = [sherpa_message(recording) for recording in recordings]
    with server(args.model, args.engine) as one, sherpa_server(args.sherpa, args.model) as peer:
        for num_clients in args.clients:
            add(measured([one.url], "steady", bodies, num_clients, args.seconds))
            if peer is not None:
                add(measured([peer], "sherpa-onnx", messages, num_clients, args.seconds))
        before_mb = one.rss_mb
        switching = switches(one, args.model, args.switches)
        add(measured([one.url], f"{args.switches} switches", bodies, most, None, switching))
        rss_mb = before_mb, one.rss_mb
    print(f"memory before and after the switches: {rss_mb[0]:.0f} MB, {rss_mb[1]:.0f} MB")
    with server(args.model, args.engine) as one:
        plain = add(measured([one.url], "without shadow", bodies, 8, args.seconds))
        admin(one.url, "/switch", {"name": "model", "model": args.model, "weight": 0, "version": "new"})
        admin(one.url, "/shadow", {"name": "model", "version": "new", "share": 0.1})
        shadowed = add(measured([one.url], "a tenth to a shadow", bodies, 8, args.seconds))
        admin(one.url, "/shadow", {"name": "model", "version": None})
        admin(one.url, "/weights", {"name": "model", "weights": {"v1": 90, "new": 10}})
        split = add(measured([one.url], "split 90/10", bodies, 8, None, requests=SPLIT_REQUESTS))
    with server(args.model, args.engine, "serve.max_queue_s=120") as one:
        add(measured([one.url], "twice the clients", bodies, 2 * most, args.seconds))
    with server(args.model, args.engine, f"serve.max_queue_s={2 * most}") as one:
        add(measured([one.url], "overload", bodies, 4 * most, args.seconds))
    two = [start(args.model, args.engine, "serve.grace_s=0.5") for _ in range(2)]
    try:
        restarting = restarts(two, args.model, args.engine, args.restarts)
        row = measured(two, f"{args.restarts} restarts", bodies, 16, None, restarting)
        add(row)
    finally:
        for one in two:
            stop(one)
    result = {
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "engine": args.engine,
        "rss_mb_around_switches": [round(value, 1) for value in rss_mb],
        "shadow_adds_p95_ms": round(shadowed.p95_ms - plain.p95_ms, 1),
        "split": split.versions,
        "rows": [asdict(row) for row in rows],
    }
    (HERE / "results/serve.json").write_text(json.dumps(result, indent=1) + "\n")


@contextlib.contextmanager
def server(model: str, engine: str, *settings: str) -> Iterator[Server]:
    """A server of the model, which stops at the end of the block."""
    one = start(model, engine, "serve.grace_s=0", *settings)
    try:
        yield one
    finally:
        stop(one)


def start(model: str, engine: str, *settings: str) -> Server:
    """Start a server, and return when it is ready."""
    command = [sys.executable, "-m", "voxstill", "serve", f"model={model}", "--port", "0", "--engine", engine]
    for setting in settings:
        command += ["--set", setting]
    environment = os.environ | {"VOXSTILL_ADMIN_KEY": ADMIN_KEY}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            log.seek(0)
            sys.exit(log.read())
    return Server(process, url)


def stop(one: Server) -> None:
    """End a server as an orchestrator does."""
    one.process.send_signal(signal.SIGTERM)
    one.process.wait(120)


def form(recording: bytes, model: str) -> bytes:
    """The body of a request."""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="model"\r\n\r\n{model}\r\n'
    head += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.flac"\r\n\r\n'
    return head.encode() + recording + f"\r\n--{BOUNDARY}--\r\n".encode()


@contextlib.contextmanager
def sherpa_server(binary: str | None, model: str) -> Iterator[str | None]:
    """The address of sherpa-onnx's server of an exported CTC student; None without one."""
    if binary is None:
        yield None
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = Path(model).resolve()
    options = [f"--port={port}", f"--nemo-ctc-model={folder}/model.onnx", f"--tokens={folder}/tokens.txt"]
    options += ["--num-threads=1", "--num-work-threads=1", "--num-io-threads=1", "--max-batch-size=32"]
    quiet = subprocess.DEVNULL
    with tempfile.TemporaryDirectory() as logs:  # it writes log.txt into the folder that it runs in
        process = subprocess.Popen([str(Path(binary).resolve()), *options], stdout=quiet, stderr=quiet, cwd=logs)
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        yield f"ws://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def sherpa_message(recording: bytes) -> bytes:
    """A recording as that server takes it: rate, number of bytes, samples."""
    samples_T, rate_hz = soundfile.read(io.BytesIO(recording), dtype="float32")
    return struct.pack("<ii", rate_hz, samples_T.nbytes) + bytes(samples_T)


class SherpaClient:
    """A client of sherpa-onnx's server, with one connection."""

    def __init__(self) -> None:
        self._connection: websockets.ClientConnection | None = None

    async def post(self, url: str, body: bytes) -> tuple[int, str]:
        """200, and no version, when there is an answer."""
        if self._connection is None:
            self._connection = await websockets.connect(url, compression=None)
        for start in range(0, len(body), _SHERPA_BYTES):
            await self._connection.send(body[start : start + _SHERPA_BYTES])
        await self._connection.recv()
        return 200, ""

    async def close(self) -> None:
        """Say goodbye."""
        if self._connection is not None:
            await self._connection.send("Done")
            await self._connection.close()
        self._connection = None


class Client:
    """A client with one connection, which speaks as little HTTP as will do: it shares the cores with the server."""

    def __init__(self) -> None:
        self._url = ""
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, url: str, body: bytes) -> tuple[int, str]:
        """Status and version of an answer; OSError or EOFError where there is none."""
        if url != self._url or self._writer is None or self._writer.is_closing():
            await self.close()
            address = urlsplit(url)
            self._reader, self._writer = await asyncio.open_connection(address.hostname, address.port)
            self._url = url
        head = (
            "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: server\r\n"
            f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        await self._reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            await self.close()
        return int(lines[0].split()[1]), headers.get("x-voxstill-version", "")

    async def close(self) -> None:
        """Close the connection."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None


def measured(
    servers: Sequence[str | Server],
    name: str,
    bodies: Sequence[bytes],
    num_clients: int,
    seconds: float | None,
    beside: Callable[[], Awaitable[None]] | None = None,
    requests: int | None = None,
) -> Row:
    """The figures of so many clients for so long, until so many requests, or until what goes on beside has ended."""
    return asyncio.run(load(servers, name, bodies, num_clients, seconds, beside, requests))


async def load(
    servers: Sequence[str | Server],
    name: str,
    bodies: Sequence[bytes],
    num_clients: int,
    seconds: float | None,
    beside: Callable[[], Awaitable[None]] | None,
    requests: int | None,
) -> Row:
    """See `measured`."""
    times_s: list[float] = []
    answers: Counter[str] = Counter()
    versions: Counter[str] = Counter()
    asked = 0
    is_over = asyncio.Event()
    before = batches(servers[0])
    start_s = time.perf_counter()

    def goes_on() -> bool:
        in_time = seconds is None or time.perf_counter() - start_s < seconds
        return in_time and not is_over.is_set() and (requests is None or asked < requests)

    async def ask(number: int) -> None:
        nonlocal asked
        choice = random.Random(number)
        client = SherpaClient() if str(servers[0]).startswith("ws:") else Client()
        while goes_on():
            asked += 1
            ready = [one for one in servers if isinstance(one, str) or one.takes_requests]
            target = choice.choice(ready)
            sent_s = time.perf_counter()
            try:
                status, version = await client.post(
                    target if isinstance(target, str) else target.url, choice.choice(bodies)
                )
            except (OSError, EOFError) as error:
                answers[type(error).__name__] += 1
                await client.close()
                continue
            answers[str(status)] += 1
            versions[version] += 1
            if status == 200:
                times_s.append(time.perf_counter() - sent_s)
            else:
                await asyncio.sleep(PATIENCE_S)
        await client.close()

    async def other() -> None:
        if beside is not None:
            await beside()
            is_over.set()

    await asyncio.gather(other(), *(ask(number) for number in range(num_clients)))
    elapsed_s = time.perf_counter() - start_s
    after = batches(servers[0])
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
        answers=dict(answers),
        versions=dict(versions),
    )


def switches(one: Server, model: str, num: int) -> Callable[[], Awaitable[None]]:
    """Switch to a new version of the same model so often, one after another."""

    async def switch() -> None:
        for _ in range(num):
            await asyncio.to_thread(admin, one.url, "/switch", {"name": "model", "model": model})
            await asyncio.sleep(0.2)

    return switch


def restarts(servers: Sequence[Server], model: str, engine: str, num: int) -> Callable[[], Awaitable[None]]:
    """Stop one of the servers with SIGTERM and start another in its place so often, as a rolling update does."""

    def wait_until_not_ready(one: Server) -> None:
        while True:
            try:
                with urllib.request.urlopen(f"{one.url}/ready", timeout=10):
                    time.sleep(0.02)
            except OSError:  # 503 among them
                return

    async def restart() -> None:
        for number in range(num):
            one = servers[number % len(servers)]
            one.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(wait_until_not_ready, one)
            one.takes_requests = False  # what a load balancer does
            await asyncio.to_thread(one.process.wait, 120)
            new = await asyncio.to_thread(start, model, engine, "serve.grace_s=0.5")
            one.process, one.url, one.takes_requests = new.process, new.url, True
            await asyncio.sleep(0.5)

    return restart


def admin(url: str, path: str, body: Mapping[str, object]) -> None:
    """Change something by the administration."""
    request = urllib.request.Request(f"{url}/admin{path}", data=json.dumps(body).encode())
    request.add_header("Authorization", f"Bearer {ADMIN_KEY}")
    with urllib.request.urlopen(request, timeout=120):
        pass


def batches(one: str | Server) -> tuple[float, float]:
    """How many utterances were transcribed so far, and in how many batches; zeros for a server without the figures."""
    sums: defaultdict[str, float] = defaultdict(float)
    try:
        with urllib.request.urlopen(f"{one if isinstance(one, str) else one.url}/metrics", timeout=60) as answer:
            text = answer.read().decode()
    except (OSError, ValueError):
        return 0.0, 0.0
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] += sample.value
    return sums["voxstill_batch_utterances_sum"], sums["voxstill_batch_utterances_count"]


def children(pid: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    listed = Path(f"/proc/{pid}/task").glob("*/children")
    direct = [int(child) for path in listed for child in path.read_text().split()]
    return [descendant for child in direct for descendant in (child, *children(child))]


if __name__ == "__main__":
    main()
