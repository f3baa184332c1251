"""voices: a corpus of synthetic speech from a grammar or from sentences, with a manifest."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxstill.audio import codec
from voxstill.core import pcm
from voxstill.core.arguments import not_negative
from voxstill.core.atomic import write_atomically
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.monitor import Progress, log
from voxstill.core.records import Split, Word, fingerprint
from voxstill.core.result import Result
from voxstill.storage.fetch import read_uri
from voxstill.storage.redaction import redact_uri
from voxstill.synthesis.voices import ACCENTS, VARIANTS, SpeechJob, speak
from voxstill.text import jsgf

_SHARES: dict[Split, float] = {"train": 0.9, "dev": 0.05, "test": 0.05}
_AT_ONCE = 256
"""Sentences that are synthesised together: their jobs are in memory."""
_FILES_IN_FOLDER = 1000
_JSGF = b"#JSGF"
Row = dict[str, Any]
"""A row of the manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoicesResult(Result):
    """The manifest of a synthetic corpus, and how much there is."""

    path: str
    utterances: int
    hours: float
    sentences: int
    """Different ones."""
    voices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One utterance before its synthesis, with all that was drawn for it."""

    id: str
    split: Split
    speech: SpeechJob
    level_db: float
    before_ms: int
    after_ms: int


def voices(texts: str, output: str, hours: float, language: str, seed: int) -> VoicesResult:
    """Make a folder of synthetic speech and `manifest.jsonl`; equal arguments make equal bytes.

    `texts` is a JSGF grammar, whose sentences are drawn by its weights, or a text file with a sentence in each line,
    of which all are spoken before one is spoken again. Voice, tempo, pitch, pauses and level are drawn for each
    utterance; no voice is in two splits. A folder that is complete is not made again. ConfigError if there is
    something else in it or `hours` is 0, DataError if there are no sentences or the synthesiser lacks the language.
    """
    hours = not_negative("hours", hours)
    num_samples = pcm.ms_to_samples(round(hours * 3_600_000))
    if num_samples == 0:
        raise ConfigError(
            f"`--hours` is {hours:g}", code="option-value", why="there would be no audio", fix="give a larger number"
        )
    sentences, content = _sentences(texts, seed)
    folder = Path(output)
    manifest, marker = folder / "manifest.jsonl", folder / "voices.json"
    options = {"texts": content, "hours": hours, "language": language, "seed": seed}
    if folder.exists() and not folder.is_dir():
        raise _unusable(folder, "it is a file")
    folder.mkdir(parents=True, exist_ok=True)
    with _held(folder):
        _check_folder(folder, marker, options)
        if not manifest.is_file():
            shutil.rmtree(folder / "audio", ignore_errors=True)  # of a command that was stopped
            write_atomically(marker, json.dumps(options) + "\n")
            prompts = draw(sentences, language, seed)
            rows = _spoken(folder, fingerprint(*options.values()), prompts, language, num_samples)
            write_atomically(manifest, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        return _result(manifest)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a folder, until this process ends at the latest; waits for a process that holds it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("voices: another process writes `%s`; waiting for it", folder)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def draw(sentences: Iterator[str], language: str, seed: int) -> Iterator[Prompt]:
    """A voice and the way it speaks for each sentence; an utterance does not depend on how many there are."""
    accents = ACCENTS if language == "en" else (language,)
    for number, text in enumerate(sentences):
        rng = random.Random(fingerprint(seed, "voices", number))
        [split] = rng.choices(tuple(_SHARES), tuple(_SHARES.values()))
        yield Prompt(
            id=f"{number:06d}",
            split=split,
            speech=SpeechJob(
                text=text,
                voice=f"{rng.choice(accents)}+{rng.choice(VARIANTS[split])}",
                words_per_minute=rng.randint(120, 200),
                pitch=rng.randint(25, 75),
                word_gap_ms=max(0, 10 * rng.randint(-10, 12)),
            ),
            level_db=rng.uniform(-36, -18),
            before_ms=rng.randint(50, 300),
            after_ms=rng.randint(50, 300),
        )


def _sentences(uri: str, seed: int) -> tuple[Iterator[str], str]:
    """Sentences without end, and the hash of what they are drawn from."""
    data = read_uri(uri)
    rng = random.Random(fingerprint(seed, "sentences"))
    if data.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(_JSGF):
        grammar = jsgf.of_bytes(data, uri)
        if not any(_is_speakable(" ".join(grammar.sample(random.Random(number)))) for number in range(100)):
            raise _no_sentences(uri, "no sentence of the grammar has a letter or a digit")
        drawn = (" ".join(grammar.sample(rng)) for _ in itertools.count())
        return (text for text in drawn if _is_speakable(text)), fingerprint(data.decode())
    lines = _lines(data, uri)
    return _shuffled(lines, rng), fingerprint(*lines)


def _lines(data: bytes, uri: str) -> list[str]:
    """The sentences of a text file; lines without a letter or a digit are left out, with a warning."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _no_sentences(uri, "it is not UTF-8") from None
    if "\0" in text:
        raise _no_sentences(uri, "it is not text: it has null characters")
    filled = [line for line in (" ".join(line.split()) for line in text.splitlines()) if line]
    lines = [line for line in filled if _is_speakable(line)]
    if not lines:
        raise _no_sentences(uri, "no line has a letter or a digit" if filled else "it is empty")
    if unspeakable := len(filled) - len(lines):
        log.warning("voices: %s lines have no letter and no digit, and are left out", f"{unspeakable:,}")
    return lines


