"""How many teachers one driver feeds: chunks a second of the engine under Ray, and what its driver takes.

    python benchmarks/driver.py

A chunk is 256 utterances of 5 s, which a teacher at 1,000 times real time takes 1.28 s for: so long do teachers wait
here, without audio and without a model. `ray`: actors of a real Ray on this machine, as many as fit. `stub`: Ray's
calls are answered by a thread of this process after the same time, for more teachers than a machine holds; what Ray
itself takes for a call is not in it. `parts`: that many drivers at once, each with its share of the teachers, as
`--part` makes them. CPU seconds of `ray` are those of the driver's process, of `stub` those of its thread. Prints a
table and writes `benchmarks/results/driver.json`.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import os
import platform
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from voxstill import engine
from voxstill.core.config import Engine
from voxstill.engine import ray_cluster
from voxstill.engine.ray_workers import CallStatus

HERE = Path(__file__).parent
CHUNK = 256
TEACHER_S = CHUNK * 5 / 1000
DECODE_S = 0.02
CHUNKS_OF_TEACHER = 8
CASES = (
    ("ray", 64, 1, 1),
    ("ray", 32, 1, 16),
    ("stub", 64, 1, 1),
    ("stub", 512, 1, 1),
    ("stub", 4096, 1, 1),
    ("stub", 4096, 4, 1),
)
"""Kind, teachers, drivers, and how many times as quick the teachers are."""


@dataclass(frozen=True)
class Row:
    """One number of teachers; `wanted` are the chunks a second that keep all of them busy."""

    kind: str
    teachers: int
    parts: int
    quick: int
    wanted: float
    chunks_per_s: float
    driver_cpu: float
    driver_mb: float


class Wait(engine.StageWork):
    """Takes so long over each chunk, and returns a row for each item."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, items: Sequence[int], payload: object) -> Sequence[int]:
        """Wait."""
        time.sleep(self.seconds)
        return items


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default=str(HERE / "results/driver.json"))
    parser.add_argument("--drive", nargs=3, help=argparse.SUPPRESS)  # what a child does
    args = parser.parse_args()
    if args.drive:
        print(json.dumps(drive(args.drive[0], *map(int, args.drive[1:]))))
        return
    rows = [measure(*case) for case in CASES]
    machine = f"{os.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[0]:.1f}"
    Path(args.output).write_text(
        json.dumps({"machine": machine, "rows": [asdict(row) for row in rows]}, indent=1) + "\n"
    )
    print(
        "| Ray | teachers | drivers | chunks/s wanted | chunks/s | driver, cores | driver, MB |\n"
        "|---|---|---|---|---|---|---|"
    )
    for row in rows:
        teachers = f"{row.teachers:,}" + (f", {row.quick} times as quick" if row.quick > 1 else "")
        print(
            f"| {row.kind} | {teachers} | {row.parts} | {row.wanted:,.0f} | {row.chunks_per_s:,.0f} |"
            f" {row.driver_cpu:.2f} | {row.driver_mb:,.0f} |"
        )


