"""Answers in the formats of OpenAI's API."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from voxstill.audio import vad
from voxstill.core.records import Hypothesis, Word
from voxstill.serving.forms import TranscriptionForm
from voxstill.text import subtitles


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscribedUtterance:
    """One utterance of a recording, in ms from its start, and what was recognised."""

    span_ms: vad.Span
    hypothesis: Hypothesis
    speaker: str | None = None
    """Who speaks, where that was asked for."""

    @property
    def words(self) -> Sequence[Word]:
        """The words with times from the start of the recording."""
        return self.hypothesis.words_within(*self.span_ms)


def full_text(utterances: Sequence[TranscribedUtterance]) -> str:
    """The text of all utterances."""
    return " ".join(utterance.hypothesis.text for utterance in utterances if utterance.hypothesis.text)


def plain(form: TranscriptionForm, utterances: Sequence[TranscribedUtterance], duration_ms: int) -> str:
    """The answer in the formats `text`, `srt` and `vtt`."""
    if form.response_format == "text":
        return full_text(utterances) + "\n"
    cues = subtitles.cues((word for utterance in utterances for word in utterance.words), duration_ms)
    return (subtitles.srt if form.response_format == "srt" else subtitles.vtt)(cues)


def as_json(
    form: TranscriptionForm, utterances: Sequence[TranscribedUtterance], duration_ms: int
) -> Mapping[str, object]:
    """The answer in the formats `json`, `verbose_json` and `diarized_json`; segments are utterances."""
    usage = {"type": "duration", "seconds": duration_ms / 1000}
    body: dict[str, object] = {"text": full_text(utterances), "usage": usage}
    if form.response_format == "json":
        return body | ({"logprobs": logprobs(utterances)} if form.logprobs else {})
    languages = [utterance.hypothesis.language for utterance in utterances if utterance.hypothesis.language]
    body |= {"task": "transcribe", "duration": duration_ms / 1000}
    if form.response_format == "diarized_json":
        spoken = [utterance for utterance in utterances if utterance.hypothesis.text]
        return body | {"segments": [diarized_segment(number, utterance) for number, utterance in enumerate(spoken)]}
    body["language"] = form.language or next(iter(languages), "")
    if "segment" in form.granularities or not form.granularities:
        body["segments"] = [_segment(number, utterance) for number, utterance in enumerate(utterances)]
    if "word" in form.granularities:
        body["words"] = [
            {"word": word.text, "start": word.start_ms / 1000, "end": word.end_ms / 1000}
            for utterance in utterances
            for word in utterance.words
        ]
    return body


def logprobs(utterances: Sequence[TranscribedUtterance]) -> list[Mapping[str, object]]:
    """The log-probability of each word, in the place of tokens: the logarithm of its mean probability.

    For recognisers without word times it is one entry an utterance, with the mean of its tokens.
    """
    entries: list[Mapping[str, object]] = []
    for utterance in utterances:
        for word in utterance.words:
            logprob = utterance.hypothesis.score if word.prob is None else math.log(max(word.prob, 1e-9))
            token = f" {word.text}" if entries else word.text
            entries.append({"token": token, "logprob": logprob or 0.0, "bytes": list(token.encode())})
    return entries


def diarized_segment(number: int, utterance: TranscribedUtterance) -> Mapping[str, object]:
    """A segment of `diarized_json`, which is the event of a stream, too."""
    start_ms, end_ms = utterance.span_ms
    return {
        "type": "transcript.text.segment",
        "id": f"seg_{number}",
        "start": start_ms / 1000,
        "end": end_ms / 1000,
        "text": utterance.hypothesis.text,
        "speaker": utterance.speaker,
    }


def _segment(number: int, utterance: TranscribedUtterance) -> Mapping[str, object]:
    start_ms, end_ms = utterance.span_ms
    hypothesis, data = utterance.hypothesis, utterance.hypothesis.text.encode()
    return {
        "id": number,
        "seek": 0,
        "start": start_ms / 1000,
        "end": end_ms / 1000,
        "text": hypothesis.text,
        "tokens": list(hypothesis.token_ids),
        "temperature": 0.0,
        "avg_logprob": hypothesis.score or 0.0,
        "compression_ratio": len(data) / len(zlib.compress(data)) if data else 1.0,
        "no_speech_prob": 0.0,  # the VAD has left out what is no speech
    }
