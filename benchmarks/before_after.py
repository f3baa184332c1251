"""Two versions of voxstill side by side: the index, the engine, the loader, a training step and decoding, in turns.

    python benchmarks/before_after.py OLD/src NEW/src [--rounds 5] [--only index engine ray loader training decoding]

Each argument is the `src` folder of a checkout. Both versions make their tables and shards of the same audio, so that
none is spared a check because the other one does not write what it needs.
Every measurement is a process of its own with one thread; old and new take turns, and every second round the new one
begins. The commands of `voxstill` are called by their public names, and the loader, the training and the decoding by
the benchmarks of each checkout, so the two may differ in everything else. Nothing else may run on the machine.

Prints JSON: for each case the speeds of all rounds, higher is better, their medians, and the median of the ratios of
new to old within a round.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

RATE_HZ = 16_000
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Sizes:
    """How much is measured in each round."""

    indexed_files: int = 3_000
    label_utterances: int = 800
    loader_utterances: int = 600
    training_utterances: int = 120
    training_s: float = 10.0
    decoded_utterances: int = 30


@dataclass(frozen=True)
class Version:
    """A checkout, by its `src` folder."""

    source: Path

    @property
    def benchmarks(self) -> Path:
        """The benchmarks of this version."""
        return self.source.parent / "benchmarks"

    def run(self, *arguments: object) -> str:
        """Standard output of Python with these arguments; SystemExit with its errors where it fails."""
        path = os.pathsep.join((str(self.source), str(self.benchmarks / "loader"), str(self.benchmarks / "train")))
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **THREADS, "PYTHONPATH": path},
        )
        if done.returncode:
            raise SystemExit(f"{self.source}: {' '.join(map(str, arguments))}\n{done.stderr[-4000:]}")
        return done.stdout

    def run_json(self, *arguments: object) -> dict[str, Any]:
        """The JSON object in the last line of what Python prints."""
        answer: dict[str, Any] = json.loads(self.run(*arguments).splitlines()[-1])
        return answer

    def command(self, *arguments: object) -> dict[str, Any]:
        """What a command of `voxstill` prints as JSON."""
        return self.run_json("-m", "voxstill.cli", *arguments, "--json", "--log-level", "error")


def main() -> None:
    """Measure both versions in turns and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES))
    args = parser.parse_args()
    versions = {"old": Version(args.old.resolve()), "new": Version(args.new.resolve())}
    sizes = Sizes()
    with tempfile.TemporaryDirectory() as folder:
        figures = {}
        for name in args.only:
            make, measure, unit = CASES[name]
            measures = {}
            for label, version in versions.items():
                corpus = Path(folder) / name / label
                corpus.mkdir(parents=True)
                make(version, corpus, sizes)
                measures[label] = functools.partial(measure, version, corpus, sizes)
            speeds = in_turns(measures, args.rounds, name)
            figures[name] = {"unit": unit, **compared(speeds)}
    print(json.dumps({"rounds": args.rounds, "cases": figures}, indent=1))


def in_turns(measures: Mapping[str, Callable[[], float]], rounds: int, name: str) -> dict[str, list[float]]:
    """Speeds of each version, one a round; every second round begins with the other."""
    speeds: dict[str, list[float]] = {label: [] for label in measures}
    for number in range(rounds):
        order = sorted(measures, reverse=number % 2 == 0)
        for label in order:
            speeds[label].append(measures[label]())
            print(f"{name}, round {number + 1}, {label}: {speeds[label][-1]:.4g}", file=sys.stderr, flush=True)
    return speeds


def compared(speeds: dict[str, list[float]]) -> dict[str, Any]:
    """Medians, and the ratio new to old with its range over the rounds."""
    ratios = [new / old for old, new in zip(speeds["old"], speeds["new"], strict=True)]
    return {
        "speeds": speeds,
        "medians": {label: statistics.median(values) for label, values in speeds.items()},
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
    }


def make_files(version: Version, corpus: Path, sizes: Sizes) -> None:
    """WAV and FLAC files of 1 to 15 s, for `index`."""
    random = np.random.default_rng(0)
    for number in range(sizes.indexed_files):
        kind = "flac" if number % 4 == 0 else "wav"
        samples_T = random.normal(0, 0.05, int(RATE_HZ * random.uniform(1, 15)))
        soundfile.write(corpus / f"{number}.{kind}", samples_T, RATE_HZ)


def indexed_per_cpu_s(version: Version, corpus: Path, sizes: Sizes) -> float:
    """Files by the CPU seconds of the whole command, its start and its decoders included."""
    with tempfile.TemporaryDirectory() as work:
        before = cpu_s_of_children()
        figures = version.command("index", corpus, "--work", work, "--set", "engine=inline")
        cpu_s = cpu_s_of_children() - before
    if figures["utterances"] != sizes.indexed_files:
        raise SystemExit(f"{version.source}: not all files were indexed: {figures}")
    return sizes.indexed_files / cpu_s


