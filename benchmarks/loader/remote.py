"""What the loader loses where the shards lie in a bucket: from S3 with 50 ms of latency, and from the disk.

    python benchmarks/loader/remote.py

The same shards lie on the disk and in an S3 server, a process of its own that takes 50 ms longer for each request and
sends files as the kernel does (moto, which copies a whole object for each range, would be the limit). An epoch is read
from each in turns with one worker process: from the disk, from S3 with tars fetched ahead, and from S3 by ranges alone.
What counts is hours of speech a minute after the first window, by the clock; medians over the rounds. Prints a table
and writes `benchmarks/results/loader_remote.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from throughput import BUDGET_S, HERE, PER_SHARD, make

from voxstill.core import pcm
from voxstill.core.config import Plan
from voxstill.data.loader import Batches, Loader
from voxstill.data.plan import EpochPlan, plan
from voxstill.data.prefetch import CacheDir
from voxstill.data.shard_index import ShardIndex, open_index
from voxstill.storage.store import Store

sys.path.insert(0, str(HERE.parent.parent / "tests"))


def main() -> None:
    """Make the corpus, read it in turns, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--utterances", type=int, default=4000)
    parser.add_argument("--window", type=int, default=1000)
    parser.add_argument("--delay", type=float, default=0.05, help="seconds that the server takes longer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", help=argparse.SUPPRESS)  # what a child does: the folder that is the bucket
    parser.add_argument("--output", default=str(HERE.parent / "results/loader_remote.json"))
    args = parser.parse_args()
    if args.serve:
        serve(Path(args.serve), args.delay)
    from servers import s3_environment

    ways = ("disk", "S3, fetched ahead", "S3, ranges alone")
    with tempfile.TemporaryDirectory() as name, server(Path(name), args.delay) as port:
        folder = Path(name)
        os.environ.update(s3_environment(port))
        make(folder, args.utterances)
        local, remote = Store(str(folder / "shards")), Store("s3://bench/shards")
        corpora = {
            store.root: open_index(store, "", folder / "index", splits=("train",), encode=None, encoder="")
            for store in (local, remote)
        }
        rates: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(args.rounds):
            for way in ways:
                corpus = corpora[local.root if way == "disk" else remote.root]
                cfg = Plan(budget_ms=BUDGET_S * 1000, window=args.window, layout="remote")
                epoch_plan = plan(
                    corpus.durations_ms, None, cfg, seed=0, epoch=0, shard_of=corpus.shard.astype("int64")
                )
                cache_dir = CacheDir(folder / "tars", 1 << 40) if way == "S3, fetched ahead" else None
                rates[way].append(hours_a_minute(corpus, epoch_plan, cache_dir, args.window))
                shutil.rmtree(folder / "tars", ignore_errors=True)
    median = {way: statistics.median(rounds) for way, rounds in rates.items()}
    figures = {
        "utterances": args.utterances,
        "per_shard": PER_SHARD,
        "window": args.window,
        "delay_s": args.delay,
        "python": platform.python_version(),
        "hours_a_minute": rates,
        "median": median,
        "of_local": {way: median[way] / median["disk"] for way in ways},
    }
    Path(args.output).write_text(json.dumps(figures, indent=1) + "\n")
    print("| shards | hours a minute | of the disk |\n|---|---|---|")
    for way in ways:
        print(f"| {way} | {median[way]:.1f} | {median[way] / median['disk']:.2f} |")


@contextlib.contextmanager
def server(folder: Path, delay_s: float) -> Iterator[int]:
    """The port of a process that serves `folder` as the bucket `bench`."""
    command = [sys.executable, __file__, "--serve", str(folder), "--delay", str(delay_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def serve(folder: Path, delay_s: float) -> None:
    """Answer as S3 does to GET and HEAD, late."""

    class Late(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            """Nothing."""

        def do_GET(self) -> None:
            time.sleep(delay_s)
            path = folder / unquote(self.path.partition("?")[0]).removeprefix("/bench/")
            if not path.is_file():
                self.send_error(404)
                return
            size = path.stat().st_size
            byte_range = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            start, end = (int(byte_range[1]), min(int(byte_range[2]) + 1, size)) if byte_range else (0, size)
            self.send_response(206 if byte_range else 200)
            self.send_header("Content-Length", str(end - start))
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
            self.send_header("ETag", f'"{size:x}"')
            self.send_header("Last-Modified", self.date_time_string(path.stat().st_mtime))
            self.end_headers()
            if self.command == "GET":
                self.wfile.flush()
                with path.open("rb") as file:
                    while start < end:
                        start += os.sendfile(self.connection.fileno(), file.fileno(), start, end - start)

        do_HEAD = do_GET

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Late) as late:
        print(late.server_port, flush=True)
        late.serve_forever()


def hours_a_minute(corpus: ShardIndex, epoch_plan: EpochPlan, cache_dir: CacheDir | None, window: int) -> float:
    """Hours of speech read a minute of wall time, after the first window; training takes no time."""
    read = 0
    samples = since = 0.0
    loader = Loader(Batches(corpus, epoch_plan, cache_dir=cache_dir), workers=1)
    for batches in loader:
        if read > window:
            samples += sum(float(batch.audio_len_B.sum()) for batch in batches)
        read += sum(len(batch.ids) for batch in batches)
        if read <= window:
            since = time.perf_counter()
    assert not loader.replaced
    return pcm.samples_to_s(samples) / 60 / (time.perf_counter() - since)


if __name__ == "__main__":
    main()
