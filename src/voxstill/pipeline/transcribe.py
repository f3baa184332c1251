"""transcribe: audio files in, words out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from voxstill.audio import codec, vad
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, VoxstillError
from voxstill.core.monitor import Progress
from voxstill.core.records import Hypothesis, Word
from voxstill.evaluation import recognition
from voxstill.storage.fetch import read_uri
from voxstill.storage.store import Store
from voxstill.tasks import registry
from voxstill.text import subtitles

FORMATS = ("text", "srt", "vtt", "json")


def transcribe(cfg: Config, model: str, paths: Sequence[str]) -> list[dict[str, Any]]:
    """One transcript for each file, in order, with word times; a file that cannot be read has its reason instead."""
    if (task := registry.name_of(model)) != "recognition":
        raise ConfigError(
            f"`{model}` writes no text",
            why=f"its task is `{task}`",
            fix="`voxstill evaluate` judges it; give a recogniser here",
        )
    student = recognition.recognizer(cfg, model)
    student.load()
    transcripts: list[dict[str, Any]] = []
    with Progress("transcribe", len(paths), "files") as bar:
        for path in paths:
            try:
                samples_T = codec.decode(read_uri(path)).samples_T
            except VoxstillError as error:
                transcripts.append({"audio": path, "text": None, "words": [], "error": error.what})
                bar.advance()
                continue
            duration_ms = codec.samples_to_ms(len(samples_T))
            spans_ms = list(vad.utterances(samples_T, cfg.segment))
            hypotheses = student.transcribe_batch(
                [samples_T[codec.ms_to_samples(start) : codec.ms_to_samples(end)] for start, end in spans_ms],
                [f"{path}:{start}" for start, _ in spans_ms],
            )
            words = [
                shifted(word, start)
                for (start, end), hypothesis in zip(spans_ms, hypotheses, strict=True)
                for word in hypothesis.words or as_one_word(hypothesis, end - start)
            ]
            transcripts.append(
                {
                    "audio": path,
                    "text": " ".join(hypothesis.text for hypothesis in hypotheses if hypothesis.text),
                    "duration_ms": duration_ms,
                    "words": [
                        {"text": w.text, "start_ms": w.start_ms, "end_ms": w.end_ms, "prob": w.prob} for w in words
                    ],
                    "error": None,
                }
            )
            bar.advance()
    return transcripts


def as_one_word(hypothesis: Hypothesis, duration_ms: int) -> tuple[Word, ...]:
    """Return the text of a recogniser without word times as one word that lasts as long as its utterance."""
    return (Word(text=hypothesis.text, start_ms=0, end_ms=duration_ms),) if hypothesis.text else ()


def shifted(word: Word, by_ms: int) -> Word:
    """The word, `by_ms` later."""
    return Word(text=word.text, start_ms=word.start_ms + by_ms, end_ms=word.end_ms + by_ms, prob=word.prob)


def render(transcript: dict[str, Any], form: str) -> str:
    """One transcript as plain text, SubRip, WebVTT or a line of JSON."""
    if form == "json":
        return json.dumps(transcript, ensure_ascii=False)
    if form == "text":
        return transcript["text"] or ""
    words = [Word(**word) for word in transcript["words"]]
    return {"srt": subtitles.srt, "vtt": subtitles.vtt}[form](subtitles.cues(words))


def write_all(transcripts: Sequence[dict[str, Any]], form: str, folder: Path) -> list[Path]:
    """Each transcript in a file named after its audio; equal names are numbered, nothing is overwritten."""
    store = Store(str(folder))
    ending = "txt" if form == "text" else form
    written: list[Path] = []
    for transcript in transcripts:
        if transcript["error"] is not None:
            continue
        stem = Path(transcript["audio"]).stem
        path, number = folder / f"{stem}.{ending}", 1
        while path in written:
            number += 1
            path = folder / f"{stem}-{number}.{ending}"
        store.replace(path.name, f"{render(transcript, form)}\n".encode())
        written.append(path)
    return written
