"""Measure each label once: filtering again reads columns of numbers and no text.

`measure` is pure. Around it, the unit of work is a few parts of the table of utterances with their labels: a worker
writes one part of scores for them, under a name that their content gives. So a step that was ended resumes where it
was, and what an earlier table holds of the same labels is read there (`filtering/reuse.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import zlib
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from voxstill.core.errors import DataError, StorageError
from voxstill.core.records import Alignment, Label, Split, Utterance, fingerprint, is_logprob
from voxstill.engine import StageWork
from voxstill.scoring import words
from voxstill.storage import join, tables
from voxstill.storage.arrays import numpy_array
from voxstill.storage.store import Store
from voxstill.text.normalize import basic, characters, normalizer, units

if TYPE_CHECKING:
    import pyarrow as pa
    from _typeshed import DataclassInstance

VERSION = 2
"""Rises when the same label is measured in another way; not when there is one measure more."""
PARTS = 16
"""Of utterances, whose labels are measured together."""
LONGEST_PHRASE = 4
PHRASES = (
    "thanks for watching",
    "thank you for watching",
    "thank you so much for watching",
    "please subscribe to my channel",
    "please like and subscribe",
    "subtitles by the amara.org community",
    "transcription by castingwords",
    "transcribed by otter.ai",
    "untertitel der amara.org-community",
    "untertitelung des zdf",
    "vielen dank fürs zuschauen",
    "sous-titres réalisés para la communauté d'amara.org",
    "sous-titres réalisés par la communauté d'amara.org",
    "merci d'avoir regardé cette vidéo",
    "subtítulos realizados por la comunidad de amara.org",
    "gracias por ver el video",
    "legendas pela comunidade amara.org",
    "obrigado por assistir",
    "sottotitoli creati dalla comunità amara.org",
    "ondertiteld door de amara.org gemeenschap",
    "napisy stworzone przez społeczność amara.org",
    "субтитры сделал dimatorzok",
    "редактор субтитров а.семкин корректор а.егорова",
    "продолжение следует",
    "спасибо за просмотр",
    "ご視聴ありがとうございました",
    "チャンネル登録をお願いいたします",
    "字幕由amara.org社区提供",
    "请不吝点赞 订阅 转发 打赏支持明镜与点点栏目",
    "請不吝點贊 訂閱 轉發 打賞支持明鏡與點點欄目",
    "mbc 뉴스 이덕영입니다",
    "시청해주셔서 감사합니다",
    "altyazı m.k.",
)
"""What Whisper hallucinates in silence: credits and farewells of the subtitles that it was trained on, from reports
of its users (github.com/openai/whisper/discussions/679 and 928). Phrases that are often spoken alone, such as "thank
you", are not among them."""

