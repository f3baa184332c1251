"""Evaluation of recognition: error rates of a recogniser on utterances whose words a human wrote down."""

from __future__ import annotations

import bisect
import dataclasses
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from voxstill.audio import read_utterances
from voxstill.audio.codec import SilentError
from voxstill.core import pcm
from voxstill.core.config import Config
from voxstill.core.errors import DataError, VoxstillError
from voxstill.core.monitor import Progress, log
from voxstill.core.records import ErrorCounts, Utterance
from voxstill.core.result import Figures
from voxstill.decoding import recognizer
from voxstill.decoding.loaded import Samples
from voxstill.evaluation.results import HYPOTHESES, REFERENCES, Evaluation
from voxstill.evaluation.tuning import Tuning
from voxstill.scoring import checks, words
from voxstill.scoring import figures as scoring
from voxstill.scoring.figures import ErrorFigures, GroupFigures, Stamp
from voxstill.storage.redaction import redact_uri
from voxstill.text import transcripts
from voxstill.text.normalize import normalizer

DURATION_EDGES_MS = (1000, 2000, 5000, 10_000, 20_000)
DURATIONS = ("under 1 s", "1 to 2 s", "2 to 5 s", "5 to 10 s", "10 to 20 s", "over 20 s")
Property = Literal["speaker", "dataset", "dialect", "duration"]
PROPERTIES: tuple[Property, ...] = get_args(Property)
"""What error rates are broken down by."""
FIELDS = (*PROPERTIES, "language")
"""What is known of an utterance, by which its errors can be broken down."""
PART_MS = 1_200_000
"""Of audio held at once: two batches of a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecognitionErrors(Figures):
    """Error rates of hypotheses against human texts, in all and by property of the utterances."""

    rates: ErrorFigures
    words_per_hour_of_silence: float | None
    by: Mapping[Property, Mapping[str, GroupFigures]]
    warnings: Sequence[str]
    stamp: Stamp

    def to_dict(self) -> dict[str, object]:
        """All figures side by side; `by_speaker`, `by_dataset`, `by_dialect` and `by_duration`."""
        return {
            **self.rates.to_dict(),
            "words_per_hour_of_silence": self.words_per_hour_of_silence,
            **{f"by_{name}": scoring.to_dicts(self.by[name]) for name in PROPERTIES},
            "warnings": list(self.warnings),
            **self.stamp.to_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentFigures(Figures):
    """The errors of a student on one split, its speed and size, and what it recognised."""

    model: str
    split: str
    errors: RecognitionErrors
    rtfx: float
    """Seconds of audio in a second."""
    parameters: int
    unread: Mapping[str, str]
    """Why utterances could not be read, by their id."""
    decode: Mapping[str, object]
    """The section `decode` of the configuration, with the weights that were tuned."""
    hypotheses: Mapping[str, str]
    """Texts by utterance id, of those that were transcribed; they are not in the JSON."""
    judged: Sequence[Utterance]
    """The utterances with their texts; they are not in the JSON either."""
    lm_order: int | None = None
    """The longest n-gram of the language model that was made for the evaluation; None without one."""
    tuning: Tuning | None = None
    """How the weights of the language model in `decode` were found; None if they are as they were set."""

    def to_dict(self) -> dict[str, object]:
        """All figures side by side but the texts."""
        return {
            **({} if self.lm_order is None else {"order": self.lm_order}),
            "model": self.model,
            "split": self.split,
            **self.errors.to_dict(),
            "rtfx": self.rtfx,
            "parameters": self.parameters,
            "unread": dict(self.unread),
            "decode": dict(self.decode),
            **({} if self.tuning is None else {"tuning": self.tuning.to_dict()}),
        }


def references(cfg: Config, utterances: Sequence[Utterance]) -> list[Utterance]:
    """Return those of the split that have human words, with them; DataError if none has any."""
    texts = hidden_texts(cfg)
    known = [with_text(utterance, texts) for utterance in utterances]
    # in the order of ids: that of the table depends on where the files lie, and the intervals would with it
    judged = sorted((row for row in known if row.text is not None), key=lambda row: row.id)
    if not judged:
        raise DataError(
            f"nothing can be evaluated on the split `{cfg.evaluate.split}`",
            code="nothing-to-judge",
            why=f"{len(utterances)} utterances are in it, and none has a human text",
            fix="give texts in the manifest or by `evaluate.texts`, or another `evaluate.split`",
        )
    if len(judged) < len(utterances):
        log.info("evaluate: %d of %d utterances have a human text", len(judged), len(utterances))
    return judged


def hidden_texts(cfg: Config) -> dict[str, str]:
    """Human texts by utterance id from `evaluate.texts`, which no other step reads.

    DataError where an id has two texts.
    """
    if cfg.evaluate.texts is None:
        return {}
    texts: dict[str, str] = {}
    for row in transcripts.read(cfg.evaluate.texts, "jsonl"):
        if texts.setdefault(row.id, row.text) != row.text:
            raise DataError(
                f"`{redact_uri(cfg.evaluate.texts)}` has the id `{row.id}` twice",
                code="id-twice",
                why="its lines have different texts, and one of them is wrong",
                fix="remove one of them",
            )
    return texts


def with_text(utterance: Utterance, texts: Mapping[str, str]) -> Utterance:
    """Give an utterance the text of `texts`, where it has none of its own."""
    text = utterance.text if utterance.text is not None else texts.get(utterance.id)
    return dataclasses.replace(utterance, text=text)


def evaluate(cfg: Config, target: str, judged: Sequence[Utterance]) -> StudentFigures:
    """Transcribe utterances with a student; return error rates with intervals, by property, and its speed."""
    _check_words(cfg, judged)
    student = recognizer.student(cfg.decode, target)
    student.load()
    decode_s = 0.0
    texts: dict[str, str] = {}
    unread: dict[str, str] = {}
    measured: dict[str, Utterance] = {}
    with Progress("evaluate", len(judged), "utterances") as bar:
        for part in audio_parts(cfg, judged):
            begin = time.perf_counter()
            hypotheses = student.transcribe_batch(
                [samples_T for _, samples_T in part.audio], [row.id for row, _ in part.audio]
            )
            decode_s += time.perf_counter() - begin
            measured |= {row.id: row for row, _ in part.audio}
            texts |= {hypothesis.id: hypothesis.text for hypothesis in hypotheses if hypothesis.error is None}
            unread |= part.unread
            unread |= {hypothesis.id: hypothesis.error for hypothesis in hypotheses if hypothesis.error is not None}
            bar.advance(len(part.audio) + len(part.unread))
    judged = [measured.get(row.id, row) for row in judged]
    warnings = unread_warnings(unread, len(judged))
    errors = error_figures(cfg, judged, texts)
    audio_s = sum(utterance.duration_ms for utterance in measured.values()) / 1000
    return StudentFigures(
        model=target,
        split=cfg.evaluate.split,
        errors=dataclasses.replace(errors, warnings=[*warnings, *errors.warnings]),
        rtfx=audio_s / max(decode_s, 1e-9),
        parameters=student.num_parameters,
        unread=unread,
        decode=cfg.decode.model_dump(),
        hypotheses=texts,
        judged=judged,
    )


def _check_words(cfg: Config, judged: Sequence[Utterance]) -> None:
    """Raise DataError if there are texts and nothing is left of them when they are normalized."""
    normalize = normalizer(cfg.evaluate.normalizer)
    if any(row.text for row in judged) and not any(normalize(row.text or "") for row in judged):
        raise DataError(
            "the references contain no words",
            code="no-words",
            why="after normalization, every human text is empty",
            fix="check the texts, or set `evaluate.normalizer: none`",
        )


def error_figures(cfg: Config, judged: Sequence[Utterance], texts: Mapping[str, str]) -> RecognitionErrors:
    """WER and CER of hypotheses by utterance id; an utterance without one counts as if nothing was said.

    Silence counts for the hallucinated words in an hour of it where it was transcribed. DataError if there are texts
    and nothing is left of them when they are normalized.
    """
    _check_words(cfg, judged)
    normalize = normalizer(cfg.evaluate.normalizer)
    pairs = [(normalize(utterance.text or ""), normalize(texts.get(utterance.id, ""))) for utterance in judged]
    rows = [words.score(utterance.id, ref, hyp) for utterance, (ref, hyp) in zip(judged, pairs, strict=True)]
    speakers = {utterance.id: utterance.info.speaker for utterance in judged}
    datasets = {utterance.id: utterance.info.dataset for utterance in judged}
    dialects = {utterance.id: utterance.info.dialect for utterance in judged}
    durations = {
        utterance.id: DURATIONS[bisect.bisect(DURATION_EDGES_MS, utterance.duration_ms)] for utterance in judged
    }
    silence = checks.errors_in_silence(
        (row.words, utterance.duration_ms) for row, utterance in zip(rows, judged, strict=True) if row.id in texts
    )
    warnings = [checks.SPACELESS] if checks.is_spaceless(ref for ref, _ in pairs) else []
    by_duration = words.group_by(rows, lambda row: durations[row.id])
    return RecognitionErrors(
        rates=scoring.figures(rows, speakers, cfg),
        words_per_hour_of_silence=silence.words_per_hour,
        by={
            "speaker": scoring.rates(words.group_by(rows, lambda row: speakers[row.id])),
            "dataset": scoring.rates(words.group_by(rows, lambda row: datasets[row.id])),
            "dialect": scoring.rates(words.group_by(rows, lambda row: dialects[row.id])),
            "duration": scoring.rates({name: by_duration[name] for name in DURATIONS if name in by_duration}),
        },
        warnings=[*warnings, *checks.check_words(pairs, ErrorCounts.sum(row.words for row in rows))],
        stamp=scoring.stamp(cfg.evaluate.normalizer, words.versions()),
    )


class AudioPart(NamedTuple):
    """Utterances with their samples, and the reasons of those that cannot be read by id."""

    audio: list[tuple[Utterance, Samples]]
    unread: dict[str, str]


def read_audio(cfg: Config, utterances: Sequence[Utterance]) -> AudioPart:
    """Read the samples of utterances, all at once: of few."""
    whole = AudioPart([], {})
    for part in audio_parts(cfg, utterances):
        whole.audio.extend(part.audio)
        whole.unread.update(part.unread)
    return whole


def audio_parts(cfg: Config, utterances: Sequence[Utterance]) -> Iterator[AudioPart]:
    """Read the samples of utterances; yield some `PART_MS` of them at a time, and every utterance once.

    A silent file is as many zeros as it has samples.
    """
    part, part_ms = AudioPart([], {}), 0
    reading = read_utterances.reading(cfg)
    for utterance, samples_T in read_utterances.samples(utterances, reading.cache, contents=reading.contents):
        if isinstance(samples_T, SilentError):
            read = _silence(utterance, samples_T.num_samples)
        elif isinstance(samples_T, VoxstillError) or not len(samples_T):
            part.unread[utterance.id] = samples_T.what if isinstance(samples_T, VoxstillError) else "not indexed"
            continue
        else:
            read = utterance, samples_T.copy()  # a slice would hold the whole recording
        part.audio.append(read)
        part_ms += read[0].duration_ms  # how long a silent file is only its audio says
        if part_ms >= PART_MS:
            yield part
            part, part_ms = AudioPart([], {}), 0
    yield part


def _silence(utterance: Utterance, num_samples: int) -> tuple[Utterance, Samples]:
    """The zeros of an utterance of a silent file, and where it ends there."""
    length_ms = pcm.samples_to_ms(num_samples)
    end_ms = min(utterance.end_ms, length_ms) if utterance.duration_ms else length_ms
    utterance = dataclasses.replace(utterance, end_ms=max(utterance.start_ms, end_ms))
    return utterance, np.zeros(pcm.ms_to_samples(utterance.duration_ms), np.int16)


def unread_warnings(unread: Mapping[str, str], num: int) -> list[str]:
    """A sentence, which the log has, too, where some of `num` utterances could not be read; DataError if none
    could."""
    if not unread:
        return []
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in Counter(unread.values()).most_common(3))
    if len(unread) == num:
        raise DataError(
            f"none of the {num:,} utterances to evaluate can be read",
            code="audio-unreadable",
            why=reasons,
            fix="check whether the audio is still there; if it has changed, index it into another work folder",
        )
    message = f"{len(unread):,} of {num:,} utterances could not be read ({reasons}): all their words count as deletions"
    log.warning("evaluate: %s", message)
    return [message]


def evaluation(cfg: Config, target: str, utterances: Sequence[Utterance]) -> Evaluation:
    """Judge a student by those utterances that have human words."""
    figures = evaluate(cfg, target, references(cfg, utterances))
    return evaluation_of(figures.to_dict(), figures.judged, figures.hypotheses)


def evaluation_of(figures: Mapping[str, object], judged: Sequence[Utterance], texts: Mapping[str, str]) -> Evaluation:
    """Make the evaluation of the figures: references and hypotheses lie beside them, in forms that can be scored
    again."""
    references_ = [
        {
            **{"id": row.id, "text": row.text, "start_ms": row.start_ms, "end_ms": row.end_ms},
            **dataclasses.asdict(row.info),
        }
        for row in judged
    ]
    hypotheses = [{"id": row.id, "text": texts.get(row.id, "")} for row in judged]
    files = {
        name: "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        for name, rows in ((REFERENCES, references_), (HYPOTHESES, hypotheses))
    }
    return Evaluation(figures=figures, files=files)
