"""The nouns: what passes from one step to the next, frozen, with units in the names.

Four clocks are in use and each crossing is one named function: records speak integer milliseconds, `audio` speaks
samples, `nn` speaks frames and `text` speaks tokens. Ranges are half-open.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Split = Literal["train", "dev", "test"]
Finish = Literal["stop", "length", "failed"]
RATE_HZ = 16_000
"""The one sampling rate inside voxstill; `audio.codec` brings everything to it."""


_CANONICAL = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)


def fingerprint(*parts: object) -> str:
    """Equal parts give equal 16 hexadecimal digits, on every machine and in every process."""
    return hashlib.sha256(_CANONICAL.encode(parts).encode()).hexdigest()[:16]


def recording_id(uri: str, etag: str | None, num_bytes: int) -> str:
    """The same for the same file with the same content; without an etag its size stands for its content."""
    return fingerprint(uri, etag or num_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word and when it was said, in milliseconds from the start of its utterance; `prob` is linear."""

    text: str
    start_ms: int
    end_ms: int
    prob: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One file as found. `duration_ms` is measured by decoding; a file that cannot be used carries `error`."""

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
class Utterance:
    """One stretch of one channel (None mixes all). `text` is a human's words, or None where nobody wrote them down."""

    id: str
    recording_id: str
    uri: str
    channel: int | None = None
    start_ms: int = 0
    end_ms: int
    split: Split = "train"
    language: str | None = None
    speaker: str | None = None
    dialect: str | None = None
    dataset: str | None = None
    text: str | None = None

    @property
    def duration_ms(self) -> int:
        """Length in milliseconds."""
        return self.end_ms - self.start_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What one teacher heard. Absent confidence is None, never 0; a failure is a row with `error`."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """How well a text fits the audio of an utterance, as a CTC model hears it; `text` is what a label says.

    `logprob` is the log-probability of a token of the text, None where the model cannot write it or has no time for it.
    `error` says why there is no audio.
    """

    utterance_id: str
    text: str
    logprob: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What was measured of a label: the rules of the filter look at nothing else, and see no human text.

    Characters and words are those of the text with case folded and signs dropped; where a script has no spaces a word
    is a character. `errors` and `reference_words` count the label against a human text, None where there is none.
    `disagreement` is the share of words that a second teacher heard otherwise, None where it has nothing to say;
    `alignment` is the `logprob` of the label's `Alignment`.
    """

    utterance_id: str
    split: Split
    duration_ms: int
    finished: bool
    characters: int
    words: int
    longest_word: int
    min_frames: int
    """CTC needs so many: one for each word, one more between equal ones."""
    repeats: int
    compression_ratio: float
    known_phrase: bool
    other_language: bool
    mean_logprob: float | None = None
    disagreement: float | None = None
    alignment: float | None = None
    reference_words: int | None = None
    errors: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the filter decided and why; what it looked at is the `Score` of the same utterance."""

    utterance_id: str
    recipe: str
    kept: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a device eats: int16 audio padded with zeros, tokens padded with -1.

    `times_BU2` holds start and end of each token in milliseconds, -1 where the teacher gave none. `weight_B` is 0 for
    an utterance that stands in for one that could not be read. `tempo_B`: how many times as long each is made.
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

    `score` is the mean log-probability of a token, None where there is none. `finish` says whether the text ended by
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCounts:
    """Edits of an alignment. Counts add, rates do not: the rate is derived, so averaging rates is impossible."""

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
        for each in counts:
            total += each
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
        """Errors per reference unit, above 1 where insertions abound; None where the reference is empty."""
        return self.errors / self.reference if self.reference else None