_UTTERANCE_COLUMNS = ("id", "recording_id", "uri", "start_ms", "end_ms", "split", "language", "text", "supervised")
_LABEL_COLUMNS = ("utterance_id", "recipe", "teacher", "text", "language", "mean_logprob", "finish", "error")
_FIRST_MEASURES = frozenset(
    {
        "utterance_id",
        "split",
        "duration_ms",
        "finished",
        "characters",
        "words",
        "longest_word",
        "min_frames",
        "repeats",
        "compression_ratio",
        "known_phrase",
        "other_language",
        "mean_logprob",
        "disagreement",
        "alignment",
        "reference_words",
        "errors",
    }
)
"""Fields of `Score` in the first version of the table. A field that came later stands in the name of the table alone:
labels are measured again, and verdicts, shards and experiments that make no use of it stay as they are."""
Row = TypeVar("Row", bound="DataclassInstance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What was measured of a label: the rules of the filter use nothing else, and no human text.

    Characters and words are those of the text with case folded and signs dropped; where a script has no spaces a word
    is a character. `errors` and `reference_words` count the label against a human text, None if there is none.
    `disagreement` is the share of words that a second teacher heard otherwise, None if it has nothing to say;
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


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """A row of the table: the score, and the identity of the `MeasuredPart` that it was measured in.

    Tables of version 0.1 have no identity.
    """

    score: Score
    part: str | None = None


def added_measures() -> list[str]:
    """Names of the fields of `Score` that its first version did not have."""
    return sorted(field.name for field in dataclasses.fields(Score) if field.name not in _FIRST_MEASURES)


def measure(
    label: Label,
    utterance: Utterance,
    phrases: Phrases,
    normalize: Callable[[str], str] = basic,
    second: Label | None = None,
    alignment: float | None = None,
) -> Score:
    """Measure one label, beside that of a second teacher and its alignment where they are; pure.

    Tables of earlier versions may hold a log-probability that is none, such as NaN: the label counts as unfinished.
    Errors against the human text, and what the second teacher heard otherwise, are counted after `normalize`. The label
    of a supervised utterance is that text: nothing is counted against it, and neither second teacher nor aligner judge.
    """
    if utterance.supervised:
        utterance, second, alignment = dataclasses.replace(utterance, text=None), None, None
    text = basic(label.text)
    text_words = units(text)
    blanks = sum(a == b for a, b in pairwise(text_words))  # CTC puts a blank between equal neighbours
    logprobs = [value for value in (label.mean_logprob, alignment) if value is not None]
    errors = None if utterance.text is None else words.wer([(normalize(utterance.text), normalize(label.text))])
    return Score(
        utterance_id=label.utterance_id,
        split=utterance.split,
        duration_ms=utterance.duration_ms,
        finished=_finished(label) and all(map(is_logprob, logprobs)),
        characters=len(characters(text)),
        words=len(text_words),
        longest_word=max(map(len, text_words), default=0),
        min_frames=len(text_words) + blanks,
        repeats=_repeats(text_words),
        compression_ratio=_compression_ratio(text),
        known_phrase=phrases.are_all_of(text),
        other_language=_languages_differ(label.language, utterance.info.language),
        mean_logprob=_logprob(label.mean_logprob),
        disagreement=None
        if second is None or not _finished(second)
        else words.edit_distance(units(normalize(label.text)), units(normalize(second.text))),
        alignment=_logprob(alignment),
        reference_words=None if errors is None else errors.reference,
        errors=None if errors is None else errors.errors,
    )


class Phrases:
    """Phrases that teachers hallucinate where nothing is said."""

    def __init__(self, phrases: Sequence[str]) -> None:
        folded = {"".join(basic(phrase).split()) for phrase in phrases}
        self._longest_first = sorted(folded - {""}, key=len, reverse=True)

    def are_all_of(self, text: str) -> bool:
        """Whether a text, normalised by `basic`, is one of the phrases, or several of them, and nothing besides."""
        rest = "".join(text.split())
        while rest and (phrase := next(filter(rest.startswith, self._longest_first), None)):
            rest = rest[len(phrase) :]
        return not rest and bool(text)


# ------------------------------------------------------------------------------------------------ a table, part by part


@dataclass(frozen=True, slots=True)
class MeasuredPart:
    """A part of utterances with its labels, and the parts in which those of a second teacher and alignments are."""

    part: join.Part
    second: tuple[str, ...] = ()
    alignments: tuple[str, ...] = ()
    identity: str = ""
    """A hash of everything that its scores depend on."""
    scored: str | None = None
    """A part of scores that holds those of this identity."""


@dataclass(frozen=True, slots=True)
class MeasureJob:
    """Parts that are measured together: one file holds the scores of some thousand labels, which is read at once."""

    parts: tuple[MeasuredPart, ...]

    @property
    def name(self) -> str:
        """Depends on everything that is measured."""
        return fingerprint(*(part.identity for part in self.parts))

    @property
    def place(self) -> str:
        """Depends on the utterances alone: which of several commands measures it is known before it is aligned."""
        return fingerprint(*(part.part.name for part in self.parts))


def plan(parts: Sequence[MeasuredPart], written: Container[str]) -> list[MeasureJob]:
    """Every part in one job, in order; those jobs are left out whose scores are written."""
    jobs = (MeasureJob(tuple(parts[start : start + PARTS])) for start in range(0, len(parts), PARTS))
    return [job for job in jobs if job.name not in written]


@dataclass
class ScoreWriter(StageWork):
    """Measure labels for the engine and write scores below `prefix`; `normalizer` names how words are compared."""

    work: Store
    prefix: str
    phrases: tuple[str, ...]
    normalizer: str
    removed: frozenset[str] = frozenset()
    """Utterances that have no scores."""
    _known: Phrases = field(init=False, repr=False, compare=False)
    _normalize: Callable[[str], str] = field(init=False, repr=False, compare=False)

    def open(self) -> None:
        """Prepare the phrases and the normalizer, once in each process."""
        self._known, self._normalize = Phrases(self.phrases), normalizer(self.normalizer)

    def __call__(self, jobs: Sequence[MeasureJob], payload: object) -> list[int | DataError]:
        """Measure the labels of each job.

        Returns the milliseconds of audio measured, or what is wrong with the tables, which no other worker repairs.
        """
        return [self._write(job) for job in jobs]

    def _write(self, job: MeasureJob) -> int | DataError:
        import pyarrow as pa

        read = functools.cache(self._read_scored)
        try:
            parts = [self._rows(part, read) for part in job.parts]
        except DataError as error:
            return error
        table = pa.concat_tables(parts).combine_chunks()
        self.work.create(f"{self.prefix}/{job.name}.parquet", tables.arrow_to_parquet(table))
        return int(numpy_array(table["duration_ms"]).sum())

    def _rows(self, part: MeasuredPart, read: Callable[[str], pa.Table | None]) -> pa.Table:
        """The scores of a part as they were measured before, else measured now."""
        import pyarrow.compute as pc

        if part.scored is not None and (scored := read(part.scored)) is not None:
            return scored.filter(pc.equal(scored["part"], part.identity))
        return tables.table([ScoreRow(score, part.identity) for score in self._scores(part)], ScoreRow)

    def _read_scored(self, key: str) -> pa.Table | None:
        """A part of scores; None if it is damaged, or was deleted meanwhile."""
        with contextlib.suppress(DataError, StorageError):
            return tables.to_arrow(self.work.read(key), ScoreRow, self.work.uri(key))
        return None

    def _scores(self, part: MeasuredPart) -> list[Score]:
        utterances = self._read(part.part.utterances, Utterance, _UTTERANCE_COLUMNS)
        labels, second = self._labels(part.part.labels), self._labels(part.second)
        logprobs = {
            (alignment.utterance_id, alignment.text): alignment.logprob
            for key in part.alignments
            for alignment in self._read(key, Alignment, ("utterance_id", "text", "logprob"))
        }
        measured = (row for row in utterances if row.id in labels and row.id not in self.removed)
        pairs = ((labels[utterance.id], utterance) for utterance in measured)
        return [
            measure(
                label,
                utterance,
                self._known,
                self._normalize,
                second.get(utterance.id),
                logprobs.get((utterance.id, label.text)),
            )
            for label, utterance in pairs
        ]

    def _labels(self, keys: Sequence[str]) -> dict[str, Label]:
        """The first label of each utterance."""
        labels: dict[str, Label] = {}
        for key in keys:
            for label in self._read(key, Label, _LABEL_COLUMNS):
                labels.setdefault(label.utterance_id, label)
        return labels

    def _read(self, key: str, kind: type[Row], names: Sequence[str]) -> list[Row]:
        return tables.from_parquet(self.work.read(key), kind, self.work.uri(key), names)


def set_aside(job: MeasureJob, reason: str) -> int:
    """Stop the step for a job that could not be measured: without it the corpus would be silently smaller."""
    raise StorageError(
        f"the labels of `{job.parts[0].part.utterances}` or the files read with them cannot be measured",
        code="part-failed",
        why=reason,
        fix="check the storage and run `voxstill filter` again; it resumes where it stopped",
    )


# ------------------------------------------------------------------------------------------------------------- measures


def _logprob(logprob: float | None) -> float | None:
    """A log-probability; None if it is unknown, or no such thing."""
    return logprob if logprob is not None and is_logprob(logprob) else None


def _finished(label: Label) -> bool:
    return label.error is None and label.finish == "stop"


def _repeats(text_words: Sequence[str]) -> int:
    """Most times in a row that one phrase of up to four words is said."""
    if len(set(text_words)) == len(text_words):
        return min(1, len(text_words))
    most = 1
    for length in range(1, LONGEST_PHRASE + 1):
        run = 0
        for word, before in zip(text_words[length:], text_words, strict=False):
            run = run + 1 if word == before else 0
            most = max(most, run // length + 1)
    return most


def _compression_ratio(text: str) -> float:
    """Size before over size after zlib, one byte to a character where 256 will do.

    UTF-8 would spend three bytes on a Hindi letter, two of them always the same, and call every Hindi text a loop.
    """
    codes = {char: code for code, char in enumerate(dict.fromkeys(text))}
    plain = bytes(map(codes.__getitem__, text)) if len(codes) <= 256 else text.encode("utf-16-le")
    return len(plain) / len(zlib.compress(plain))


def _languages_differ(labelled: str | None, spoken: str | None) -> bool:
    """Whether both languages are known and differ: `en-US` is `en`."""
    return labelled is not None and spoken is not None and _primary(labelled) != _primary(spoken)


def _primary(language: str) -> str:
    return language.replace("_", "-").split("-")[0].casefold()
