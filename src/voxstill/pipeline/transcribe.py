"""transcribe: audio in, words with times out; long audio is cut at pauses."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self, get_args

from voxstill.core.arguments import whole_number
from voxstill.core.config import Config, takes_config
from voxstill.core.errors import ConfigError
from voxstill.core.monitor import Progress, log
from voxstill.core.records import RATE_HZ, Hypothesis, Word
from voxstill.core.result import NOT_IN_JSON, Result
from voxstill.decoding import recognizer
from voxstill.pipeline import recordings
from voxstill.pipeline.audio_input import Audio, AudioReader, exit_code, recordings_of
from voxstill.pipeline.checkpoint_model import model_of
from voxstill.pipeline.utterance_groups import Reading, UtteranceGroups
from voxstill.storage.redaction import redact_uri
from voxstill.storage.store import Store
from voxstill.storage.uri import is_local
from voxstill.tasks import registry
from voxstill.text import subtitles

Form = Literal["text", "srt", "vtt", "json"]
FORMS: tuple[Form, ...] = get_args(Form)
_MOST_NAME_BYTES, _NOT_IN_NAMES = 200, re.compile("[\ud800-\udfff\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript(Result):
    """The transcript of one recording: its text, and its words with their times from the start of the recording.

    Where the audio cannot be read or transcribed, `text` is None and `error` says why. Where it is truncated or
    damaged, the text is that of the audio that there is, and `warning` says what is wrong; so it does where some of its
    utterances cannot be transcribed.

    >>> recognizer = voxstill.Recognizer.from_pretrained("exp/student")
    >>> [transcript] = recognizer.transcribe(b"no audio")
    >>> transcript.text is None, transcript.error is None
    (True, False)
    """

    audio: str
    """Its path or URI; `bytes` or `samples` where there is none, and the type of what is no audio at all."""
    text: str | None
    duration_ms: int | None = None
    words: tuple[Word, ...] = ()
    error: str | None
    warning: str | None = None

    def render(self, form: Form) -> str:
        """Plain text, SubRip (`srt`), WebVTT (`vtt`) or a line of JSON; ConfigError for another form."""
        check_form(form)
        if form == "json":
            # a name that is no UTF-8 has halves of surrogate pairs, which JSON holds as escapes
            return json.dumps(self.to_dict(), ensure_ascii=False).encode(errors="backslashreplace").decode()
        if form == "text":
            return self.text or ""
        return {"srt": subtitles.srt, "vtt": subtitles.vtt}[form](subtitles.cues(self.words, self.duration_ms))

    def to_text(self) -> str:
        """The text alone."""
        return self.text or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscribeResult(Result):
    """The transcripts of all files, and the text that the command prints."""

    transcripts: Sequence[Transcript]
    skipped: int = 0
    """Files of folders that are not audio by their names."""
    text: str | None = field(default=None, compare=False, metadata=NOT_IN_JSON)

    @property
    def exit_code(self) -> int:
        """That of bad data, where a file could not be read."""
        return exit_code(self.transcripts)

    def to_text(self) -> str:
        """The transcripts in the format that was asked for, or the files they were written to; else their texts."""
        return "\n".join(transcript.text or "" for transcript in self.transcripts) if self.text is None else self.text


def load_recognizer(cfg: Config, model: str, **options: int) -> recognizer.Recognizer:
    """Load an experiment, a checkpoint in it, an exported student or another model; `options` as `RecognizerOptions`.

    ConfigError if it is not a recogniser or `decode.tune` is set, DataError if there is nothing to load.
    """
    if cfg.decode.tune:
        raise ConfigError(
            "`decode.tune` has no effect in transcription",
            code="option-unused",
            why="weights are tuned by `voxstill evaluate` and `voxstill run`",
            fix="leave it out, and set `decode.lm_weight` and `decode.word_bonus` to the values they found",
        )
    with model_of(model) as (folder, _):
        if (task := registry.name_of(folder)) != "recognition":
            raise ConfigError(
                f"`{model}` does not output text",
                code="wrong-model",
                why=f"its task is `{task}`",
                fix="evaluate it with `voxstill evaluate`, or give a recogniser",
            )
        student = recognizer.student(cfg.decode, folder, **options)
        student.load()
    if (limit_ms := student.max_duration_ms) is not None and cfg.segment.max_ms > limit_ms:
        log.warning(
            "`%s` takes at most %g s at once: audio is cut to that, and not to `segment.max_ms`, which is %d",
            *(redact_uri(model), limit_ms / 1000, cfg.segment.max_ms),
        )
    return student


def load_live_recognizer(cfg: Config, model: str, **options: int) -> recognizer.Recognizer:
    """Load a recogniser as `load_recognizer` does, for live audio; the log says where `decode` makes words late."""
    student = load_recognizer(cfg, model, **options)
    if student.chunk_ms is not None and student.stream_ms is None:
        log.warning(
            "`%s` does not write while it listens, as `decode.beam` is %d: live audio is transcribed again every %d ms,"
            " and words come later",
            *(redact_uri(model), cfg.decode.beam, cfg.serve.partial_every_ms),
        )
    return student


class Recognizer:
    """A trained student, loaded and ready: audio in, transcripts out.

    >>> recognizer = voxstill.Recognizer.from_pretrained("exp/student")
    >>> [transcript] = recognizer.transcribe("speech.wav")
    >>> transcript.text
    'ba du ko'
    >>> [word.text for word in transcript.words]
    ['ba', 'du', 'ko']
    """

    @takes_config
    def __init__(self, model: str | Path, cfg: Config | None = None, reader: AudioReader | None = None) -> None:
        self._cfg = cfg or Config()
        self._student = load_recognizer(self._cfg, str(model))
        self._segment = self._cfg.segment.at_most(self._student.max_duration_ms)
        self._reader = reader or AudioReader(self._cfg)

    @classmethod
    def from_pretrained(cls, model: str | Path, cfg: Config | None = None) -> Self:
        """Load an experiment folder, a checkpoint in it, a model folder or a name on the Hugging Face Hub.

        `cfg` has the options `decode` (beam, language model, phrases), `segment` (how long audio is cut) and
        `audio` (its level).
        ConfigError if it is not a recogniser.
        """
        return cls(model, cfg)

    def transcribe(self, audio: Audio | Iterable[Audio], *, rate_hz: int = RATE_HZ) -> list[Transcript]:
        """Transcribe one recording or several; return one Transcript for each, in order, errors included.

        Recordings are paths, URIs, the bytes of audio files, such files opened for reading, or arrays and tensors of
        mono samples of `rate_hz`. Long ones are cut at pauses by the VAD; the times of words are those of the whole
        recording. ConfigError if `rate_hz` is not a whole number of 1 or more.
        """
        rate_hz = whole_number("rate_hz", rate_hz, 1)
        return list(self.transcripts(recordings_of(audio), rate_hz))

    def transcripts(self, recordings: Iterable[object], rate_hz: int = RATE_HZ) -> Iterator[Transcript]:
        """Transcribe one recording after another, short ones in a batch; yields a Transcript for each, in order.

        The next ones are decoded meanwhile: at most as many as make a batch, or one that is longer.
        """
        groups = UtteranceGroups(
            self._segment,
            self._student.transcribe_batch,
            self._student.batch_ms,
            self._student.max_duration_ms or 0,
        )
        opened = self._reader.read_each(recordings, rate_hz, ahead_ms=groups.batch_ms)
        yield from map(_transcript, groups.readings(opened))


def _transcript(reading: Reading[Hypothesis]) -> Transcript:
    """The transcript of a recording, once all utterances are transcribed; if all have failed it has an error."""
    transcribed = [output for output in reading.outputs if output[2].failure is None]
    failures = [
        f"{start_ms / 1000:g} to {end_ms / 1000:g} s cannot be transcribed: {hypothesis.failure}"
        for start_ms, end_ms, hypothesis in reading.outputs
        if hypothesis.failure is not None
    ]
    if reading.error is not None or (failures and not transcribed):
        return Transcript(audio=reading.audio, text=None, error=reading.error or "; ".join(failures))
    return Transcript(
        audio=reading.audio,
        text=" ".join(hypothesis.text for *_, hypothesis in transcribed if hypothesis.text),
        duration_ms=reading.duration_ms,
        words=tuple(word for start, end, hypothesis in transcribed for word in hypothesis.words_within(start, end)),
        error=None,
        warning="; ".join(filter(None, [reading.warning, *failures])) or None,
    )


def transcribe(
    cfg: Config,
    model: str,
    names: Sequence[str],
    microphone_s: float | None = None,
    files: TranscriptFiles | None = None,
) -> tuple[list[Transcript], int]:
    """Transcribe what a command line names; return one Transcript for each recording, and how many files were left out.

    They are in order; one that cannot be read has its reason instead. `microphone_s` records so long, after the others.
    With `files` each is written as soon as it is there: what is interrupted loses one recording.
    """
    paths, num_skipped = recordings.expand(names) if names or microphone_s is None else recordings.Recordings((), 0)
    reader = AudioReader(cfg)
    if paths:
        reader.start()
    recognizer = Recognizer(model, cfg, reader)
    transcripts: list[Transcript] = []

    def add(sources: Sequence[object], names: Sequence[str]) -> None:
        for name, transcript in zip(names, recognizer.transcripts(sources), strict=True):
            transcripts.append(replace(transcript, audio=name))
            if files is not None:
                files.write(transcripts[-1])
            bar.advance()

    with Progress("transcribe", len(paths) + (microphone_s is not None), "files") as bar:
        for sources, audio in recordings.in_runs(paths):
            add(sources, audio)
        if microphone_s is not None:
            add([recordings.record(microphone_s)], ["microphone"])
    return transcripts, num_skipped


def check_form(form: str) -> None:
    """ConfigError if transcripts have no such form."""
    if form not in FORMS:
        raise ConfigError(
            f"unknown format `{form}`",
            code="unknown-name",
            why="this format is not supported",
            fix=f"use one of {', '.join(FORMS)}",
        )


class TranscriptFiles:
    """Files of transcripts in a folder, each named after its audio; equal names are numbered.

    That of standard input is `stdin`. ConfigError for an unknown form.
    """

    def __init__(self, folder: Path, form: Form) -> None:
        check_form(form)
        self._folder, self._form = folder, form
        self._store = Store(str(folder))
        self._names: dict[str, None] = {}
        self._numbers: Counter[str] = Counter()  # the last of each stem

    @property
    def paths(self) -> list[Path]:
        """The files that were written, in order."""
        return [self._folder / name for name in self._names]

    def write(self, transcript: Transcript) -> None:
        """Write a transcript, unless it has an error; StorageError if the folder cannot be written."""
        if transcript.error is None:
            name = self._name(_stem(transcript.audio))
            self._store.replace(name, f"{transcript.render(self._form)}\n".encode())
            self._names[name] = None

    def _name(self, stem: str) -> str:
        ending = "txt" if self._form == "text" else self._form
        while True:  # another recording may be called as one that is numbered
            self._numbers[stem] += 1
            number = self._numbers[stem]
            name = f"{stem}.{ending}" if number == 1 else f"{stem}-{number}.{ending}"
            if name not in self._names:
                return name


def write_all(transcripts: Iterable[Transcript], form: Form, folder: Path) -> list[Path]:
    """Write each transcript that has no error to a file, as `TranscriptFiles` names it."""
    files = TranscriptFiles(folder, form)
    for transcript in transcripts:
        files.write(transcript)
    return files.paths


def _stem(audio: str) -> str:
    """The name of a recording without its folder and ending, as UTF-8 and so short that a file can be called so."""
    if audio == recordings.STANDARD_INPUT:
        return "stdin"
    stem = Path(audio if is_local(audio) else audio.partition("?")[0].rstrip("/")).stem
    return _NOT_IN_NAMES.sub("_", stem).encode()[:_MOST_NAME_BYTES].decode(errors="ignore")
