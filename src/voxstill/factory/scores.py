"""Everything that is measured of a label, once: filtering anew reads columns of numbers and no text.

`measured` is pure. Around it, the unit of work is a few parts of the table of utterances with their labels: a worker
writes one part of scores for them, under a name that they give. So a step that was ended goes on where it was.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from voxstill import tables
from voxstill.errors import DataError, StorageError
from voxstill.factory import join
from voxstill.records import Alignment, Label, Score, Utterance, fingerprint
from voxstill.score import words
from voxstill.store import Store
from voxstill.text.normalize import basic, characters, normalizer, units

VERSION = 2
"""Rises when the same label is measured in another way."""
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
"""What Whisper says where nothing is said: credits and farewells of the subtitles that it was trained on, from reports
of its users (github.com/openai/whisper/discussions/679 and 928). Phrases that people often say alone, such as "thank
you", are not among them."""

_SAID = ("id", "recording_id", "uri", "start_ms", "end_ms", "split", "language", "text")
_HEARD = ("utterance_id", "recipe", "teacher", "text", "language", "mean_logprob", "finish", "error")
Row = TypeVar("Row")


def measured(
    label: Label,
    utterance: Utterance,
    phrases: Phrases,
    normal: Callable[[str], str] = basic,
    second: Label | None = None,
    alignment: float | None = None,
) -> Score:
    """The score of one label, beside that of a second teacher and its alignment where they are; pure.

    Errors against the human text, and what the second teacher heard otherwise, are counted after `normal`.
    """
    text = basic(label.text)
    said = units(text)
    again = sum(a == b for a, b in pairwise(said))  # CTC puts a blank between equal neighbours
    duration_ms = utterance.duration_ms
    sure = label.mean_logprob
    errors = None if utterance.text is None else words.wer([(normal(utterance.text), normal(label.text))])
    return Score(
        utterance_id=label.utterance_id,
        split=utterance.split,
        duration_ms=duration_ms,
        finished=_finished(label),
        characters=len(characters(text)),
        words=len(said),
        longest_word=max(map(len, said), default=0),
        min_frames=len(said) + again,
        repeats=_repeats(said),
        compression_ratio=_compression_ratio(text),
        known_phrase=phrases.only(text),
        other_language=_differ(label.language, utterance.language),
        mean_logprob=None if sure is None or math.isnan(sure) else sure,
        disagreement=None
        if second is None or not _finished(second)
        else words.apart(units(normal(label.text)), units(normal(second.text))),
        alignment=alignment,
        reference_words=None if errors is None else errors.reference,
        errors=None if errors is None else errors.errors,
    )


class Phrases:
    """Phrases that a teacher makes up."""

    def __init__(self, phrases: Sequence[str]) -> None:
        folded = {"".join(basic(each).split()) for each in phrases}
        self._longest_first = sorted(folded - {""}, key=len, reverse=True)

    def only(self, text: str) -> bool:
        """Whether a text, made alike by `basic`, is one of the phrases, or several of them, and nothing besides."""
        rest = "".join(text.split())
        while rest and (phrase := next((each for each in self._longest_first if rest.startswith(each)), None)):
            rest = rest[len(phrase) :]
        return not rest and bool(text)


# ------------------------------------------------------------------------------------------------ a table, part by part


@dataclass(frozen=True, slots=True)
class Known:
    """A part of utterances with its labels, and the parts in which those of a second teacher and alignments are."""

    part: join.Part
    second: tuple[str, ...] = ()
    alignments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unit:
    """Parts that are measured together: one file holds the scores of some thousand labels, which is read at once."""

    parts: tuple[Known, ...]

    @property
    def name(self) -> str:
        """Depends on what is in it."""
        return fingerprint(*(known.part.name for known in self.parts))


