"""Options of the corpus: source, cache, segmentation, filter, shards, and the corpus of the demo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import field_validator, model_validator

from voxstill.core.config.section import Section, option
from voxstill.core.errors import ConfigError
from voxstill.core.records import Split


class Source(Section):
    """Where the audio is. A list of such sections is several sources, each with its own options."""

    uri: str | list[str] = option("", pace=True)
    """A folder, file, manifest (JSONL, CSV, Parquet), list, tar or Kaldi directory; several in a list.
    `source` itself may be a list too, of sources with options of their own."""
    language: str | None = option(None)
    """Language of everything in the source, where the manifest does not say."""
    dataset: str | None = option(None)
    """Name of the data set, where the manifest does not say."""
    channels: Literal["mix", "split"] | int = option("mix")
    """Channels of recordings whose manifest names none: `mix` takes their mean, or the loudest where they cancel;
    `split` makes utterances of each; a number, from 0, takes that one alone."""
    test_speakers: list[str] = option([])
    """Speakers to judge on; all not named here or in `dev_speakers` nor held out by the source are then learnt from."""
    dev_speakers: list[str] = option([])
    """Speakers to stop training on; all others are then learnt from, as with `test_speakers`."""
    dev_share: float = option(0.1, unit="share", ge=0, lt=1)
    """Share of speakers put aside to stop training on, where the manifest has no `split`."""
    test_share: float = option(0.1, unit="share", ge=0, lt=1)
    """Share of speakers put aside to judge on, where the manifest has no `split`."""
    split: Split | None = option(None)
    """The split of everything in the source, whatever its manifest and folders say: `train` for what is learnt from and
    never judged on."""
    supervised: bool = option(False)
    """Learn from the texts of its manifest; the teacher does not label it."""

    @model_validator(mode="after")
    def _a_split_of_all_leaves_no_speaker_for_another(self) -> Self:
        for name in ("test_speakers", "dev_speakers"):
            if self.split is not None and getattr(self, name):
                raise ConfigError(
                    f"`source.split` is `{self.split}` and `source.{name}` is set",
                    code="option-conflict",
                    why="everything in the source belongs to that split, including the speakers listed",
                    fix="leave one of them out, or make two sources of it",
                )
        return self

    @field_validator("channels")
    @classmethod
    def _channels_begin_at_0(cls, channels: str | int) -> str | int:
        if isinstance(channels, int) and channels < 0:
            raise ValueError("channels are counted from 0")
        return channels


def sources_of(source: Source | Sequence[Source]) -> Sequence[Source]:
    """The sources of a configuration, which are one or several."""
    return [source] if isinstance(source, Source) else source


class Cache(Section):
    """What is kept here of audio that lies far away."""

    folder: str | None = option(None)
    """Folder on this machine for objects fetched from a bucket or a web server; unset keeps nothing."""
    max_gb: float = option(50.0, unit="GB", gt=0)
    """Largest size of that folder; what was not used for longest makes room. Shards are fetched ahead of the training
    within the same limit, into a folder in there, or into that of the experiment."""


class Segment(Section):
    """How recordings become utterances."""

    max_ms: int = option(30_000, unit="ms", ge=100)
    """Longest utterance. Longer recordings are cut at silences found by the voice-activity detector."""
    measure: Literal["decode", "header"] = option("decode")
    """`decode` reads and decodes every file, so what is damaged is known at once. `header` believes the length that the
    header of a WAV or FLAC in a bucket states, where nothing is to be cut: 512 bytes of each file are fetched, and what
    is damaged is a failed label."""
    min_ms: int = option(50, unit="ms", ge=1)
    """Shorter stretches of speech are dropped; a whole recording shorter than this becomes a row with a reason."""
    vad: Literal["auto", "always", "never"] = option("auto")
    """`auto` looks for speech in recordings longer than `max_ms` only; `never` cuts those at the quietest points."""
    threshold: float = option(0.5, unit="probability", gt=0, lt=1)
    """Speech probability above which a 32 ms window counts as speech."""
    min_silence_ms: int = option(300, unit="ms", ge=0)
    """Shorter pauses do not end a stretch of speech."""
    pad_ms: int = option(100, unit="ms", ge=0)
    """Audio kept on both sides of a stretch of speech, never overlapping its neighbour."""
    target_ms: int | None = option(None, unit="ms", ge=100)
    """Stretches of speech that follow one another are packed, with the pauses between them, into utterances of at most
    this length: 28000 for a teacher that computes 30 s whatever it is given, as Whisper does. Unset packs none."""

    @model_validator(mode="after")
    def _packed_is_no_longer_than_the_longest(self) -> Self:
        if self.target_ms is not None and self.target_ms > self.max_ms:
            raise ConfigError(
                f"`segment.target_ms` is {self.target_ms}",
                code="option-conflict",
                why=f"no utterance can be longer than `segment.max_ms`, which is {self.max_ms}",
                fix="make it at most `segment.max_ms`",
            )
        return self

    def at_most(self, limit_ms: int | None) -> Segment:
        """The same with no utterance above `limit_ms`, the most that a recogniser takes at once; None is no limit."""
        if limit_ms is None or self.max_ms <= limit_ms:
            return self
        target_ms = None if self.target_ms is None else min(self.target_ms, limit_ms)
        return self.model_copy(update={"max_ms": limit_ms, "target_ms": target_ms})


class Filter(Section):
    """Which labels are worth learning from. Every score is kept, so filtering anew never relabels."""

    min_chars_per_s: float = option(0.5, unit="characters/s", ge=0)
    """Slower labels have lost words."""
    max_chars_per_s: float = option(30.0, unit="characters/s", gt=0)
    """Faster labels cannot have been spoken."""
    max_repeats: int = option(4, unit="times", ge=1)
    """A phrase of one to four words repeated more often than this in a row is a loop."""
    max_compression_ratio: float = option(2.4, unit="ratio", gt=0)
    """Text that zlib shrinks more than this is a loop (Whisper's limit)."""
    max_word_characters: int = option(40, unit="characters", ge=1)
    """A longer word is a loop of syllables, or several words grown together."""
    phrases: list[str] = option([])
    """Phrases that your teacher hallucinates in silence, besides those that are known of Whisper: a label that is
    nothing else is dropped."""
    min_confidence: float = option(0.0, unit="probability", ge=0, le=1)
    """Labels the teacher is less sure of are dropped: the mean probability of a token, the geometric mean."""
    keep_share: float = option(1.0, unit="share", gt=0, le=1)
    """Keep this share of the labels, those the teacher is surest of; others fall by the rule `low_confidence`."""
    second_teacher: str | None = option(None)
    """Another teacher whose finished labels lie in the same WORK, by its name or by their recipe: labels that differ
    from its own too much are dropped."""
    max_disagreement: float = option(0.1, unit="share of words", ge=0, le=1)
    """Labels that differ from those of the second teacher in more of their words than this are dropped."""
    aligner: str | None = option(None)
    """A CTC model that measures how well each label fits its audio: a student, wav2vec 2.0 or Parakeet-CTC, in a folder
    or by its name on the Hugging Face Hub."""
    min_alignment: float = option(-2.0, unit="log-probability", le=0)
    """Labels are dropped whose words have less log-probability to a token in the aligner than this."""
    frame_ms: int = option(80, unit="ms", ge=1)
    """Length of one output frame of the student: a label with more words than frames cannot be learnt by CTC."""


class Shard(Section):
    """How the corpus is written."""

    utterances: int = option(2000, unit="utterances", ge=1)
    """Most utterances in one tar."""
    max_mb: int = option(1024, unit="MB", ge=1)
    """Largest tar, by the size of its audio before compression."""
    format: Literal["flac", "wav", "in_place"] = option("flac")
    """Both are lossless; flac is half the size. `in_place` writes sidecars alone, one for each tar of the source, and
    leaves the audio there: each utterance must be a whole member of a tar."""
    max_ms: int | None = option(None, unit="ms", ge=1000)
    """Labels of more audio are cut at pauses between their words, for a student that wants shorter samples. The times
    of the words are those of the teacher, or of `filter.aligner` where it gives none; what cannot be cut stays whole
    and is counted. Unset cuts none."""

    confidence_weight: float = option(0.0, unit="power", ge=0)
    """The loss of an utterance counts as much as its label is sure, the mean probability of a token, to this power: 0
    is all alike, 1 in proportion. It is multiplied with the `weight` of the manifest. Labels without a confidence count
    fully."""

    @model_validator(mode="after")
    def _what_stays_in_place_is_not_cut(self) -> Self:
        if self.max_ms is not None and self.format == "in_place":
            raise ConfigError(
                f"`shard.max_ms` is {self.max_ms}",
                code="option-conflict",
                why="`shard.format: in_place` leaves the audio as it is in the tars of the source",
                fix="leave `shard.max_ms` out, or set `shard.format: flac`",
            )
        return self


class Demo(Section):
    """The corpus that `voxstill demo` makes for itself."""

    train_utterances: int = option(2200, unit="utterances", ge=10)
    """Commands in the voices of the training split."""
    dev_utterances: int = option(60, unit="utterances", ge=6)
    """Commands in other voices, to stop training on."""
    test_utterances: int = option(360, unit="utterances", ge=6)
    """Commands in voices that are not in the training split."""
