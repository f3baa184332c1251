"""Two versions of voxstill side by side: CPU time of decoding and measuring files, and of making rows of the index.

    python benchmarks/index_files.py OLD/src NEW/src [--rounds 200] [--kinds wav_1s wav_10s]

Each argument is the `src` folder of a checkout. Both versions read the same files, each in a process of its own with
one thread. They take turns every few milliseconds, and CPU time is counted: so others may use the machine. `decode` is
the file to samples and what is measured of their level, where the version measures it; `index` is all that a worker of
the index does with a file, reading and hashing it included. Prints for both the median CPU time of a file by each
version, and the median of the ratios old to new of neighbouring turns: above 1 the new version is faster. Writes
`benchmarks/results/index_files.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile

KINDS = {
    "wav_1s": ("wav", 16_000, 1, 1, "PCM_16"),
    "wav_10s": ("wav", 16_000, 1, 10, "PCM_16"),
    "flac_16k": ("flac", 16_000, 1, 10, "PCM_16"),
    "flac_16k_stereo": ("flac", 16_000, 2, 10, "PCM_16"),
    "flac_44k": ("flac", 44_100, 1, 10, "PCM_16"),
    "flac_44k_stereo_24": ("flac", 44_100, 2, 10, "PCM_24"),
}
"""Format, rate, channels, seconds and width of each kind of file."""
FILES = {"wav": 40, "flac": 3}
"""How many are read in a turn."""
HERE = Path(__file__).parent


def main() -> None:
    """Measure both versions in turns and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", metavar="SRC")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--serve", choices=("decode", "index"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, Path(args.sources[0]))
        return
    figures: dict[str, dict[str, float]] = {}
    for kind in args.kinds:
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder), kind)
            for what in ("decode", "index"):
                figures[f"{kind}, {what}"] = compare(args.sources, what, Path(folder), args.rounds)
    (HERE / "results/index_files.json").write_text(json.dumps(figures, indent=1) + "\n")
    print("| files | old, CPU us | new, CPU us | old / new |\n|---|---|---|---|")
    for name, row in figures.items():
        print(f"| {name} | {row['old_us']:,.1f} | {row['new_us']:,.1f} | {row['ratio']:.3f} |")


def make(folder: Path, kind: str) -> None:
    """Fill a folder with files of noise that swells as speech does."""
    form, rate_hz, num_channels, seconds, subtype = KINDS[kind]
    random = np.random.default_rng(0)
    for number in range(FILES[form]):
        swell_T1 = 0.06 * (1 + np.sin(np.arange(rate_hz * seconds) / rate_hz * 7))[:, None]
        samples_TC = swell_T1 * random.normal(0, 1, (len(swell_T1), num_channels))
        soundfile.write(folder / f"{number}.{form}", samples_TC, rate_hz, subtype=subtype)


def compare(sources: list[str], what: str, folder: Path, rounds: int) -> dict[str, float]:
    """Median microseconds of a file by each version, and the median ratio of neighbouring turns."""
    num_files = len(list(folder.iterdir()))
    children = [start(source, what, folder) for source in sources]
    times: list[list[float]] = [[], []]
    for number in range(rounds):
        for k in (0, 1) if number % 2 else (1, 0):
            times[k].append(turn(children[k]))
    for child in children:
        child.communicate()
    old, new = times
    return {
        "old_us": statistics.median(old) / num_files * 1e6,
        "new_us": statistics.median(new) / num_files * 1e6,
        "ratio": statistics.median(one / other for one, other in zip(old, new, strict=True)),
    }


def start(source: str, what: str, folder: Path) -> subprocess.Popen[str]:
    """A process of one version that waits for its turns."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    command = [sys.executable, __file__, "--serve", what, str(folder)]
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **threads, "PYTHONPATH": str(Path(source).resolve())},
    )
    for _ in range(5):  # libraries are loaded, and files are in the cache
        turn(child)
    return child


def turn(child: subprocess.Popen[str]) -> float:
    """CPU seconds of one turn."""
    assert child.stdin is not None
    assert child.stdout is not None
    print(file=child.stdin, flush=True)
    return float(child.stdout.readline())


def serve(what: str, folder: Path) -> None:
    """Do the work once for each line of standard input, and answer with its CPU seconds."""
    paths = sorted(folder.iterdir())
    work = decoding(paths) if what == "decode" else indexing(paths)
    for _ in sys.stdin:
        before = time.process_time()
        work()
        print(time.process_time() - before, flush=True)


def decoding(paths: list[Path]) -> Callable[[], object]:
    """What decodes the files and measures their level."""
    from voxstill.audio import codec
    from voxstill.audio.decoder import Decoder

    blobs = [path.read_bytes() for path in paths]
    decode = Decoder(60.0, 4_000).decode if paths[0].suffix == ".wav" else codec.decode  # a child's time is not counted
    measures_level = hasattr(codec.Audio, "measured_level")

    def work() -> None:
        for data in blobs:
            audio = decode(data)
            if measures_level:
                _ = audio.measured_level

    return work


def indexing(paths: list[Path]) -> Callable[[], object]:
    """What indexes the files."""
    from voxstill.audio import read_utterances
    from voxstill.core.config import Config, Segment, Source
    from voxstill.indexing.formats.entry import SourceEntry
    from voxstill.indexing.scan import SourceFile
    from voxstill.indexing.segment import Indexer

    files = [SourceFile(path.stem, (SourceEntry(uri=str(path)),)) for path in paths]
    reading = read_utterances.reading(Config()) if paths[0].suffix == ".wav" else None
    indexer = Indexer(Segment(), Source(), 0, reading)
    indexer.open()
    return lambda: indexer(files, None)


if __name__ == "__main__":
    main()
