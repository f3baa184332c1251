"""How fast the index goes on one core, decoders included: short files a second, and the cutting of long recordings.

    python benchmarks/index.py --files 40000 --minutes 30

Files are written into a temporary folder first: half of them FLAC, half WAV, 16 kHz, one second each. They are indexed
by the inline engine, from scan to `_SUCCESS.json`, and then again, with nothing left to do. The long recordings are
synthetic speech with pauses. Prints a table and writes `benchmarks/results/index.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

from voxstill.audio import codec, vad  # noqa: E402
from voxstill.core import pcm  # noqa: E402
from voxstill.core.config import Config, Segment  # noqa: E402
from voxstill.pipeline import index as indexing  # noqa: E402
from voxstill.storage.figures import IndexFigures  # noqa: E402
from voxstill.synthesis.voices import SpeechJob, synthesize  # noqa: E402

HERE = Path(__file__).parent
TEXT = "the quick brown fox jumps over the lazy dog and runs far away into the dark wood where nobody will find it"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=40_000)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--output", default=str(HERE / "results/index.json"))
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # decoders too: their CPU time is part of the core's
    with tempfile.TemporaryDirectory() as folder:
        figures = {**short_files(Path(folder), args.files), **long_recordings(args.minutes)}
    Path(args.output).write_text(json.dumps(figures, indent=1) + "\n")
    print("| what | figure |\n|---|---|")
    for name, value in figures.items():
        print(f"| {name} | {value:,.0f} |")


def short_files(folder: Path, num_files: int) -> dict[str, float]:
    """Files a second and a CPU-second, new ones and such as are known."""
    clips = [codec.encode(tone(200 + 20 * k), "flac" if k % 2 else "wav") for k in range(32)]
    (folder / "audio").mkdir()
    for k in range(num_files):
        (folder / f"audio/{k:07}.{'flac' if k % 2 else 'wav'}").write_bytes(clips[k % len(clips)])
    index(folder / "few", folder / "audio", limit=64)  # libraries are loaded
    first = timed(lambda: index(folder / "work", folder / "audio"))
    again = timed(lambda: index(folder / "work", folder / "audio"))
    return {
        "files": num_files,
        "mean_bytes": float(np.mean([len(clip) for clip in clips])),
        "files_per_cpu_second": num_files / first["cpu_s"],
        "files_per_second": num_files / first["wall_s"],
        "known_files_per_cpu_second": num_files / again["cpu_s"],
    }


def long_recordings(minutes: float) -> dict[str, float]:
    """Times real time of finding speech and cutting it, and of a whole file: reading, decoding and cutting."""
    phrases = list(
        synthesize([SpeechJob(text=TEXT, voice=f"en-us+{name}") for name in ("m1", "m3", "f2", "f4")], processes=1)
    )
    pause_T = np.random.default_rng(0).normal(0, 20, 12_000).astype(np.int16)
    round_T = np.concatenate([part for phrase_T in phrases for part in (phrase_T, pause_T)])
    samples_T = np.tile(round_T, int(np.ceil(minutes * 60 * 16_000 / len(round_T))))
    seconds = pcm.samples_to_s(len(samples_T))
    vad.segment(samples_T[: 16_000 * 40], Segment())
    cutting = timed(lambda: vad.segment(samples_T, Segment()))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "audio").mkdir()
        (Path(folder) / "audio/long.flac").write_bytes(codec.encode(samples_T, "flac"))
        whole = timed(lambda: index(Path(folder) / "work", Path(folder) / "audio"))
    return {"vad_times_real_time": seconds / cutting["cpu_s"], "long_file_times_real_time": seconds / whole["cpu_s"]}


def index(work: Path, source: Path, limit: int | None = None) -> IndexFigures:
    """The index of a folder, or of its first files."""
    uris = [str(path) for path in sorted(source.iterdir())[:limit]] if limit else str(source)
    tree = {"work": str(work), "source": {"uri": uris}, "engine": {"name": "inline"}}
    figures = indexing.index(Config.model_validate(tree))
    assert not figures.damaged
    return figures


def tone(pitch_hz: float) -> NDArray[np.int16]:
    """A second of a fading tone in faint noise."""
    time_T = np.arange(16_000) / 16_000
    noise_T = np.random.default_rng(round(pitch_hz)).normal(0, 3, len(time_T))
    return (8000 * np.sin(2 * np.pi * pitch_hz * time_T) * np.exp(-3 * time_T) + noise_T).astype(np.int16)


def timed(work: Callable[[], object]) -> dict[str, float]:
    """CPU and wall seconds of a call; its decoders are processes that have ended by then, and count."""
    wall_s, before = time.perf_counter(), os.times()
    work()
    wall_s, after = time.perf_counter() - wall_s, os.times()
    return {"wall_s": wall_s, "cpu_s": sum(after[:4]) - sum(before[:4])}


if __name__ == "__main__":
    main()
