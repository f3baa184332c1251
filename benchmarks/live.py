"""Latency of live transcription: streams in real time to `voxstill serve`, and what comes back when.

    python benchmarks/live.py mine-onnx --audio recordings --streams 1 4 16

Each stream is a WebSocket that sends recordings one after another, 100 ms at a time as a microphone does, and commits
when one has ended. `first update` is from the end of the first word in the audio, by the word times of the final text,
until the first words arrive, which may be interim; `stays` until the first that stay; `words` is the same of every word
that stays and arrives before the final text; `final` is from the commit to the final text.
Prints a table and writes `benchmarks/results/live.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr
import websockets
from numpy.typing import NDArray

from serve import server

HERE = Path(__file__).parent
RATE_HZ = 24_000
CHUNK_S = 0.1
TRANSCRIPTION = "conversation.item.input_audio_transcription"


@dataclass
class Latencies:
    """Seconds, of all streams together."""

    first: list[float] = field(default_factory=list)
    stays: list[float] = field(default_factory=list)
    words: list[float] = field(default_factory=list)
    final: list[float] = field(default_factory=list)
    changed: int = 0
    """Recordings whose final text does not begin with the words that arrived before."""
    recordings: int = 0


@dataclass(frozen=True)
class Row:
    """One number of streams; latencies in milliseconds."""

    streams: int
    recordings: int
    first_p50_ms: float
    first_p95_ms: float
    stays_p50_ms: float
    stays_p95_ms: float
    words_p50_ms: float
    final_p50_ms: float
    final_p95_ms: float
    changed: int


def main() -> None:
    """Measure every number of streams."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--audio", type=Path, required=True, help="folder of short recordings")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--recordings", type=int, default=10, help="recordings of each stream")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--partial-every-ms", type=int, default=240)
    args = parser.parse_args()
    paths = sorted(path for path in args.audio.rglob("*") if path.suffix in (".wav", ".flac"))
    recordings = [read(path) for path in paths[: max(args.streams) * args.recordings]]
    rows = []
    print(
        "| streams | recordings | first update p50, ms | p95 | stays p50 | p95 "
        "| words p50 | final p50 | p95 | changed |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    with server(args.model, args.engine, f"serve.partial_every_ms={args.partial_every_ms}") as one:
        for num_streams in args.streams:
            row = asyncio.run(measured(one.url, recordings, num_streams, args.recordings))
            rows.append(row)
            print(
                f"| {row.streams} | {row.recordings} | {row.first_p50_ms:.0f} | {row.first_p95_ms:.0f} "
                f"| {row.stays_p50_ms:.0f} | {row.stays_p95_ms:.0f} "
                f"| {row.words_p50_ms:.0f} | {row.final_p50_ms:.0f} | {row.final_p95_ms:.0f} | {row.changed} |",
                flush=True,
            )
    result = {
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "partial_every_ms": args.partial_every_ms,
        "rows": [asdict(row) for row in rows],
    }
    (HERE / "results/live.json").write_text(json.dumps(result, indent=1) + "\n")


def read(path: Path) -> NDArray[np.int16]:
    """The samples of a recording at the rate of the stream."""
    samples_T, rate_hz = soundfile.read(path, dtype="float32")
    resampled_T = soxr.resample(samples_T, rate_hz, RATE_HZ)
    scaled_T: NDArray[np.float32] = np.clip(resampled_T * 32_767, -32_768, 32_767)
    return scaled_T.astype(np.int16)


async def measured(url: str, recordings: Sequence[NDArray[np.int16]], num_streams: int, num: int) -> Row:
    """The latencies of so many streams at once."""
    latencies = Latencies()
    jobs = []
    for number in range(num_streams):
        own = [recordings[(number * num + i) % len(recordings)] for i in range(num)]
        jobs.append(stream(url, own, number / num_streams, latencies))
    await asyncio.gather(*jobs)

    def quantile(values: list[float], share: float) -> float:
        return round(1000 * float(np.quantile(values, share)), 1) if values else float("nan")

    return Row(
        streams=num_streams,
        recordings=latencies.recordings,
        first_p50_ms=quantile(latencies.first, 0.5),
        first_p95_ms=quantile(latencies.first, 0.95),
        stays_p50_ms=quantile(latencies.stays, 0.5),
        stays_p95_ms=quantile(latencies.stays, 0.95),
        words_p50_ms=quantile(latencies.words, 0.5),
        final_p50_ms=quantile(latencies.final, 0.5),
        final_p95_ms=quantile(latencies.final, 0.95),
        changed=latencies.changed,
    )


async def stream(url: str, recordings: Sequence[NDArray[np.int16]], delay_s: float, latencies: Latencies) -> None:
    """Send recordings in real time, and note what comes back when."""
    await asyncio.sleep(delay_s)
    async with websockets.connect(
        f"{url.replace('http', 'ws')}/v1/realtime?intent=transcription&model=model"
    ) as client:
        inputs = {"turn_detection": None, "format": {"type": "audio/pcm", "rate": RATE_HZ}}
        session = {"type": "transcription", "audio": {"input": inputs}}
        await client.send(json.dumps({"type": "session.update", "session": session}))
        before_s = 0.0  # of audio in the recordings before
        for samples_T in recordings:
            done: asyncio.Task[list[tuple[float, Any]]] = asyncio.create_task(events(client))
            begun = time.perf_counter()
            size = round(CHUNK_S * RATE_HZ)
            for start in range(0, len(samples_T), size):
                chunk_T = samples_T[start : start + size]
                audible_s = begun + (start + len(chunk_T)) / RATE_HZ  # a microphone has it no sooner
                await asyncio.sleep(max(0.0, audible_s - time.perf_counter()))
                audio = base64.b64encode(chunk_T.tobytes()).decode()
                await client.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
            stopped = time.perf_counter()
            await client.send(json.dumps({"type": "input_audio_buffer.commit"}))
            received = await asyncio.wait_for(done, 60)
            note(received, begun - before_s, stopped, latencies)
            before_s += len(samples_T) / RATE_HZ


async def events(client: websockets.ClientConnection) -> list[tuple[float, Any]]:
    """All events up to the final text, each with the time at which it came."""
    received: list[tuple[float, Any]] = []
    while not received or received[-1][1]["type"] != f"{TRANSCRIPTION}.completed":
        event = json.loads(await client.recv())
        if event["type"] in ("error", f"{TRANSCRIPTION}.failed"):
            raise RuntimeError(json.dumps(event))
        received.append((time.perf_counter(), event))
    return received


def note(received: Sequence[tuple[float, Any]], zero: float, stopped: float, latencies: Latencies) -> None:
    """Count the events of one recording; `zero` is when the audio of the session began."""
    finished, final = received[-1]
    latencies.recordings += 1
    latencies.final.append(finished - stopped)
    deltas = [(at, event) for at, event in received if event["type"] == f"{TRANSCRIPTION}.delta" and at < stopped]
    words = [(at, word) for at, event in deltas for word in event["words"]]
    texts = [word["word"] for word in final["words"]]
    latencies.changed += texts[: len(words)] != [word["word"] for _, word in words]
    if texts and deltas:
        latencies.first.append(deltas[0][0] - zero - final["words"][0]["end"])
    if texts and words:
        latencies.stays.append(words[0][0] - zero - final["words"][0]["end"])
    latencies.words += [at - zero - word["end"] for at, word in words]


if __name__ == "__main__":
    main()
