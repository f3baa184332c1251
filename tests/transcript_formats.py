"""One recording in every format of the server, each as plain text."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence

import numpy as np
import openai
import soundfile

from tones import TEXTS
from voxstill.core.records import RATE_HZ
from voxstill.synthesis.voices import SpeechJob, synthesize


def recording(seconds: float) -> bytes:
    """A FLAC of a synthetic voice that says the words of the tones, with pauses; the VAD hears no tones as speech."""
    jobs = [SpeechJob(text=text, voice="en-us", words_per_minute=150, pitch=50) for text in TEXTS]
    spoken = list(synthesize(jobs, processes=1))
    rng = np.random.default_rng(0)
    file = io.BytesIO()
    num_samples = 0
    with soundfile.SoundFile(file, "w", RATE_HZ, 1, format="FLAC", subtype="PCM_16") as flac:
        while num_samples < seconds * RATE_HZ:
            pause_T = rng.normal(0, 3, int(RATE_HZ * rng.uniform(0.5, 1.5))).astype(np.int16)
            samples_T = np.concatenate([spoken[int(rng.integers(len(spoken)))], pause_T])
            flac.write(samples_T)
            num_samples += len(samples_T)
    return file.getvalue()


def texts(client: openai.OpenAI, model: str, data: bytes) -> Mapping[str, str]:
    """The text of each format, and of the stream of events."""
    create = client.audio.transcriptions.create
    file = ("a.flac", data)
    verbose = create(
        model=model, file=file, response_format="verbose_json", timestamp_granularities=["word", "segment"]
    )
    stream = list(create(model=model, file=file, stream=True))
    deltas = "".join(event.delta for event in stream if event.type == "transcript.text.delta")
    return {
        "json": create(model=model, file=file).text,
        "text": str(create(model=model, file=file, response_format="text")).strip(),
        "srt": _of_cues(str(create(model=model, file=file, response_format="srt"))),
        "vtt": _of_cues(str(create(model=model, file=file, response_format="vtt"))),
        "verbose_json": verbose.text,
        "its words": " ".join(word.word for word in verbose.words or []),
        "its segments": " ".join(segment.text.strip() for segment in verbose.segments or [] if segment.text),
        "deltas": deltas,
        "done": next(event.text for event in stream if event.type == "transcript.text.done"),
    }


def client_of(url: str, key: str) -> openai.OpenAI:
    """The official client, which asks once and waits."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=1200)


def _of_cues(subtitles: str) -> str:
    """The words of SubRip or WebVTT."""
    lines: Sequence[str] = [
        line for line in subtitles.splitlines() if line and "-->" not in line and not re.fullmatch(r"\d+|WEBVTT", line)
    ]
    return " ".join(" ".join(lines).split())
