"""align: a long recording with its transcript becomes labelled utterances, a manifest that `index` reads."""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from voxstill.audio.decoder import Decoder
from voxstill.core import config, pcm
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.monitor import log
from voxstill.core.result import Result
from voxstill.decoding.loaded import Samples
from voxstill.decoding.options import RecognizerOptions
from voxstill.decoding.recognizer import Recognizer
from voxstill.pipeline import transcript_segments
from voxstill.pipeline.transcript_segments import Sentence, TimedText
from voxstill.storage.fetch import read_uri
from voxstill.storage.files import write_file
from voxstill.storage.uri import is_local, local_path

ENDINGS = (".jsonl", ".json")
"""Of the manifest, which is JSONL: by others `index` takes it for another format."""
NOT_SPOKEN, BADLY_ALIGNED, TOO_LONG, NO_TOKENS = (
    "not spoken",
    "below `filter.min_alignment`",
    "longer than `segment.max_ms`",
    "without a token of the model",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignResult(Result):
    """The utterances of a recording and their hours; `dropped` are those whose text does not fit the audio."""

    path: str
    utterances: int
    hours: float
    dropped: int


@dataclass(frozen=True, slots=True)
class _Aligned:
    """A text with its audio and score, or why it is dropped."""

    text: str
    start_ms: int = 0
    end_ms: int = 0
    score: float | None = None
    reason: str | None = None


def align(
    cfg: Config, audio: str, text: str, output: str, *, model: str | None = None, overwrite: bool = False
) -> AlignResult:
    """Align the text, a file, with the audio, and write the utterances that fit as a JSONL manifest.

    `model` is a CTC model, `filter.aligner` where it is None. ConfigError if there is none, if the manifest ends
    in none of `ENDINGS`, or if it exists, unless it may be overwritten; DataError if text and audio cannot belong
    together.
    """
    path = _output_path(output, overwrite=overwrite)
    if (model := model or cfg.filter.aligner) is None:
        raise ConfigError(
            "no model for the alignment is set",
            code="option-missing",
            why="neither `--model` nor `filter.aligner` is set",
            fix="give a CTC model of the language: a student, a wav2vec 2.0 or a Parakeet-CTC",
        )
    recognizer = Recognizer(config.validated(RecognizerOptions, {"model": model}, prefix="filter.aligner."))
    transcript = _read_text(text)
    with Decoder(cfg.engine.decode_s, cfg.engine.decode_mb) as decoder:
        try:
            samples_T = decoder.decode(read_uri(audio)).samples_T
        except DataError as error:
            raise DataError(
                f"`{audio}` cannot be decoded: {error.what}", code=error.code, why=error.why, fix=error.fix
            ) from None
    recognizer.load()
    rows = list(_aligned(cfg, recognizer, samples_T, transcript, text))
    recognizer.close()
    kept = [row for row in rows if row.reason is None]
    _log_dropped(rows)
    if not kept:
        raise DataError(
            f"no text of `{text}` fits `{audio}`",
            code="text-not-aligned",
            why=", ".join(f"{count} {reason}" for reason, count in Counter(row.reason for row in rows).items()),
            fix="check that they belong together, use a model of their language, or lower `filter.min_alignment`",
        )
    write_file(path, _manifest(kept, audio, path))
    hours = sum(row.end_ms - row.start_ms for row in kept) / 3_600_000
    return AlignResult(path=output, utterances=len(kept), hours=round(hours, 4), dropped=len(rows) - len(kept))


def _output_path(output: str, *, overwrite: bool) -> Path:
    """Where the manifest is written; ConfigError where it cannot go there."""
    if not is_local(output):
        fix = "write it to this machine, then copy it there"
        raise ConfigError(
            f"`{output}` is not a path", code="output-path", why="the manifest is a file of this machine", fix=fix
        )
    path = local_path(output)
    if path.is_dir():
        raise ConfigError(f"`{path}` is a folder", code="output-path", why="the manifest is a file", fix="give a file")
    if path.suffix.lower() not in ENDINGS:
        raise ConfigError(
            f"`{path}` cannot be the manifest",
            code="output-path",
            why="it is JSONL, and `voxstill index` goes by the ending",
            fix=f"let it end in {' or '.join(ENDINGS)}",
        )
    if path.exists() and not overwrite:
        raise ConfigError(
            f"`{path}` exists",
            code="output-exists",
            why="it would be overwritten",
            fix="give another file, or add --yes",
        )
    return path


def _read_text(text: str) -> str:
    """The transcript; DataError if it is empty or no text."""
    try:
        transcript = read_uri(text).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"`{text}` is not a text file", code="unreadable-file", why=str(error), fix="give a text file in UTF-8"
        ) from None
    if not transcript.split():
        raise DataError(
            f"`{text}` is empty", code="no-words", why="it contains no words", fix="give the transcript of the audio"
        )
    return transcript