def _is_speakable(text: str) -> bool:
    return any(character.isalnum() for character in text)


def _shuffled(lines: Sequence[str], rng: random.Random) -> Iterator[str]:
    while True:
        yield from rng.sample(lines, len(lines))


def _no_sentences(uri: str, why: str) -> DataError:
    return DataError(
        f"there are no sentences in `{redact_uri(uri)}`",
        code="no-words",
        why=why,
        fix="give a JSGF grammar, or a text file with a sentence in each line",
    )


def _check_folder(folder: Path, marker: Path, options: dict[str, object]) -> None:
    """ConfigError if a folder holds anything but this corpus, whole, or any that was started."""
    if marker.is_file():
        is_whole = (folder / "manifest.jsonl").is_file()
        if is_whole and marker.read_text(encoding="utf-8") != json.dumps(options) + "\n":
            raise _unusable(folder, "it contains voices of other texts or options")
    elif any(folder.iterdir()):
        raise _unusable(folder, "it is not empty")


def _unusable(folder: Path, why: str) -> ConfigError:
    return ConfigError(
        f"`{folder}` cannot be used", code="output-exists", why=why, fix="give a new folder, or remove it first"
    )


def _spoken(folder: Path, corpus: str, prompts: Iterator[Prompt], language: str, num_samples: int) -> list[Row]:
    """Write the audio of so many prompts that it lasts `num_samples`; return the rows of the manifest.

    Their ids begin with `corpus`, so that several corpora can be sources of one work folder.
    """
    rows: list[Row] = []
    done = 0
    with Progress("voices", pcm.samples_to_s(num_samples), "s of audio") as bar:
        while done < num_samples:
            batch = list(itertools.islice(prompts, _AT_ONCE))
            recordings = speak([prompt.speech for prompt in batch], processes=os.cpu_count() or 1)
            for prompt, speech in zip(batch, recordings, strict=True):
                if done >= num_samples:
                    break
                levelled_T = _levelled(prompt, speech.samples_T)
                row = _row(corpus, prompt, language, len(levelled_T), speech.words)
                path = folder / str(row["audio"])
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(codec.encode(levelled_T, "flac"))
                rows.append(row)
                done += len(levelled_T)
                bar.advance(pcm.samples_to_s(len(levelled_T)))
            recordings.close()
    return rows


def _levelled(prompt: Prompt, samples_T: NDArray[np.int16]) -> NDArray[np.int16]:
    """The speech at its level, with silence before and after it."""
    speech_T = samples_T / np.sqrt(np.mean(np.square(samples_T, dtype=np.float64)))
    padded_T = np.pad(speech_T, (pcm.ms_to_samples(prompt.before_ms), pcm.ms_to_samples(prompt.after_ms)))
    return pcm.quantize((padded_T * 10 ** (prompt.level_db / 20)).astype(np.float32))


def _row(corpus: str, prompt: Prompt, language: str, num_samples: int, words: Sequence[Word]) -> Row:
    return {
        "id": f"{corpus}-{prompt.id}",
        "audio": f"audio/{int(prompt.id) // _FILES_IN_FOLDER:03d}/{prompt.id}.flac",
        "text": prompt.speech.text,
        "duration": round(pcm.samples_to_s(num_samples), 3),
        "speaker": prompt.speech.voice,
        "language": language,
        "split": prompt.split,
        "dataset": "voices",
        "words": [
            {
                "word": word.text,
                "start": round((prompt.before_ms + word.start_ms) / 1000, 3),
                "end": round((prompt.before_ms + word.end_ms) / 1000, 3),
            }
            for word in words
        ],
    }


def _result(manifest: Path) -> VoicesResult:
    rows = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
    return VoicesResult(
        path=str(manifest),
        utterances=len(rows),
        hours=sum(row["duration"] for row in rows) / 3600,
        sentences=len({row["text"] for row in rows}),
        voices=len({row["speaker"] for row in rows}),
    )
