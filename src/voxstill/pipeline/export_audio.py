"""The utterances that an export is compared on: those that the student is judged by, or synthetic speech."""

from __future__ import annotations

import numpy as np

from voxstill.core import pcm
from voxstill.core.config import Config
from voxstill.core.errors import DataError, VoxstillError
from voxstill.core.monitor import log
from voxstill.core.records import Utterance, fingerprint
from voxstill.evaluation import recognition
from voxstill.exporting.gate import GateAudio
from voxstill.exporting.student import Student
from voxstill.pipeline.judged_split import of_split
from voxstill.synthesis.voices import ACCENTS, SpeechJob, synthesize

MOST = 1000
"""Utterances that are compared, drawn by their ids."""
_SENTENCES, _WORDS = 24, 5
_OTHER_WORDS = ("the", "north", "wind", "and", "sun", "were", "disputing", "which", "was", "stronger", "traveller")


def of(cfg: Config, student: Student) -> GateAudio:
    """Read the utterances of `evaluate.split`, with their human texts; where that cannot be done, synthesise some."""
    try:
        return _judged(cfg)
    except VoxstillError as error:
        log.info("export: compared on synthetic speech, as %s", error.what)
    return _synthetic(student, cfg.seed)


def _judged(cfg: Config) -> GateAudio:
    split = of_split(cfg)
    texts = recognition.hidden_texts(cfg)
    rows = [recognition.with_text(utterance, texts) for utterance in split.utterances]
    audio, unread = recognition.read_audio(cfg, sorted(rows, key=lambda row: fingerprint(row.id))[:MOST])
    recognition.unread_warnings(unread, len(audio) + len(unread))
    if not audio:
        raise DataError(
            f"the split `{cfg.evaluate.split}` of `{split.corpus.name}` has no audio", code="nothing-to-judge"
        )
    name = f"{len(audio):,} utterances of the split `{cfg.evaluate.split}` of `{split.corpus.name}`"
    return GateAudio(name=name, utterances=[row for row, _ in audio], samples=[samples_T for _, samples_T in audio])


def _synthetic(student: Student, seed: int) -> GateAudio:
    """Sentences of words of the student's vocabulary where its pieces are words, without texts, as they were never
    spoken."""
    whole = [piece[1:] for piece in student.vocabulary.pieces if piece.startswith("▁") and piece[1:].isalpha()]
    words = [word for word in whole if len(word) > 1] or list(_OTHER_WORDS)
    draw = np.random.default_rng(seed)
    accents = sorted(ACCENTS)
    jobs = [
        SpeechJob(
            text=" ".join(draw.choice(words, size=int(draw.integers(1, _WORDS + 1)))),
            voice=f"{accents[number % len(accents)]}+m{1 + number % 3}",
            words_per_minute=int(draw.integers(130, 220)),
        )
        for number in range(_SENTENCES)
    ]
    samples = list(synthesize(jobs))
    utterances = [
        Utterance(id=f"synthetic-{number}", recording_id="synthetic", uri="", end_ms=pcm.samples_to_ms(len(samples_T)))
        for number, samples_T in enumerate(samples)
    ]
    return GateAudio(name=f"{len(jobs)} utterances of synthetic speech", utterances=utterances, samples=samples)
