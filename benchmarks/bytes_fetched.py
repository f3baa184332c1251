"""How often each byte of a corpus in a bucket is fetched by index, label and shard, with a cache and without.

    python benchmarks/bytes_fetched.py

A proxy in front of an S3 server (moto) counts the bytes of all answers: audio, manifest and listings. The work folder
is on this machine. Prints a table and writes `benchmarks/results/bytes_fetched.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from faulty_proxy import FaultyProxy
    from voxstill.core.config import Config
    from voxstill.storage.figures import TableFigures

HERE = Path(__file__).parent
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"
sys.path.insert(0, str(HERE.parent / "tests"))

SETTINGS = {
    "as it is by default": (),
    "`segment.measure: header`": ("segment.measure=header",),
    "with a cache": ("cache.folder={folder}/cache",),
    "both": ("segment.measure=header", "cache.folder={folder}/cache"),
}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--utterances", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--output", default=str(HERE / "results/bytes_fetched.json"))
    args = parser.parse_args()
    from faulty_proxy import faulty_proxy
    from servers import moto_server, s3_environment

    with moto_server("corpus") as port, faulty_proxy(port) as proxy:
        os.environ.update(s3_environment(proxy.port))
        corpus_bytes = write_corpus(args.utterances, args.seconds)
        rows = {}
        for name, overrides in SETTINGS.items():
            with tempfile.TemporaryDirectory() as folder:
                rows[name] = measure(folder, corpus_bytes, proxy, [text.format(folder=folder) for text in overrides])
    figures = {
        "utterances": args.utterances,
        "corpus_bytes": corpus_bytes,
        "times_fetched": rows,
        "machine": {"cores": os.cpu_count(), "processor": platform.machine()},
        "versions": {
            "python": platform.python_version(),
            "voxstill": version("voxstill"),
            "obstore": version("obstore"),
        },
    }
    Path(args.output).write_text(json.dumps(figures, indent=1) + "\n")
    print("options | index | label | shard | together")
    print("---|---|---|---|---")
    for name, row in rows.items():
        print(f"{name} | " + " | ".join(f"{times:.2f}" for times in row.values()))


def write_corpus(num: int, seconds: float) -> int:
    """Write FLAC and WAV files of noise and a manifest into the bucket; returns the bytes of the audio."""
    from voxstill.audio import codec
    from voxstill.storage.store import Store

    store, random, total, lines = Store("s3://corpus/audio"), np.random.default_rng(0), 0, []
    for number in range(num):
        form: Literal["flac", "wav"] = "flac" if number % 2 else "wav"
        num_samples = int(16_000 * seconds * random.uniform(0.5, 1.5))
        data = codec.encode((random.normal(0, 900, num_samples)).astype(np.int16), form)
        store.replace(f"{number:05}.{form}", data)
        total += len(data)
        lines.append(
            json.dumps({"audio": f"{number:05}.{form}", "text": "one two three", "speaker": f"s{number % 40}"})
        )
    store.replace("manifest.jsonl", "\n".join(lines).encode())
    return total


def measure(folder: str, corpus_bytes: int, proxy: FaultyProxy, overrides: list[str]) -> dict[str, float]:
    """How often each byte was fetched by each step, and by all of them."""
    from voxstill.core import config
    from voxstill.pipeline.filter import filter_labels
    from voxstill.pipeline.index import index
    from voxstill.pipeline.label import label_utterances
    from voxstill.pipeline.shard import shard

    cfg = config.load(
        None,
        [
            f"work={folder}/work",
            "source={uri: s3://corpus/audio/manifest.jsonl, test_share: 0.0}",
            "teacher=echo",
            "engine={name: inline}",
            "filter={max_chars_per_s: 1000.0, min_chars_per_s: 0.0}",
            *overrides,
        ],
    )
    times = {}
    steps: dict[str, Callable[[Config], TableFigures]] = {
        "index": index,
        "label": label_utterances,
        "filter": filter_labels,
        "shard": shard,
    }
    for name, step in steps.items():
        before = proxy.num_bytes
        figures = step(cfg)
        times[name] = (proxy.num_bytes - before) / corpus_bytes
    assert figures.to_dict()["utterances"], "nothing was sharded"
    del times["filter"]
    return {**times, "together": sum(times.values())}


if __name__ == "__main__":
    main()
