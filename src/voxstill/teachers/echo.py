"""The teacher `echo`: repeats the human text with simulated errors and faults, for tests and dry runs."""

from __future__ import annotations

import math
import os
import random
import signal
import time
from collections.abc import Sequence
from typing import ClassVar

from voxstill.core.config import Section, option
from voxstill.core.records import Word, fingerprint
from voxstill.teachers.teacher import Clip, Transcription

RIGHT = (0.6, 1.0)
WRONG = (0.2, 0.8)
"""Ranges of the probability of a correct and of a wrong word: they overlap, as those of a real teacher."""


class EchoOptions(Section):
    """Rates of simulated errors, and utterances with simulated faults."""

    substitute: float = option(0.0, unit="probability", ge=0, le=1)
    """Words replaced by another."""
    delete: float = option(0.0, unit="probability", ge=0, le=1)
    """Words left out."""
    insert: float = option(0.0, unit="probability", ge=0, le=1)
    """Words followed by an inserted one."""
    vocabulary: list[str] = option([])
    """Words that mistakes are drawn from; without any, a mistake is the true word spelt backwards."""
    seed: int = option(0, ge=0)
    """Other mistakes for another seed."""
    delay_ms: int = option(0, unit="ms", ge=0)
    """Time taken over each utterance."""
    fail_on: list[str] = option([])
    """Utterances answered with an error."""
    crash_on: list[str] = option([])
    """Utterances that kill the process."""
    hang_on: list[str] = option([])
    """Utterances that are never answered."""


class EchoTeacher:
    """Errors depend on the utterance and the seed alone, and wrong words have lower probabilities."""

    Options: ClassVar[type[Section]] = EchoOptions
    reads_texts: ClassVar[bool] = True
    reads_languages: ClassVar[bool] = True

    def __init__(self, options: EchoOptions) -> None:
        self.options = options

    def revision(self) -> str:
        """Hash of the options that change a transcription; faults and delays do not."""
        o = self.options
        return fingerprint(1, o.substitute, o.delete, o.insert, o.vocabulary, o.seed, o.fail_on)

    def load(self) -> None:
        """Nothing to load."""

    def transcribe_batch(self, clips: Sequence[Clip]) -> list[Transcription]:
        """Transcribe clips one by one; those of `crash_on` and `hang_on` end or block the process."""
        return [self._transcribe(clip) for clip in clips]

    def close(self) -> None:
        """Nothing to release."""

    def _transcribe(self, clip: Clip) -> Transcription:
        utterance = clip.utterance
        if utterance.id in self.options.crash_on:
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory runs out
        while utterance.id in self.options.hang_on:
            time.sleep(1)
        time.sleep(self.options.delay_ms / 1000)
        if utterance.id in self.options.fail_on:
            return Transcription(finish="failed", error="this utterance was chosen to fail")
        if utterance.text is None:
            return Transcription(finish="failed", error="the manifest has no text for this utterance")
        rng = random.Random(fingerprint(self.options.seed, utterance.id))
        words_with_probs, probs = self._with_errors(utterance.text.split(), rng)
        step_ms = utterance.duration_ms / max(1, len(words_with_probs))
        words = tuple(
            Word(text=word, start_ms=round(i * step_ms), end_ms=round((i + 1) * step_ms), prob=prob)
            for i, (word, prob) in enumerate(words_with_probs)
        )
        return Transcription(
            text=" ".join(word for word, _ in words_with_probs),
            language=utterance.info.language,
            mean_logprob=sum(map(math.log, probs)) / len(probs) if probs else None,
            num_tokens=len(words_with_probs),
            words=words,
        )

    def _with_errors(self, words: Sequence[str], rng: random.Random) -> tuple[list[tuple[str, float]], list[float]]:
        """Words of the output with their probabilities, and all probabilities, those of deleted words included."""
        words_with_probs: list[tuple[str, float]] = []
        probs: list[float] = []
        for word in words:
            draw, wrong, right = rng.random(), rng.uniform(*WRONG), rng.uniform(*RIGHT)
            deleted = draw < self.options.delete
            substituted = not deleted and draw < self.options.delete + self.options.substitute
            probs.append(wrong if deleted or substituted else right)
            if not deleted:
                words_with_probs.append((self._wrong_word(word, rng) if substituted else word, probs[-1]))
            if rng.random() < self.options.insert:
                probs.append(rng.uniform(*WRONG))
                words_with_probs.append((self._wrong_word(word, rng), probs[-1]))
        return words_with_probs, probs

    def _wrong_word(self, word: str, rng: random.Random) -> str:
        candidates = [candidate for candidate in self.options.vocabulary if candidate != word]
        if candidates:
            return rng.choice(candidates)
        return word[::-1] if word[::-1] != word else word + word
