"""Hours of audio a CPU-minute that reach the training: ours, webdataset, lhotse, and what the decoder alone can do.

    pip install -e '.[bench]'
    python benchmarks/loader/throughput.py --rounds 5

The corpus is made first: synthetic speech with pauses, lengths as in a corpus of read books, in the shards that
`voxstill shard` writes and, the same FLAC bytes, in lhotse's Shar. Each contender reads an epoch of it in a process of
its own, in turns, without worker processes, so that its CPU time is all that it costs. The ceiling reads the tars from
start to end and decodes. "Fast" is the decoder that we use, "soundfile" that of lhotse. `--lhotse-2 FOLDER` adds
another lhotse, installed there with `pip install --target`. Prints a table and writes `benchmarks/results/loader.json`.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor

HERE = Path(__file__).parent
TEXT = "the quick brown fox jumps over the lazy dog and runs far away into the dark wood where nobody will find it"
BUDGET_S = 300
PER_SHARD = 500


def main() -> None:
    """Make the corpus, let every loader read it in turns, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--utterances", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lhotse-2", metavar="FOLDER", help="where another version of lhotse is installed")
    parser.add_argument("--output", default=str(HERE.parent / "results/loader.json"))
    parser.add_argument("--read", help=argparse.SUPPRESS)  # a contender: what a child does
    parser.add_argument("--corpus", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read:
        print(json.dumps(read(args.read, Path(args.corpus))))
        return
    names = [name for name in CONTENDERS if args.lhotse_2 or "lhotse 2" not in name]
    with tempfile.TemporaryDirectory() as folder:
        seconds = make(Path(folder), args.utterances)
        rounds: dict[str, list[float]] = {name: [] for name in names}
        padding = {}
        for _ in range(args.rounds):
            for name in names:
                figures = child(name, folder, args.lhotse_2 if "lhotse 2" in name else None)
                assert figures["utterances"] == args.utterances, (name, figures)
                rounds[name].append(figures["cpu_s"])
                padding[name] = 1 - seconds / figures["padded_s"]
    median = {name: statistics.median(cpu_s) for name, cpu_s in rounds.items()}
    packages = {
        name: number for name in ("torch", "soundfile", "miniaudio", "webdataset", "lhotse") if (number := has(name))
    }
    figures = {
        "utterances": args.utterances,
        "hours": seconds / 3600,
        "budget_s": BUDGET_S,
        "rounds": args.rounds,
        "python": platform.python_version(),
        "versions": packages,
        "cpu_s": rounds,
        "median_cpu_s": median,
        "padding": padding,
    }
    Path(args.output).write_text(json.dumps(figures, indent=1) + "\n")
    print("| reader | hours a CPU-minute | of the ceiling | padding |\n|---|---|---|---|")
    for name in names:
        hours = seconds / 3600 / (median[name] / 60)
        print(f"| {name} | {hours:.1f} | {median['ceiling, fast'] / median[name]:.2f} | {padding[name]:.1%} |")


def has(package: str) -> str | None:
    """The version of a package, None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def child(name: str, corpus: str, packages: str | None) -> dict[str, Any]:
    """One epoch in a process of its own."""
    paths = [path for path in (packages, os.environ.get("PYTHONPATH")) if path]
    done = subprocess.run(
        [sys.executable, __file__, "--read", name, "--corpus", corpus],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def read(name: str, corpus: Path) -> dict[str, Any]:
    """CPU seconds of an epoch, its utterances, and its seconds with padding; what is imported does not count."""
    import torch

    torch.set_num_threads(1)
    begin = CONTENDERS[name](corpus)
    start = time.process_time()
    batches = list(map(len_and_longest, begin()))
    return {
        "cpu_s": time.process_time() - start,
        "utterances": sum(num for num, _ in batches),
        "padded_s": sum(num * longest for num, longest in batches) / 16_000,
    }


def len_and_longest(batch: NDArray[np.int16] | Tensor) -> tuple[int, int]:
    """Number and length of the rows of a padded batch [B, T]."""
    return int(batch.shape[0]), int(batch.shape[1])


# ---------------------------------------------------------------------------------------------------- the corpus


def make(folder: Path, num: int) -> float:
    """Shards and Shar of the same utterances; their seconds."""
    from voxstill.audio import codec
    from voxstill.core import pcm
    from voxstill.storage import shard_format, tables
    from voxstill.storage.figures import ShardFigures
    from voxstill.storage.shard_format import Sample
    from voxstill.storage.store import Store
    from voxstill.synthesis.voices import SpeechJob, synthesize

    random = np.random.default_rng(0)
    voices = ("m1", "m3", "f2", "f4")
    phrases = list(synthesize([SpeechJob(text=TEXT, voice=f"en-us+{name}") for name in voices], processes=1))
    pauses = [random.normal(0, 20, 12_000).astype(np.int16) for _ in phrases]
    speech_T = np.concatenate([part for pair in zip(phrases, pauses, strict=True) for part in pair])
    speech_T = np.tile(speech_T, 40_000_000 // len(speech_T))
    lengths = np.clip(random.lognormal(2.4, 0.5, num) * 16_000, 16_000, 35 * 16_000).astype(int)
    starts = random.integers(0, len(speech_T) - lengths.max(), num)
    store = Store(str(folder / "shards"))
    (folder / "shards").mkdir()
    clips: list[tuple[Sample, bytes]] = []
    for i, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        data = codec.encode(speech_T[start : start + length], "flac")
        clips.append(
            (Sample(id=f"u{i:06}", duration_ms=pcm.samples_to_ms(length), num_samples=length, text=TEXT), data)
        )
    count = 0
    for count, first in enumerate(range(0, num, PER_SHARD), start=1):
        with (folder / "shards" / shard_format.tar_name(count - 1)).open("wb") as file:
            rows = shard_format.write(file, clips[first : first + PER_SHARD])
        store.create(shard_format.sidecar_name(count - 1), tables.to_parquet(rows, Sample))
    shard_format.finish(store, "", ShardFigures(shards=count, utterances=num))
    shar(folder / "shar", clips)
    return pcm.samples_to_s(int(lengths.sum()))


def shar(folder: Path, clips: list[Any]) -> None:
    """The same FLAC bytes as lhotse's Shar."""
    try:
        from lhotse import MonoCut, Recording, SupervisionSegment
        from lhotse.shar import SharWriter
    except ImportError:
        print("without lhotse: pip install -e '.[bench]'", file=sys.stderr)
        return
    folder.mkdir()
    with SharWriter(str(folder), fields={"recording": "original"}, shard_size=PER_SHARD) as writer:
        for sample, data in clips:
            recording = Recording.from_bytes(data, recording_id=sample.id)
            supervision = SupervisionSegment(sample.id, sample.id, 0.0, recording.duration, text=sample.text)
            writer.write(
                MonoCut(sample.id, 0.0, recording.duration, 0, supervisions=[supervision], recording=recording)
            )


# ------------------------------------------------------------------------------------------------ the contenders


def by_soundfile(data: bytes) -> NDArray[np.int16]:
    """Decoded as most loaders do."""
    import soundfile

    samples_T: NDArray[np.int16] = soundfile.read(io.BytesIO(data), dtype="int16")[0]
    return samples_T


def by_voxstill(data: bytes) -> NDArray[np.int16]:
    """Decoded as voxstill does."""
    from voxstill.audio import codec

    return codec.decode_stored(data).samples_T


def ceiling(corpus: Path, decode: Callable[[bytes], NDArray[np.int16]]) -> Callable[[], Iterator[Any]]:
    """The tars from start to end, decoded and thrown away."""

    def run() -> Iterator[Any]:
        for path in sorted((corpus / "shards").glob("*.tar")):
            with tarfile.open(path, "r|") as tar:
                for member in tar:
                    if member.name.endswith(".flac"):
                        file = tar.extractfile(member)
                        assert file is not None
                        yield decode(file.read())[None]

    return run


def voxstill(corpus: Path) -> Callable[[], Iterator[Any]]:
    """The plan of an epoch and its batches: int16, padded."""
    from voxstill.core.config import Plan
    from voxstill.data.loader import Batches, Loader
    from voxstill.data.plan import plan
    from voxstill.data.shard_index import open_index
    from voxstill.storage.store import Store

    def run() -> Iterator[Any]:
        store = Store(str(corpus / "shards"))
        index = open_index(store, "", corpus / "index", splits=("train",), encode=None, encoder="")
        planned = plan(index.durations_ms, None, Plan(budget_ms=BUDGET_S * 1000), seed=0, epoch=0)
        for batches in Loader(Batches(index, planned), workers=0):
            for batch in batches:
                yield batch.audio_BT

    return run


def webdataset(corpus: Path) -> Callable[[], Iterator[Any]]:
    """Batches of a fixed number of utterances from a shuffle buffer, decoded as voxstill does: int16, padded."""
    import torch
    import webdataset as wds

    tars = sorted(map(str, (corpus / "shards").glob("*.tar")))
    mean_s = 12.0

    def padded(samples: list[Any]) -> Any:
        audio = [by_voxstill(sample["flac"]) for sample in samples]
        out_BT = torch.zeros(len(audio), max(map(len, audio)), dtype=torch.int16)
        for i, samples_T in enumerate(audio):
            out_BT[i, : len(samples_T)] = torch.from_numpy(samples_T)
        return out_BT

    def run() -> Iterator[Any]:
        data = wds.WebDataset(tars, shardshuffle=len(tars)).shuffle(1000)
        yield from data.batched(int(BUDGET_S / mean_s), collation_fn=padded, partial=True)

    return run


def lhotse(corpus: Path, *, fast: bool) -> Callable[[], Iterator[Any]]:
    """Shar with dynamic bucketing: float32, padded, as its data sets for K2 and NeMo do."""
    from lhotse import CutSet
    from lhotse.audio.backend import AudioBackend, set_current_audio_backend
    from lhotse.dataset import DynamicBucketingSampler
    from lhotse.dataset.collation import collate_audio

    from voxstill.core import pcm

    class VoxstillBackend(AudioBackend):  # type: ignore[misc]
        """The decoder of voxstill in the loader of lhotse."""

        def read_audio(self, path_or_fd: IO[bytes], *_: object, **__: object) -> tuple[NDArray[np.float32], int]:
            return pcm.to_float(by_voxstill(path_or_fd.read())[None]), 16_000

    if fast:
        set_current_audio_backend(VoxstillBackend())

    def run() -> Iterator[Any]:
        cuts = CutSet.from_shar(in_dir=str(corpus / "shar"), shuffle_shards=True)
        sampler = DynamicBucketingSampler(
            cuts, max_duration=BUDGET_S, num_buckets=30, shuffle=True, drop_last=False, world_size=1, rank=0
        )
        for batch in sampler:
            yield collate_audio(batch)[0]

    return run


CONTENDERS: dict[str, Callable[[Path], Callable[[], Iterator[Any]]]] = {
    "ceiling, fast": lambda corpus: ceiling(corpus, by_voxstill),
    "ceiling, soundfile": lambda corpus: ceiling(corpus, by_soundfile),
    "voxstill": voxstill,
    "webdataset, fast": webdataset,
    "lhotse, fast": lambda corpus: lhotse(corpus, fast=True),
    "lhotse, soundfile": lambda corpus: lhotse(corpus, fast=False),
    "lhotse 2, fast": lambda corpus: lhotse(corpus, fast=True),
    "lhotse 2, soundfile": lambda corpus: lhotse(corpus, fast=False),
}


if __name__ == "__main__":
    main()
