"""The chunk engine beside Ray Data: the same decoding and the same pretended teachers, in one interleaved run.

    pip install 'ray[data]'
    python benchmarks/engine.py --utterances 2400 --rounds 3

Both run on one Ray cluster of this machine with two decoding workers and two teachers, and write Parquet. A teacher
sleeps for each utterance: 0 ms shows what the machinery costs, 20 ms what it wastes of a teacher's time. Seconds count
from the call to the last row written, processes started and ended included; the column "first to last chunk" leaves out
what comes before the first chunk. Ray Data runs twice: with the blocks it chooses, and told to make them as small
as our chunks. Decoding is apart from teaching in all of them, as where a teacher has a GPU to itself. Then once more
ours, and one of the two teachers is killed when half is done: what is heard twice is what that cost. CPU seconds are
those of the whole machine, so nothing else may run on it. Prints a table and writes
`benchmarks/results/engine.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxstill import engine
from voxstill.audio import codec
from voxstill.core import world
from voxstill.core.config import Engine
from voxstill.core.records import Label
from voxstill.storage import tables
from voxstill.storage.store import Store

HERE = Path(__file__).parent
BATCH = 32
TEACHERS = 2
KILLED = "ours, a teacher killed"
SETTLE_S = 3.0  # the processes of the run before end meanwhile


class Decode(engine.StageWork):
    """Paths in, one array of samples and its bounds out."""

    def __call__(self, paths: Sequence[str], payload: object) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
        """Decode a chunk."""
        pieces = [codec.decode(Path(path).read_bytes()).samples_T for path in paths]
        return np.concatenate(pieces), np.cumsum([0, *map(len, pieces)])


class Transcribe(engine.StageWork):
    """Pretend to transcribe: sleep `delay_s` for each utterance. A file in `folder` grows by a byte for each."""

    def __init__(self, delay_s: float, folder: Path) -> None:
        self.delay_s, self.folder = delay_s, folder

    def open(self) -> None:
        """Open the file of this process."""
        self._file = (self.folder / f"heard-{os.getpid()}").open("ab", buffering=0)

    def __call__(self, paths: Sequence[str], payload: tuple[NDArray[np.int16], NDArray[np.int64]]) -> list[Label]:
        """One label for each utterance."""
        samples_T, bounds = payload
        rows = []
        for i, path in enumerate(paths):
            time.sleep(self.delay_s)
            self._file.write(b".")
            text = str(int(samples_T[bounds[i] : bounds[i + 1]].astype(np.int64).sum()))
            rows.append(Label(utterance_id=path, recipe="r", teacher="t", text=text))
        return rows


def voxstill(paths: Sequence[str], delay_s: float, folder: Path, kills: bool = False) -> tuple[float, float]:
    """Seconds of the engine in all, and from the first chunk committed to the last."""
    store, commits = Store(str(folder)), []
    start = time.perf_counter()

    def commit(chunk: engine.Chunk, rows: list[Label]) -> None:
        store.create(f"{chunk.id}.parquet", tables.to_parquet(rows, Label))
        commits.append(time.perf_counter())
        if kills and len(commits) == len(paths) // BATCH // 2:
            os.kill(int(min(folder.glob("heard-*")).name.partition("-")[2]), signal.SIGKILL)

    stages = (
        engine.Stage(name="decode", work=Decode(), workers=TEACHERS),
        engine.Stage(name="teach", work=Transcribe(delay_s, folder), workers=TEACHERS),
    )
    engine.run(engine.chunks_of(paths, BATCH, str), stages, commit, failed, Engine(name="ray"))
    assert sum(1 for _ in tables.read(store, "", Label)) == len(paths)
    return time.perf_counter() - start, max(commits) - min(commits)


def voxstill_killed(paths: Sequence[str], delay_s: float, folder: Path) -> tuple[float, float]:
    """The same, and one of two teachers is killed halfway."""
    return voxstill(paths, delay_s, folder, kills=True)


def failed(path: str, reason: str) -> Label:
    """Raise: no utterance of this benchmark may fail."""
    raise AssertionError(reason)


def ray_data(paths: Sequence[str], delay_s: float, folder: Path, blocks: int | None = None) -> tuple[float, float]:
    """Seconds of Ray Data in all; it does not tell when its first rows were written."""
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False

    def decode(batch: dict[str, Any]) -> dict[str, Any]:
        pieces = [codec.decode(Path(path).read_bytes()).samples_T for path in batch["item"]]
        return {"item": batch["item"], "audio": np.array([*pieces, None], dtype=object)[:-1]}

    class Teacher:
        def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
            texts = []
            for samples_T in batch["audio"]:
                time.sleep(delay_s)
                texts.append(str(int(np.asarray(samples_T).astype(np.int64).sum())))
            return {"utterance_id": batch["item"], "text": texts}

    start = time.perf_counter()
    rows = ray.data.from_items(list(paths), override_num_blocks=blocks)
    labels = rows.map_batches(decode, batch_size=BATCH, num_cpus=0.5).map_batches(
        Teacher, batch_size=BATCH, num_cpus=0.25, concurrency=TEACHERS
    )
    labels.write_parquet(str(folder))
    seconds = time.perf_counter() - start
    import pyarrow.dataset

    assert pyarrow.dataset.dataset(str(folder)).count_rows() == len(paths)
    return seconds, float("nan")


def ray_data_in_chunks(paths: Sequence[str], delay_s: float, folder: Path) -> tuple[float, float]:
    """Ray Data, told the size of our chunks."""
    return ray_data(paths, delay_s, folder, len(paths) // BATCH)


WAYS = {"ours": voxstill, "Ray Data": ray_data, "Ray Data in our chunks": ray_data_in_chunks, KILLED: voxstill_killed}


def main() -> None:
    """Interleave them at each delay; print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--utterances", type=int, default=2400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delays-ms", type=int, nargs="*", default=[0, 20])
    parser.add_argument("--output", default=str(HERE / "results/engine.json"))
    args = parser.parse_args()
    world.pin_threads(1)
    ray = engine.start_ray(Engine())
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    figures: dict[str, Any] = {"utterances": args.utterances, "rounds": args.rounds, "cases": {}}
    with tempfile.TemporaryDirectory() as folder:
        paths = write_audio(Path(folder) / "audio", args.utterances)
        for delay_ms in args.delays_ms:
            times: dict[str, list[tuple[float, float, float]]] = {name: [] for name in WAYS}
            again: list[float] = []
            for number in range(args.rounds):
                for name, way in WAYS.items():
                    out = Path(folder) / f"{name}-{delay_ms}-{number}"
                    out.mkdir()
                    before = cpu_seconds()
                    seconds, steady = way(paths, delay_ms / 1000, out)
                    time.sleep(SETTLE_S)
                    times[name].append((seconds, steady, cpu_seconds() - before))
                    if name == KILLED:
                        num_heard = sum(file.stat().st_size for file in out.glob("heard-*"))
                        again.append((num_heard - args.utterances) / BATCH)
            ideal_s = args.utterances * delay_ms / 1000 / TEACHERS
            row: dict[str, Any] = {"ideal_s": ideal_s, "all": times}
            for name, rounds in times.items():
                row[name] = {"s": statistics.median(figures[0] for figures in rounds)}
                row[name]["cpu_s"] = statistics.median(figures[2] for figures in rounds)
            row["ours"]["steady_s"] = statistics.median(figures[1] for figures in times["ours"])
            row[KILLED]["chunks_heard_again"] = again
            figures["cases"][f"{delay_ms} ms"] = row
    engine.shutdown()
    Path(args.output).write_text(json.dumps(figures, indent=1) + "\n")
    print("| teacher | ideal, s | first to last chunk, s | " + " | ".join(f"{n}, s | CPU s" for n in WAYS) + " |")
    print("|---" * (3 + 2 * len(WAYS)) + "|")
    for name, row in figures["cases"].items():
        ways = " | ".join(f"{row[way]['s']:.1f} | {row[way]['cpu_s']:.1f}" for way in WAYS)
        print(f"| {name} | {row['ideal_s']:.1f} | {row['ours']['steady_s']:.1f} | {ways} |")
    for name, row in figures["cases"].items():
        print(f"{name}: chunks of {BATCH} heard again after the kill:", *row[KILLED]["chunks_heard_again"])


def cpu_seconds() -> float:
    """CPU seconds of the whole machine since it started: Ray's daemon forgets those of its dead workers."""
    user, nice, system, _, _, interrupts, soft, *_ = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")


def write_audio(folder: Path, num: int) -> list[str]:
    """Files of one second of noise."""
    folder.mkdir()
    random = np.random.default_rng(0)
    paths = []
    for number in range(num):
        path = folder / f"{number:05}.wav"
        path.write_bytes(codec.encode(random.integers(-3000, 3000, 16_000).astype(np.int16), "wav"))
        paths.append(str(path))
    return paths


if __name__ == "__main__":
    main()