def plan(parts: Sequence[Known], there: Container[str]) -> list[Unit]:
    """Every part in one unit, in order; those units are left out whose scores are there."""
    units = (Unit(tuple(parts[start : start + PARTS])) for start in range(0, len(parts), PARTS))
    return [unit for unit in units if unit.name not in there]


@dataclass(frozen=True, slots=True)
class Measure:
    """Makes the work of a process that writes scores below `prefix`; `normal` names how words are compared."""

    work: Store
    prefix: str
    phrases: tuple[str, ...]
    normal: str

    def __call__(self) -> Callable[[Sequence[Unit], Any], list[int | DataError]]:
        """The work: milliseconds of audio measured, or what is wrong with the tables, which no other worker mends."""
        phrases, normal = Phrases(self.phrases), normalizer(self.normal)

        def one(known: Known) -> list[Score]:
            utterances = self._read(known.part.utterances, Utterance, _SAID)
            heard, second = self._labels(known.part.labels), self._labels(known.second)
            aligned = {
                (each.utterance_id, each.text): each.logprob
                for key in known.alignments
                for each in self._read(key, Alignment, ("utterance_id", "text", "logprob"))
            }
            labels = ((each, heard[each.id]) for each in utterances if each.id in heard)
            return [
                measured(label, each, phrases, normal, second.get(each.id), aligned.get((each.id, label.text)))
                for each, label in labels
            ]

        def work(units: Sequence[Unit], _: Any) -> list[int | DataError]:
            rows: list[int | DataError] = []
            for unit in units:
                try:
                    found = [score for part in unit.parts for score in one(part)]
                except DataError as error:
                    rows.append(error)
                    continue
                self.work.create(f"{self.prefix}/{unit.name}.parquet", tables.to_parquet(found, Score))
                rows.append(sum(each.duration_ms for each in found))
            return rows

        return work

    def _labels(self, keys: Sequence[str]) -> dict[str, Label]:
        """The first label of each utterance."""
        found: dict[str, Label] = {}
        for key in keys:
            for label in self._read(key, Label, _HEARD):
                found.setdefault(label.utterance_id, label)
        return found

    def _read(self, key: str, kind: type[Row], names: Sequence[str]) -> list[Row]:
        return tables.from_parquet(self.work.read(key), kind, self.work.uri(key), names)


def set_aside(unit: Unit, reason: str) -> int:
    """A unit that could not be measured stops the step: without it the corpus would be silently smaller."""
    raise StorageError(
        f"the labels of `{unit.parts[0].part.utterances}` and what is beside it cannot be measured",
        why=reason,
        fix="check the storage and run `voxstill filter` again; it goes on where it stopped",
    )


# ------------------------------------------------------------------------------------------------------------- measures


def _finished(label: Label) -> bool:
    return label.error is None and label.finish == "stop"


def _repeats(said: Sequence[str]) -> int:
    """Most times in a row that one phrase of up to four words is said."""
    if len(set(said)) == len(said):
        return min(1, len(said))
    most = 1
    for length in range(1, LONGEST_PHRASE + 1):
        run = 0
        for now, before in zip(said[length:], said, strict=False):
            run = run + 1 if now == before else 0
            most = max(most, run // length + 1)
    return most


def _compression_ratio(text: str) -> float:
    """Size before over size after zlib, one byte to a character where 256 will do.

    UTF-8 would spend three bytes on a Hindi letter, two of them always the same, and call every Hindi text a loop.
    """
    codes = {char: code for code, char in enumerate(dict.fromkeys(text))}
    plain = bytes(map(codes.__getitem__, text)) if len(codes) <= 256 else text.encode("utf-16-le")
    return len(plain) / len(zlib.compress(plain))


def _differ(heard: str | None, spoken: str | None) -> bool:
    """Whether both languages are known and differ: `en-US` is `en`."""
    return heard is not None and spoken is not None and _primary(heard) != _primary(spoken)


def _primary(language: str) -> str:
    return language.replace("_", "-").split("-")[0].casefold()