def measure(kind: str, teachers: int, parts: int, quick: int) -> Row:
    """One case; the drivers are processes of their own."""
    command = [sys.executable, __file__, "--drive", kind, str(teachers // parts), str(quick)]
    drivers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(parts)]
    outputs = [driver.communicate()[0] for driver in drivers]
    figures = [json.loads(output.splitlines()[-1]) for output in outputs]
    return Row(
        kind=kind,
        teachers=teachers,
        parts=parts,
        quick=quick,
        wanted=quick * teachers / TEACHER_S,
        chunks_per_s=sum(rate for rate, _, _ in figures),
        driver_cpu=max(cpu for _, cpu, _ in figures),
        driver_mb=max(mb for _, _, mb in figures),
    )


def drive(kind: str, teachers: int, quick: int) -> tuple[float, float, float]:
    """Chunks a second, cores and megabytes of one driver, in the second half of its chunks."""
    if kind == "stub":
        ray_cluster.start_ray = lambda cfg: StubRay()
    commits: list[tuple[float, float]] = []
    num_chunks = teachers * CHUNKS_OF_TEACHER * (4 * quick if kind == "ray" else 1)  # its processes start meanwhile
    cpu_s: Callable[[], float] = time.process_time
    decoders = max(2, round(2 * quick * teachers * DECODE_S / TEACHER_S))
    stages = [
        engine.Stage(name="decode", work=Wait(DECODE_S), workers=decoders, num_cpus=1e-3),
        engine.Stage(name="teach", work=Wait(TEACHER_S / quick), workers=teachers, num_cpus=1e-3),
    ]
    if kind == "stub":  # of the thread that `run` is called from: the answers come from another one
        clock = time.pthread_getcpuclockid(threading.get_ident())
        cpu_s = lambda: time.clock_gettime(clock)  # noqa: E731
    chunks = (engine.Chunk(str(number), tuple(range(CHUNK))) for number in range(num_chunks))
    engine.run(
        chunks, stages, lambda chunk, rows: commits.append((time.monotonic(), cpu_s())), lambda item, why: why, Engine()
    )
    commits.sort()
    middle = max(teachers, num_chunks // 2)
    first, last = commits[middle], commits[-teachers]  # while all teachers work
    seconds = last[0] - first[0]
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return (num_chunks - teachers - middle) / seconds, (last[1] - first[1]) / seconds, peak_mb


class StubRay:
    """As much of Ray as the engine asks of it; every call is answered when its worker would have been done."""

    def __init__(self) -> None:
        self.exceptions = SimpleNamespace(RayTaskError=KeyError, ObjectLostError=KeyError, RayError=KeyError)
        self._due: list[tuple[float, int, Future[Any], object]] = []
        self._numbers, self._wake = itertools.count(), threading.Condition()
        threading.Thread(target=self._answer, daemon=True).start()

    def remote(self, _: type) -> StubRay:
        """The class of all actors."""
        return self

    def options(self, **_: object) -> SimpleNamespace:
        """As Ray has it."""
        return SimpleNamespace(remote=lambda _: StubActor(self))

    def finish(self, at_s: float, value: object) -> SimpleNamespace:
        """A reference to what is there at some time."""
        future: Future[Any] = Future()
        with self._wake:
            heapq.heappush(self._due, (at_s, next(self._numbers), future, value))
            if self._due[0][2] is future:
                self._wake.notify()
        return SimpleNamespace(future=lambda: future)

    def _answer(self) -> None:
        while True:
            with self._wake:
                while not self._due or self._due[0][0] > time.monotonic():
                    self._wake.wait(self._due[0][0] - time.monotonic() if self._due else None)
                _, _, future, value = heapq.heappop(self._due)
            future.set_result(value)

    def get(self, payload: object, timeout: float) -> object:
        """The rows."""
        return payload

    def wait(self, *_: object, **__: object) -> None:
        """Nothing is closed."""

    def kill(self, _: object) -> None:
        """Nothing is killed."""

    def nodes(self) -> list[dict[str, Any]]:
        """One node."""
        return [{"NodeID": "1", "Alive": True, "Resources": self.cluster_resources()}]

    def cluster_resources(self) -> dict[str, float]:
        """As many CPUs as are asked for."""
        return {"CPU": 1e6}

    available_resources = cluster_resources


class StubActor:
    """A worker that takes one call after the other."""

    def __init__(self, ray: StubRay) -> None:
        self._ray, self._free_s, self._seconds = ray, 0.0, 0.0
        self.open = SimpleNamespace(remote=self._open)
        self.close = SimpleNamespace(remote=lambda: ray.finish(0.0, None))
        self.call = SimpleNamespace(options=lambda num_returns: SimpleNamespace(remote=self._call))

    def _open(self, name: str, work: Wait) -> SimpleNamespace:
        self._seconds = work.seconds
        return self._ray.finish(0.0, None)

    def _call(self, items: Sequence[int], payload: object) -> Iterator[object]:
        self._free_s = max(self._free_s, time.monotonic()) + self._seconds
        return iter((self._ray.finish(self._free_s, CallStatus(None)), items))


if __name__ == "__main__":
    main()
