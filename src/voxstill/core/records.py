"""The records that pass from one step to the next: frozen dataclasses with units in their names.

Four clocks are in use and each crossing is one named function: records speak integer milliseconds, `audio` speaks
samples, `nn` speaks frames and `text` speaks tokens. Ranges are half-open.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import xxhash

if TYPE_CHECKING:
    import torch

Split = Literal["train", "dev", "test"]
Finish = Literal["stop", "length", "failed"]
Normalization = Literal["none", "peak", "rms", "loudness"]
RATE_HZ = 16_000
"""The one sampling rate inside voxstill; `audio.codec` brings everything to it."""
MOST_WEIGHT = 1_000_000
"""Of an utterance's loss: far above it is infinite as float32, and one such utterance all that is learnt from."""
NO_AUDIO = "no audio"
"""The error of an utterance that is shorter than one feature frame."""


_CANONICAL = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
_SIMPLE: dict[type, Callable[[Any], str]] = {
    str: json.encoder.encode_basestring,
    int: repr,
    type(None): lambda _: "null",
}
"""The same JSON of the usual parts, in a third of the time: every utterance has several hashes."""


def fingerprint(*parts: object) -> str:
    """A stable hash of JSON values: 16 hexadecimal digits, equal on every machine and in every process."""
    try:
        text = f"[{','.join([_SIMPLE[type(part)](part) for part in parts])}]"
    except KeyError:
        text = _CANONICAL.encode(parts)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def hash64(text: str) -> int:
    """Equal for equal texts, and among ten million different ones as good as never."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def recording_id(uri: str, etag: str | None, num_bytes: int) -> str:
    """The id of a recording: a hash of its address and content; without an etag its size stands for its content."""
    return fingerprint(uri, etag or num_bytes)


def audio_hash(recording_id: str, channel: int | None, start_ms: int, end_ms: int) -> str:
    """Equal for the same stretch of the same channel of the same recording, at whatever level."""
    return fingerprint(recording_id, channel, start_ms, end_ms)


def text_hash(audio: str, text: str | None, words: Iterable[Word] | None = None) -> str:
    """The `audio_hash` of a label whose teacher was shown the human text: with another text it is another label.

    So it is with other times of its `words`, where there are any.
    """
    if words is None:
        return fingerprint(audio, text)
    return fingerprint(audio, text, [(word.text, word.start_ms, word.end_ms) for word in words])


def language_hash(shown: str, language: str | None) -> str:
    """The hash of a label whose teacher was shown the language of the manifest; without one it stays as it is."""
    return shown if language is None else fingerprint("language", shown, language)


def content_hash(data: bytes) -> str:
    """Equal for files of equal bytes, whatever their times: 16 hexadecimal digits.

    XXH3, as every file of a corpus goes through it: BLAKE2 takes twice as long as reading a WAV file.
    """
    return str(xxhash.xxh3_64_hexdigest(data))


REFERENCE = "reference@"
"""The teachers whose labels are the texts of the manifest begin so, with their revision behind it."""
LOGPROB_ROUNDING = 1e-3
"""A log-probability may be so far above 0 where it was computed with 16 bits."""


def is_logprob(value: float) -> bool:
    """Whether a number is the logarithm of a probability: NaN is none, and a positive one is none."""
    return value <= LOGPROB_ROUNDING


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word and its times, in milliseconds from the start of its utterance; `prob` is linear, not a logarithm."""

    text: str
    start_ms: int
    end_ms: int
    prob: float | None = None

    def shifted(self, by_ms: int) -> Word:
        """The word, `by_ms` later."""
        return replace(self, start_ms=self.start_ms + by_ms, end_ms=self.end_ms + by_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One audio file. `duration_ms` is measured by decoding; a file that cannot be used has an `error`."""

    id: str
    uri: str
    etag: str | None = None
    num_bytes: int = 0
    codec: str | None = None
    rate_hz: int | None = None
    num_channels: int | None = None
    duration_ms: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UtteranceInfo:
    """What a manifest says of an utterance beside its words: who speaks, in which language, from which data set.

    It is passed whole from manifests to shards; each table holds its fields as columns of its own. A new column of
    manifests is one more field here.
    """

    language: str | None = None
    speaker: str | None = None
    dialect: str | None = None
    dataset: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Utterance:
    """One segment of one channel (None mixes all). `text` is a human transcript, None if there is none."""

    id: str
    recording_id: str
    uri: str
    channel: int | None = None
    start_ms: int = 0
    end_ms: int
    split: Split = "train"
    info: UtteranceInfo = field(default_factory=UtteranceInfo)
    text: str | None = None
    gain_db: float | None = None
    """Applied to the audio wherever it is read, before it is rounded to 16 bits; None if the level is left alone."""
    weight: float | None = None
    """How much its loss counts, as the manifest says; None is 1."""
    supervised: bool | None = None
    """True if `text` is its label (`source.supervised`) and no teacher is asked; None elsewhere."""
    words: tuple[Word, ...] | None = None
    """Those of `text` with the times of the manifest; None if it has none."""

    @property
    def duration_ms(self) -> int:
        """Length in milliseconds."""
        return self.end_ms - self.start_ms

    @property
    def audio(self) -> str:
        """Hash of which audio it is, whatever its id, words and level."""
        return audio_hash(self.recording_id, self.channel, self.start_ms, self.end_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """One teacher's transcription of an utterance. Absent confidence is None; a failure is a row with `error`."""

    utterance_id: str
    recipe: str
    teacher: str
    text: str = ""
    language: str | None = None
    mean_logprob: float | None = None
    num_tokens: int = 0
    finish: Finish = "stop"
    words: tuple[Word, ...] = ()
    error: str | None = None
    audio: str | None = None
    """`audio` of the utterance that was labelled, with its text and its language where the teacher was shown them; None
    in tables of earlier versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """How well the text of a label fits the audio of its utterance, by forced alignment with a CTC model.

    `logprob` is the mean log-probability of a token of the text, None if the model has no tokens for it or too few
    frames. `error` says why there is no audio. `words` are those of the text with their times, where the teacher gave
    none: None if it did or was not asked, empty if the text has no alignment.
    """

    utterance_id: str
    text: str
    logprob: float | None = None
    error: str | None = None
    words: tuple[Word, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether the filter keeps a label and why not; its measures are the `Score` of the same label."""

    utterance_id: str
    recipe: str
    kept: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro-batch for a device: int16 audio padded with zeros, tokens padded with -1.

    `times_BU2` holds start and end of each token in milliseconds, -1 where the teacher has none. `weight_B` is 0 for an
    utterance that stands in for one that could not be read. `tempo_B`: the factor by which each is stretched in time.
    """

    ids: tuple[str, ...]
    audio_BT: torch.Tensor
    audio_len_B: torch.Tensor
    tokens_BU: torch.Tensor
    token_len_B: torch.Tensor
    times_BU2: torch.Tensor
    tempo_B: torch.Tensor
    weight_B: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """What a recogniser wrote of an utterance, or the `error` why it could not.

    `score` is the mean log-probability of a token, None if there is none. `finish` says whether the text ended by
    itself or at the most tokens that are allowed.
    """

    id: str
    text: str
    score: float | None = None
    token_ids: tuple[int, ...] = ()
    words: tuple[Word, ...] = ()
    language: str | None = None
    finish: Finish = "stop"
    error: str | None = None

    @property
    def failure(self) -> str | None:
        """Why audio has no text; None where it has one, or where there was no audio."""
        return None if self.error == NO_AUDIO else self.error

    def words_within(self, start_ms: int, end_ms: int) -> list[Word]:
        """The words, with times from the start of the recording that the utterance is a part of.

        The text of a recogniser without word times is one word that lasts as long as the utterance.
        """
        if not self.words and self.text:
            return [Word(text=self.text, start_ms=start_ms, end_ms=end_ms)]
        return [word.shifted(start_ms) for word in self.words]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCounts:
    """Counts of hits and edits. Counts add, rates do not: the rate is derived, so averaging rates is impossible.

    >>> total = voxstill.ErrorCounts(hits=9, deletions=1) + voxstill.ErrorCounts(hits=5, substitutions=5)
    >>> total.errors, total.rate
    (6, 0.3)
    """

    hits: int = 0
    substitutions: int = 0
    insertions: int = 0
    deletions: int = 0

    def __add__(self, other: ErrorCounts) -> ErrorCounts:
        return ErrorCounts(
            hits=self.hits + other.hits,
            substitutions=self.substitutions + other.substitutions,
            insertions=self.insertions + other.insertions,
            deletions=self.deletions + other.deletions,
        )

    @staticmethod
    def sum(counts: Iterable[ErrorCounts]) -> ErrorCounts:
        """The total; zero counts for nothing."""
        total = ErrorCounts()
        for count in counts:
            total += count
        return total

    @property
    def errors(self) -> int:
        """Substitutions, insertions and deletions."""
        return self.substitutions + self.insertions + self.deletions

    @property
    def reference(self) -> int:
        """Units in the reference."""
        return self.hits + self.substitutions + self.deletions

    @property
    def rate(self) -> float | None:
        """Errors per reference unit, above 1 where insertions abound; None if the reference is empty."""
        return self.errors / self.reference if self.reference else None
