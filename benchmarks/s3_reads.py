"""What reading many small objects from S3 costs the reader: CPU time of `read_many` against threads of boto3.

    python benchmarks/s3_reads.py

The server (moto) is a process of its own, so `process_time` is that of the reader alone. Both read the same 600 objects
of 96 KiB, 16 at a time, in turns; medians over the rounds. Prints a table and writes
`benchmarks/results/s3_reads.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TOKIO_WORKER_THREADS"):
    os.environ[_name] = "1"
sys.path.insert(0, str(HERE.parent / "tests"))


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=600)
    parser.add_argument("--kib", type=int, default=96)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", default=str(HERE / "results/s3_reads.json"))
    args = parser.parse_args()
    from servers import moto_server, s3_environment

    with moto_server("bench") as port:
        os.environ.update(s3_environment(port))
        figures = measure(args)
    Path(args.output).write_text(json.dumps(figures, indent=1) + "\n")
    print("reader | CPU s | wall s | CPU of boto3")
    print("---|---|---|---")
    for name, row in figures["readers"].items():
        print(f"{name} | {row['cpu_s']:.3f} | {row['wall_s']:.3f} | {row['share']:.2f}")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """CPU and wall time of each reader, interleaved, after a round that is not counted."""
    import boto3
    from botocore.config import Config

    from voxstill.storage.fetch import Blob, read_many
    from voxstill.storage.store import Store

    store = Store("s3://bench/objects")
    keys = [f"{i:05d}.flac" for i in range(args.objects)]
    for key in keys:
        store.replace(key, os.urandom(args.kib * 1024))
    client = boto3.client(
        "s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], config=Config(max_pool_connections=args.concurrency)
    )

    def voxstill_read_many() -> int:
        blobs = read_many([store.uri(key) for key in keys], concurrency=args.concurrency)
        return sum(len(blob.data) for blob in blobs if isinstance(blob, Blob))

    def boto3_threads() -> int:
        def get(key: str) -> int:
            return len(client.get_object(Bucket="bench", Key=f"objects/{key}")["Body"].read())

        with ThreadPoolExecutor(args.concurrency) as pool:
            return sum(pool.map(get, keys))

    readers: dict[str, Callable[[], int]] = {"voxstill read_many": voxstill_read_many, "boto3 threads": boto3_threads}
    cpu_s: dict[str, list[float]] = {name: [] for name in readers}
    wall_s: dict[str, list[float]] = {name: [] for name in readers}
    for round_ in range(args.rounds + 1):
        for name, read in readers.items():
            cpu, wall = time.process_time(), time.perf_counter()
            if read() != args.objects * args.kib * 1024:
                raise SystemExit(f"{name} did not read everything")
            if round_:
                cpu_s[name].append(time.process_time() - cpu)
                wall_s[name].append(time.perf_counter() - wall)
    base = statistics.median(cpu_s["boto3 threads"])
    return {
        "objects": args.objects,
        "kib": args.kib,
        "concurrency": args.concurrency,
        "rounds": args.rounds,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("obstore", "boto3", "moto")},
        "readers": {
            name: {
                "cpu_s": round(statistics.median(cpu_s[name]), 4),
                "wall_s": round(statistics.median(wall_s[name]), 4),
                "share": round(statistics.median(cpu_s[name]) / base, 3),
                "cpu_s_rounds": [round(seconds, 4) for seconds in cpu_s[name]],
            }
            for name in readers
        },
    }


if __name__ == "__main__":
    main()