def cpu_s_of_children() -> float:
    """CPU seconds of all processes that this one has waited for, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def make_indexed(version: Version, corpus: Path, sizes: Sizes) -> None:
    """A work folder with the index of short noises, for `label`."""
    random = np.random.default_rng(0)
    rows = []
    for number in range(sizes.label_utterances):
        audio = f"{number}.flac"
        soundfile.write(corpus / audio, random.normal(0, 0.05, RATE_HZ), RATE_HZ)
        rows.append({"audio": audio, "text": "one two three", "id": f"u{number}", "split": "train"})
    manifest = corpus / "manifest.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    version.command("index", manifest, "--work", corpus / "work", "--set", "engine=inline")


def labelled_per_s(engine: str) -> Callable[[Version, Path, Sizes], float]:
    """A measurement of `voxstill label` by the teacher `echo`, in small chunks: what the engine and decoding cost."""

    def measure(version: Version, corpus: Path, sizes: Sizes) -> float:
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder) / "work"
            shutil.copytree(corpus / "work", work)
            options = (f"engine={{name: {engine}, chunk: 8}}", "teacher=echo")
            flags = [part for option in options for part in ("--set", option)]
            figures = version.command("label", work, *flags)
        if figures["labels"] != sizes.label_utterances or figures["failed"]:
            raise SystemExit(f"{version.source}: not all utterances were labelled: {figures}")
        return float(figures["rtfx"])  # an utterance is a second

    return measure


def make_shards(version: Version, corpus: Path, sizes: Sizes) -> None:
    """Shards of synthetic speech with pauses."""
    code = f"import throughput, pathlib; throughput.make(pathlib.Path({str(corpus)!r}), {sizes.loader_utterances})"
    version.run("-c", code)


def read_per_cpu_s(version: Version, corpus: Path, sizes: Sizes) -> float:
    """Utterances of an epoch by the CPU seconds that planning, reading, decoding and padding them take."""
    figures = version.run_json(version.benchmarks / "loader/throughput.py", "--read", "voxstill", "--corpus", corpus)
    if figures["utterances"] != sizes.loader_utterances:
        raise SystemExit(f"{version.source}: {figures['utterances']} utterances were read")
    return float(figures["utterances"] / figures["cpu_s"])


def make_labelled(version: Version, corpus: Path, sizes: Sizes) -> None:
    """Shards with random words."""
    options = {"manifest": None, "utterances": sizes.training_utterances, "budget_s": 30}
    code = (
        f"import speed, pathlib, argparse; speed.make(pathlib.Path({str(corpus)!r}), argparse.Namespace(**{options}))"
    )
    version.run("-c", code)


def trained_per_s(version: Version, corpus: Path, sizes: Sizes) -> float:
    """Seconds of audio that `voxstill train` takes in a second, after a warm-up, by the smallest student."""
    script = version.benchmarks / "train/speed.py"
    which = ("--train", "voxstill, augmented", "--corpus", corpus, "--size", "tiny")
    limits = ("--seconds", sizes.training_s, "--warmup", 3, "--threads", 1, "--workers", 0, "--budget-s", 30)
    return float(version.run_json(script, *which, *limits)["audio_s_per_s"])


def make_nothing(version: Version, corpus: Path, sizes: Sizes) -> None:
    """The benchmark of the decoder makes its own log-probabilities, equal in every round."""


def decoded_per_s(version: Version, corpus: Path, sizes: Sizes) -> float:
    """Utterances that the beam search decodes in a CPU second, without and with a language model (harmonic mean)."""
    output = corpus / "decode.json"
    limits = ("--utterances", sizes.decoded_utterances, "--rounds", 1)
    version.run(version.benchmarks / "decode.py", *limits, "--output", output)
    cases = [cases for name, cases in json.loads(output.read_text()).items() if name != "settings"]
    return statistics.harmonic_mean(
        [float(case["utterances_per_second"]) for group in cases for case in group.values()]
    )


CASES: dict[str, tuple[Callable[..., None], Callable[..., float], str]] = {
    "index": (make_files, indexed_per_cpu_s, "files indexed a CPU second by the whole command"),
    "engine": (make_indexed, labelled_per_s("inline"), "utterances labelled a second, in one process"),
    "ray": (make_indexed, labelled_per_s("ray"), "utterances labelled a second, Ray's start included"),
    "loader": (make_shards, read_per_cpu_s, "utterances read a CPU second"),
    "training": (make_labelled, trained_per_s, "seconds of audio learnt a second"),
    "decoding": (make_nothing, decoded_per_s, "utterances decoded a CPU second"),
}
"""What makes the corpus, what measures a version on it, and the unit."""


if __name__ == "__main__":
    main()
