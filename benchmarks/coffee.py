"""Commands accepted by a student and its teacher on spoken coffee orders, in clean audio and in noise.

    python benchmarks/coffee.py --train ORDERS --test OTHER_ORDERS --noise KITCHEN.flac --json

Both folders have `manifest.jsonl` (`id`, `audio`, `slots`, `speaker`), and the first one `coffee.jsgf`. Of it only the
audio is read, its speakers and the grammar. The teacher labels it with the grammar; the student learns from what the
filter keeps and from synthetic voices of the same grammar. A command is accepted where all its slots are right and none
is added. Noise is mixed in as by https://github.com/Picovoice/speech-to-intent-benchmark: the loudest 2,048 samples of
speech stand so many decibels above those of the noise. Intervals and p are over sessions (`speaker`), or over clips.
Speed is audio seconds a CPU second, both in turn on the same clips.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import soundfile
import soxr
import torch
from numpy.typing import NDArray

from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.records import ErrorCounts, Utterance, fingerprint
from voxstill.decoding import recognizer
from voxstill.scoring.stats import Blocks, interval, paired_test
from voxstill.teachers import registry
from voxstill.teachers.teacher import Clip

HERE = Path(__file__).parent
CONDITIONS: dict[str, float | None] = {"clean": None, "24": 24.0, "18": 18.0, "12": 12.0, "6": 6.0}
"""Name and signal-to-noise ratio in decibels."""
RATE_HZ, FRAME, PEAK = 16_000, 2048, 0.5
DRAWS, ROUNDS = 10_000, 3
SOME = "(?:(?:a little bit of|a bit of|some|a lot of|lots of) )?"
SLOTS = {
    "roast": "(?:light|medium|dark) roast",
    "numberOfShots": "(?:single|double|triple) shot",
    "sugarAmount": SOME + "(?:brown sugar|sugar|sweetener)",
    "milkAmount": SOME + "(?:(?:skim|whole|soy|almond) milk|milk|cream)",
    "coffeeDrink": "americano|cappuccino|espresso|iced mocha|latte|mocha|(?:drip |house |iced )?coffee",
    "size": "small|medium|large|(?:eight|twelve|sixteen|twenty) ounce",
}
"""What fills each slot, in the order in which they are looked for."""
_SLOT = re.compile("|".join(rf"(?P<{name}>\b(?:{words})\b)" for name, words in SLOTS.items()))
Samples = NDArray[np.int16]
Row = dict[str, Any]
Transcribe = Callable[[Sequence[Samples]], list[str]]


def main() -> None:
    """Train, judge, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True, help="folder with orders to learn from")
    parser.add_argument("--test", type=Path, required=True, help="folder with orders to judge by")
    parser.add_argument("--noise", type=Path, required=True, help="recording that is mixed into the test folder")
    parser.add_argument("--work", type=Path, default=Path("work/coffee"), help="where everything is made")
    parser.add_argument("--hours", type=float, default=3.8, help="hours of synthetic voices")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], help="passed on to voxstill")
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    args = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    try:  # what is wrong with the folders shows before the training
        rows, audio = judged(args)
        (args.train / "coffee.jsgf").read_bytes()
        manifest(args.train)
    except (OSError, ValueError, KeyError, soundfile.LibsndfileError) as error:
        sys.exit(
            f"error: the orders cannot be read: {type(error).__name__}: {error}\n"
            "  fix: both folders need `manifest.jsonl` with `id` and `audio`, that of `--test` also `slots`, that of "
            "`--train` also `coffee.jsgf`; `--noise` is an audio file"
        )
    cfg, run = student(args)
    figures = judge(cfg, run["student"]["path"], rows, audio, args.seed)
    figures |= {
        "parameters": run["student"]["parameters"],
        "seconds": round(time.perf_counter() - began, 1),
        "steps": {row["step"]: round(row["seconds"], 1) for row in run["steps"]},
        "seed": args.seed,
    }
    print(json.dumps(figures) if args.json else table(figures))


