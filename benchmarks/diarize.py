"""Diarization by the engine `embedded`: error rate, number of speakers, speed and memory.

    python benchmarks/diarize.py --shared SHARED

Conversations are simulated by `conversations.py` over the clips of `SHARED/librispeech-unlabelled-30`: 8 of 3 minutes
with 2 to 5 speakers, from every second speaker by name; what the engine chooses by was chosen on the others, with other
seeds. Then the same with noise of `SHARED/noise-rir` at 15 to 25 dB; conversations of short turns of non-native
speakers; and real recordings: pyannote's sample and 30 s of AMI meetings. `--hours` of conversation, one after another,
show memory and time of a long recording. Seconds are those that the process has the CPU, on one thread.
Prints a table and writes `benchmarks/results/diarize.json`. What is not in SHARED is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402

from conversations import Clips, Conversation, read_clips, simulate, with_noise  # noqa: E402
from voxstill.audio import codec  # noqa: E402
from voxstill.audio.sample_file import SampleFile  # noqa: E402
from voxstill.core.config import Diarize  # noqa: E402
from voxstill.core.pcm import samples_to_s, to_float  # noqa: E402
from voxstill.diarization.diarizer import Diarizer  # noqa: E402
from voxstill.diarization.turns import Turn  # noqa: E402
from voxstill.scoring.speakers import SpeakerTime, score_diarization  # noqa: E402
from voxstill.text import rttm  # noqa: E402
from voxstill.text.rttm import RttmEvent, ScoredRegion  # noqa: E402

HERE = Path(__file__).parent
SPEAKERS = (2, 2, 3, 3, 4, 4, 5, 5)
SHORT_TURN_MS = (1000, 3000)
NOISE_SEED, NOISE_DB = 7, (15.0, 25.0)


@dataclass(frozen=True)
class Row:
    """One set of recordings in one way of scoring; shares are of the speaker time of the reference."""

    name: str
    recordings: int
    minutes: float
    collar_s: float
    overlap_scored: bool
    der: float
    missed: float
    false_alarm: float
    confused: float
    number_right: int
    speakers: list[tuple[int, int]]
    """Speakers found, and speakers in the reference, of each recording."""
    warned: int
    """Recordings whose speakers the engine itself calls doubtful."""
    times_real_time: float


@dataclass(frozen=True)
class LongRow:
    """One long recording."""

    hours: float
    speakers_found: int
    speakers: int
    times_real_time: float
    peak_rss_mb: float


def main() -> None:
    """Measure all sets that are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--hours", type=float, default=6.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    print("| recordings | DER % | missed | false alarm | confused | number right | times real time |")
    print("|---|---|---|---|---|---|---|")
    with Diarizer(Diarize(name="embedded")) as diarizer:
        for name, recordings in sets(args.shared):
            rows += measure(name, recordings, diarizer)
    with Diarizer(Diarize.model_validate({"name": "embedded", "num_speakers": 2})) as diarizer:
        if recordings := pyannote_sample(args.shared):
            rows += measure("pyannote's sample, number known", recordings, diarizer)
    long_row = measure_long(args.shared, args.hours)
    result = {"rows": [asdict(row) for row in rows], "long": None if long_row is None else asdict(long_row)}
    (HERE / "results" / "diarize.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def sets(shared: Path) -> Iterator[tuple[str, Sequence[Conversation]]]:
    """The sets of recordings that are there."""
    if clips := test_clips(shared):
        recordings = [simulate(f"talk{i}", clips, number, i) for i, number in enumerate(SPEAKERS)]
        yield "simulated", recordings
        if noises := read_noises(shared):
            rng = np.random.default_rng(NOISE_SEED)
            yield (
                "simulated, noise at 15 to 25 dB",
                [
                    with_noise(one, noises[int(rng.integers(len(noises)))], float(rng.uniform(*NOISE_DB)))
                    for one in recordings
                ],
            )
    if (folder := shared / "speechocean762-train").exists():
        names = sorted(all_clips := read_clips(folder))[1::2]
        short = {name: all_clips[name] for name in names}
        yield (
            "simulated, non-native, turns of 1 to 3 s",
            [simulate(f"short{i}", short, number, 200 + i, turn_ms=SHORT_TURN_MS) for i, number in enumerate(SPEAKERS)],
        )
    if recordings := pyannote_sample(shared):
        yield "pyannote's sample", recordings
    if recordings := ami(shared):
        yield "AMI, 30 s each", recordings


def test_clips(shared: Path) -> Clips:
    """Clips of the speakers that the figures are of: every second one."""
    folder = shared / "librispeech-unlabelled-30"
    clips = read_clips(folder) if folder.exists() else {}
    return {name: clips[name] for name in sorted(clips)[1::2]}


def read_noises(shared: Path) -> list[np.ndarray]:
    """The recordings of noise; empty where they are not there."""
    folder = shared / "noise-rir"
    if not folder.exists():
        return []
    lines = (folder / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    files = [row["audio"] for row in map(json.loads, lines) if row["kind"] == "noise"]
    return [to_float(codec.decode((folder / file).read_bytes()).samples_T) for file in files]


def pyannote_sample(shared: Path) -> list[Conversation]:
    """A telephone talk of 30 s; empty where it is not there."""
    folder = shared / "diarization" / "pyannote-sample"
    return [_recording(folder / "audio/sample.flac", rttm.read(str(folder / "sample.rttm")))] if folder.exists() else []


def ami(shared: Path) -> list[Conversation]:
    """Stretches of 30 s of meetings of which a reference is there."""
    folder = shared / "diarization" / "pyannote-debug"
    events: dict[str, list[RttmEvent]] = {}
    for path in sorted(folder.glob("*.rttm")):
        for event in rttm.read(str(path)):
            events.setdefault(event.session, []).append(event)
    files = {path.stem: path for path in sorted((folder / "audio").glob("*.flac"))}
    return [_recording(files[session], rows) for session, rows in sorted(events.items()) if session in files]


def _recording(path: Path, reference: Sequence[RttmEvent]) -> Conversation:
    samples_T = codec.decode(path.read_bytes()).samples_T
    return Conversation(path.stem, samples_T, reference, len({event.speaker for event in reference}))


def measure(name: str, recordings: Sequence[Conversation], diarizer: Diarizer) -> list[Row]:
    """Diarize each recording once, and score at both collars."""
    started_s, results = time.process_time(), []
    for recording in recordings:
        result = diarizer.diarize(recording.samples_T)
        if result.error is not None:
            raise SystemExit(f"{recording.name}: {result.error}")
        results.append(result)
    cpu_s = time.process_time() - started_s
    audio_s = sum(samples_to_s(len(recording.samples_T)) for recording in recordings)
    counts = [(result.num_speakers, one.num_speakers) for result, one in zip(results, recordings, strict=True)]
    rows = []
    for collar_s, overlap_scored in ((0.0, True), (0.25, False)):
        total = SpeakerTime()
        for recording, result in zip(recordings, results, strict=True):
            total += score(recording, result.turns, collar_s, overlap_scored)
        shares = [part / total.scored_us for part in (total.missed_us, total.false_alarm_us, total.confused_us)]
        rows.append(
            Row(
                name=name,
                recordings=len(recordings),
                minutes=audio_s / 60,
                collar_s=collar_s,
                overlap_scored=overlap_scored,
                der=sum(shares),
                missed=shares[0],
                false_alarm=shares[1],
                confused=shares[2],
                number_right=sum(num_found == true for num_found, true in counts),
                speakers=counts,
                warned=sum(result.warning is not None for result in results),
                times_real_time=audio_s / cpu_s,
            )
        )
        way = "collar 0" if overlap_scored else "collar 0.25, no overlap"
        figures = " | ".join(f"{100 * share:.1f}" for share in (sum(shares), *shares))
        print(f"| {name}, {way} | {figures} | {rows[-1].number_right} of {len(counts)} | {audio_s / cpu_s:.0f} |")
    return rows


def score(recording: Conversation, turns: Sequence[Turn], collar_s: float, overlap_scored: bool) -> SpeakerTime:
    """Speaker time and errors of the turns of one recording."""
    session, channel = recording.reference[0].session, recording.reference[0].channel
    hypothesis = [
        RttmEvent(
            kind="SPEAKER",
            session=session,
            channel=channel,
            speaker=str(turn.speaker),
            subtype="<na>",
            start_us=turn.start_ms * 1000,
            end_us=turn.end_ms * 1000,
        )
        for turn in turns
    ]
    end_us = round(samples_to_s(len(recording.samples_T)) * 1e6)
    region = ScoredRegion(session=session, channel=channel, start_us=0, end_us=end_us)
    return score_diarization(
        recording.reference, hypothesis, [region], collar_us=round(collar_s * 1e6), ignore_overlap=not overlap_scored
    ).time


def measure_long(shared: Path, hours: float) -> LongRow | None:
    """Diarize hours of conversation of five speakers, in a process of its own for its memory."""
    clips = test_clips(shared)
    if not clips or hours <= 0:
        return None
    clips = {name: clips[name] for name in sorted(clips)[:5]}
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        row = _long_row(clips, hours)
        os.write(writing, json.dumps(asdict(row)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        row = LongRow(**json.loads(pipe.read()))
    os.waitpid(child, 0)
    print(
        f"{row.hours:g} h: {row.speakers_found} of {row.speakers} speakers, {row.times_real_time:.0f} times real time, "
        f"peak {row.peak_rss_mb:.0f} MB"
    )
    return row


def _long_row(clips: Clips, hours: float) -> LongRow:
    """Samples lie in a temporary file, as those of `voxstill diarize` do."""
    with SampleFile() as samples:
        for part in range(round(hours * 6)):
            samples.write(simulate("long", clips, 5, 1000 + part, seconds=600.0).samples_T)
        with Diarizer(Diarize(name="embedded")) as diarizer:
            started_s = time.process_time()
            result = diarizer.diarize(samples)
            cpu_s = time.process_time() - started_s
        audio_s = samples_to_s(len(samples))
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return LongRow(audio_s / 3600, result.num_speakers, len(clips), audio_s / cpu_s, peak_mb)


if __name__ == "__main__":
    main()
