"""Time and memory of transcribing long recordings: from a minute to an hour of speech, in a FLAC.

    python benchmarks/transcribe.py --minutes 1 10 60

Sentences of eight voices of espeak-ng with pauses, again and again, and a student of 1.6 million parameters that was
not trained: its text is nothing, its work that of any other. Each length runs in a process of its own. Peak memory is
that of the process, libraries and model included, and of the process that decodes; the recording is on the disk. Prints
a table and writes `benchmarks/results/transcribe.json`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import soundfile

from voxstill.core.records import RATE_HZ
from voxstill.synthesis.voices import SpeechJob, synthesize

HERE = Path(__file__).parent
VOICES = ("en-us+m1", "en-us+f2", "en-gb-x-rp+m3", "en-gb-scotland+f4", "en-029+m6", "en-us+f1", "en-us+m7", "en-us+f5")
TEXT = "turn on the lights in the kitchen and call me when the water boils"
PAUSE_S = 1.2


@dataclass(frozen=True)
class Row:
    """One recording."""

    minutes: float
    file_mb: float
    seconds: float
    peak_mb: int
    decoder_peak_mb: int


def main() -> None:
    """Measure each length in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, nargs="+", default=[1.0, 10.0, 60.0])
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS, metavar=("MODEL", "AUDIO"))
    args = parser.parse_args()
    if args.one:
        model, audio = args.one
        print(json.dumps(asdict(measure(model, audio, args.minutes[0]))))
        return
    rows = []
    print("| minutes | file, MB | seconds | peak memory, MB | of the decoder, MB |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        make_student(Path(folder) / "model")
        for minutes in args.minutes:
            write_recording(Path(folder) / "long.flac", minutes)
            command = [sys.executable, __file__, "--minutes", str(minutes), "--one", f"{folder}/model"]
            command.append(f"{folder}/long.flac")
            row = Row(**json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
            rows.append(asdict(row))
            print(f"| {row.minutes:g} | {row.file_mb:.1f} | {row.seconds:.1f} ", end="")
            print(f"| {row.peak_mb} | {row.decoder_peak_mb} |", flush=True)
    (HERE / "results/transcribe.json").write_text(json.dumps(rows, indent=1) + "\n")


def make_student(folder: Path) -> None:
    """A student of random weights."""
    from voxstill.nn import students
    from voxstill.nn.log_mel import LogMel
    from voxstill.text import tokenizer

    vocabulary = tokenizer.train([TEXT], "word", 20)
    students.build("tiny", len(vocabulary.pieces), dropout=0.0, seed=0).save_pretrained(folder)
    vocabulary.save(folder, LogMel().extractor)


def write_recording(path: Path, minutes: float) -> None:
    """A FLAC of so many minutes, written a round of the voices at a time."""
    pause_T = np.random.default_rng(0).normal(0, 8, round(PAUSE_S * RATE_HZ)).astype(np.int16)
    jobs = [SpeechJob(text=TEXT, voice=voice) for voice in VOICES]
    round_T = np.concatenate([part_T for samples_T in synthesize(jobs) for part_T in (samples_T, pause_T)])
    left = round(minutes * 60 * RATE_HZ)
    with soundfile.SoundFile(path, "w", RATE_HZ, 1, "PCM_16") as file:
        while left > 0:
            file.write(round_T[:left])
            left -= len(round_T)


def measure(model: str, audio: str, minutes: float) -> Row:
    """Transcribe one recording in this process."""
    from voxstill.pipeline.transcribe import Recognizer

    recognizer = Recognizer.from_pretrained(model)
    begin = time.perf_counter()
    [transcript] = recognizer.transcribe(audio)
    seconds = time.perf_counter() - begin
    assert transcript.error is None, transcript.error
    child = recognizer._reader._decoder._child
    assert child is not None
    status = Path(f"/proc/{child.pid}/status").read_text()  # `getrusage` counts what it was forked from
    return Row(
        minutes=minutes,
        file_mb=Path(audio).stat().st_size / 1e6,
        seconds=seconds,
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        decoder_peak_mb=int(status.partition("VmHWM:")[2].split()[0]) // 1024,
    )


if __name__ == "__main__":
    main()