def student(args: argparse.Namespace) -> tuple[Config, dict[str, Any]]:
    """Label and train; returns the configuration and what `voxstill run` printed.

    A work folder keeps all that was ever indexed into it, so other orders, voices and seeds have a folder of their own.
    """
    grammar = (args.train / "coffee.jsgf").resolve()
    rows = [
        {
            "id": row["id"],
            "audio": str((args.train / row["audio"]).resolve()),
            **({"speaker": row["speaker"]} if row.get("speaker") else {}),
            "dataset": "orders",
        }
        for row in manifest(args.train)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    content = fingerprint(lines, grammar.read_text(encoding="utf-8"), args.hours, args.seed)
    folder = args.work / f"seed-{args.seed}-{content}"
    folder.mkdir(parents=True, exist_ok=True)
    orders, voices = folder / "orders.jsonl", folder / "voices"
    orders.write_text(lines, encoding="utf-8")
    seed = ["--set", f"seed={args.seed}"]
    voxstill("voices", str(grammar), "--hours", str(args.hours), "--output", str(voices), *seed, "--json")
    sources = [
        {"uri": str(orders), "language": "en", "split": "train"},
        {"uri": str(voices / "manifest.jsonl"), "supervised": True, "split": "train"},
    ]
    overrides = [
        f"source={json.dumps(sources)}",
        f"teacher.grammar={json.dumps(str(grammar))}",
        f"decode.grammar={json.dumps(str(grammar))}",
        f"work={json.dumps(str(folder / 'work'))}",
        f"train.root={json.dumps(str(folder / 'exp'))}",
        f"seed={args.seed}",
        *args.set,
    ]
    path = str(HERE.parent / "examples/coffee/coffee.yaml")
    options = [word for override in overrides for word in ("--set", override)]
    return config.load(path, overrides), json.loads(voxstill("run", path, *options, "--json"))


def voxstill(*words: str) -> str:
    """The output of a command; what it logs goes to standard error. Where it fails, this program ends as it did."""
    command = [sys.executable, "-m", "voxstill.cli", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def judged(args: argparse.Namespace) -> tuple[list[Row], dict[str, list[Samples]]]:
    """The orders to judge by, and their audio in each condition."""
    rows, noise_T = manifest(args.test), read(args.noise)
    if not rows or not all("slots" in row for row in rows) or not len(noise_T):
        sys.exit(f"error: `{args.test}` must have orders with `slots`, and `{args.noise}` audio")
    clean = [read(args.test / row["audio"]) for row in rows]
    audio = {
        name: [
            quantized(mixed(clean_T, noise_T, snr_db, f"{args.seed} {name} {row['id']}"))
            for clean_T, row in zip(clean, rows, strict=True)
        ]
        for name, snr_db in CONDITIONS.items()
    }
    return rows, audio


def judge(cfg: Config, path: str, rows: list[Row], audio: dict[str, list[Samples]], seed: int) -> dict[str, Any]:
    """Commands accepted of both in each condition, with intervals, p and speeds; one session alone gives neither."""
    student, teacher = recognizer.student(cfg.decode, path), registry.create(cfg.teacher)
    student.load()
    teacher.load()

    def by_student(clips: Sequence[Samples]) -> list[str]:
        return [hypothesis.text for hypothesis in student.transcribe_batch(clips)]

    def by_teacher(clips: Sequence[Samples]) -> list[str]:
        named = [
            Clip(utterance=Utterance(id=str(i), recording_id=str(i), uri="", end_ms=len(clip) // 16), samples_T=clip)
            for i, clip in enumerate(clips)
        ]
        return [label.text for label in teacher.transcribe_batch(named)]

    right = {
        side: {
            name: [slots(text) == row["slots"] for text, row in zip(transcribe(clips), rows, strict=True)]
            for name, clips in audio.items()
        }
        for side, transcribe in (("teacher", by_teacher), ("student", by_student))
    }
    sessions = [row.get("speaker") or row["id"] for row in rows]
    refused = {side: by_session(right[side], sessions) for side in right}
    test = paired_test(refused["teacher"], refused["student"], DRAWS, seed)
    assert test is not None
    intervals = {side: interval(refused[side].counts, DRAWS, seed) for side in refused}
    has_interval = test.blocks > 1
    return {
        **{side: {name: float(np.mean(of)) for name, of in right[side].items()} for side in right},
        "refused": {side: ErrorCounts.sum(refused[side].counts).rate for side in refused},
        "intervals": {side: intervals[side] if has_interval else None for side in refused},
        "difference": test.difference,
        "difference_interval": test.interval if has_interval else None,
        "p": test.p if has_interval else None,
        "sessions": test.blocks,
        "commands": len(rows),
        "rtfx": speeds({"teacher": by_teacher, "student": by_student}, audio["12"][:60]),
    }


def manifest(folder: Path) -> list[Row]:
    """The rows of a folder's manifest."""
    lines = (folder / "manifest.jsonl").read_text(encoding="utf-8-sig").split("\n")
    return [json.loads(line) for line in lines if line.strip()]


def read(path: Path) -> NDArray[np.float64]:
    """Samples at 16 kHz, mono."""
    samples_TC, rate_hz = soundfile.read(path, always_2d=True)
    mono_T: NDArray[np.float64] = samples_TC.mean(1)
    return mono_T if rate_hz == RATE_HZ else soxr.resample(mono_T, rate_hz, RATE_HZ)


def mixed(speech_T: NDArray[np.float64], noise_T: NDArray[np.float64], snr_db: float | None, seed: str) -> Any:
    """Speech with a random stretch of the noise, at half of full scale; clean speech stays as it is."""
    if snr_db is None:
        return speech_T
    looped_T = np.tile(noise_T, len(speech_T) // len(noise_T) + 2)
    start = random.Random(seed).randrange(len(noise_T))
    stretch_T = looped_T[start : start + len(speech_T)]
    scale = np.sqrt(loudest(speech_T) / max(loudest(stretch_T), 1e-12) * 10 ** (-snr_db / 10))
    noisy_T = speech_T + scale * stretch_T
    return noisy_T * (PEAK / max(np.abs(noisy_T).max(), 1e-12))


def loudest(samples_T: NDArray[np.float64]) -> float:
    """Energy of the loudest frame."""
    num = max(len(samples_T) // FRAME, 1)
    return float(max(np.square(samples_T[i * FRAME : (i + 1) * FRAME]).sum() for i in range(num)))


def quantized(samples_T: NDArray[np.float64]) -> Samples:
    """16-bit samples."""
    return np.clip(np.round(samples_T * 32768), -32768, 32767).astype(np.int16)


def slots(text: str) -> dict[str, str] | None:
    """What a command orders; None where it fills a slot in two ways."""
    filled: dict[str, str] = {}
    for match in _SLOT.finditer(text):
        name = str(match.lastgroup)
        if filled.setdefault(name, match.group()) != match.group():
            return None
    return filled


def by_session(right: dict[str, list[bool]], sessions: Sequence[str]) -> Blocks:
    """Commands refused, summed over the conditions, by session."""
    accepted: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for of in right.values():
        for is_right, session in zip(of, sessions, strict=True):
            (accepted if is_right else refused)[session] += 1
    counts = tuple(ErrorCounts(hits=accepted[name], substitutions=refused[name]) for name in sorted(set(sessions)))
    return Blocks(unit="speakers", counts=counts)


def speeds(sides: dict[str, Transcribe], clips: Sequence[Samples]) -> dict[str, float]:
    """Audio seconds a CPU second, the median of rounds in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, transcribe in sides.items():
            began = time.process_time()
            transcribe(clips)
            seconds[name].append(time.process_time() - began)
    audio_s = sum(map(len, clips)) / RATE_HZ
    return {name: round(audio_s / median(of), 1) for name, of in seconds.items()}


def table(figures: dict[str, Any]) -> str:
    """Shares of commands accepted, in per cent, and the test."""
    lines = [f"{'':<9}" + "".join(f"{name:>8}" for name in CONDITIONS) + f"{'refused':>10}  95 % interval"]
    for side in ("teacher", "student"):
        shares = "".join(f"{100 * figures[side][name]:>8.1f}" for name in CONDITIONS)
        bounds = " to ".join(f"{100 * bound:.1f}" for bound in figures["intervals"][side] or ())
        lines.append(f"{side:<9}{shares}{100 * figures['refused'][side]:>10.1f}  {bounds}".rstrip())
    test = "; no interval, as all clips are of one session"
    if figures["p"] is not None:
        low, high = (f"{100 * bound:+.1f}" for bound in figures["difference_interval"])
        test = f" ({low} to {high}), p = {figures['p']:.2g}, over {figures['sessions']} sessions"
    lines += [
        f"student - teacher: {100 * figures['difference']:+.1f} points refused{test}",
        f"{figures['parameters'] / 1e6:.2f} M parameters, "
        f"{figures['rtfx']['student']:.0f} against {figures['rtfx']['teacher']:.0f} times real time, "
        f"{figures['seconds'] / 60:.0f} minutes in all",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