def _aligned(cfg: Config, recognizer: Recognizer, samples_T: Samples, transcript: str, name: str) -> Iterator[_Aligned]:
    """The texts of the transcript in order, with what is dropped of them; DataError if it cannot be aligned."""
    from voxstill.decoding import emissions, forced_alignment

    vocabulary, frame_ms = recognizer.vocabulary, recognizer.frame_ms

    @functools.cache
    def encode(word: str) -> Sequence[int]:
        return next(iter(vocabulary.encodings(word)), ())

    sentences = transcript_segments.sentences(transcript, encode, vocabulary.delimiter_id)
    tokens = [sentence.tokens for sentence in sentences]
    if not any(tokens):
        raise DataError(
            f"`{recognizer.options.model}` has no token of any word in `{name}`",
            code="text-not-aligned",
            why=f"it begins with {' '.join(transcript.split()[:5])!r}",
            fix="use a model of its language and script",
        )
    written = [ids for ids in tokens if ids]
    num_frames = len(samples_T) // pcm.ms_to_samples(frame_ms) - 1  # some models have one less than there is time for
    if num_frames < (fewest := forced_alignment.min_frames(written)):
        raise DataError(
            "the audio is too short for its text",
            code="text-not-aligned",
            why=f"`{name}` has {fewest:,} tokens, and the model {max(num_frames, 0):,} frames of {frame_ms} ms",
            fix="give the audio that the text belongs to, or the text of this part",
        )
    aligned = forced_alignment.align(emissions.log_probs(recognizer, samples_T), written, vocabulary.blank_id)
    firsts = itertools.accumulate((len(ids) for ids in tokens), initial=0)
    texts: list[TimedText] = []
    max_ms = max(cfg.segment.max_ms - 2 * cfg.segment.pad_ms, 1)

    def place(item: tuple[Sentence, int]) -> tuple[int, bool]:
        """The line, and whether it was spoken."""
        sentence, first = item
        return sentence.line_number, bool(sentence.tokens) and aligned.start_U[first] >= 0

    for (_, is_spoken), run in itertools.groupby(zip(sentences, firsts, strict=False), place):
        if is_spoken:
            line = [transcript_segments.timed(sentence, first, aligned, frame_ms) for sentence, first in run]
            texts += transcript_segments.pieces(line, max_ms)
        else:
            for sentence, _ in run:
                yield _Aligned(sentence.text, reason=NOT_SPOKEN if sentence.tokens else NO_TOKENS)
    spans_ms = transcript_segments.padded(texts, pcm.samples_to_ms(len(samples_T)), cfg.segment)
    for row, (start_ms, end_ms) in zip(texts, spans_ms, strict=True):
        score = aligned.score(row.first, row.last)
        reason = BADLY_ALIGNED if score < cfg.filter.min_alignment else None
        if row.end_ms - row.start_ms > max_ms:
            reason = TOO_LONG
        yield _Aligned(row.text, start_ms, end_ms, score, reason)


def _log_dropped(rows: Sequence[_Aligned]) -> None:
    """Log each dropped text, and how many there are of each kind with their seconds."""
    for reason, num in Counter(row.reason for row in rows if row.reason is not None).items():
        dropped = [row for row in rows if row.reason == reason]
        seconds = sum(row.end_ms - row.start_ms for row in dropped) / 1000
        log.warning("align: dropped %d, %s: %.1f s of audio", num, reason, seconds)
        for row in dropped:
            at = "" if row.score is None else f" at {row.start_ms / 1000:.1f} s, alignment {row.score:.2f}"
            log.info("align: %s%s: %s", reason, at, row.text)


def _manifest(rows: Sequence[_Aligned], audio: str, path: Path) -> bytes:
    """JSON lines; a path below the folder of the manifest is relative to it."""
    stem = Path(audio).stem
    if is_local(audio):
        folder, absolute = os.path.abspath(path.parent), str(local_path(audio).absolute())
        audio = os.path.relpath(absolute, folder) if absolute.startswith(folder + os.sep) else absolute
    lines = (
        {
            "audio": audio,
            "id": f"{stem}-{number:05}",
            "start_ms": row.start_ms,
            "end_ms": row.end_ms,
            "text": row.text,
            "alignment": None if row.score is None else round(row.score, 4),
        }
        for number, row in enumerate(rows, 1)
    )
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
