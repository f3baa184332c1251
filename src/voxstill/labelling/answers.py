"""The answers of a teacher, checked: what a table cannot hold, or no measure can be, is a failed label with the reason.

A teacher may be a plug-in or a server of others. One odd answer must not end the job, at the same chunk each time.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import get_args

from voxstill.core.records import LOGPROB_ROUNDING, Finish, Word, is_logprob
from voxstill.teachers.teacher import Transcription

_MOST = 2**63
"""Whole numbers of tables have 64 bits."""


def checked(answers: Sequence[Transcription], num_clips: int) -> list[Transcription]:
    """The answers to a batch of clips, with a failed transcription for each that cannot be used.

    Raises ValueError if there are more or fewer of them than clips: it is not known whose they are.
    """
    if not isinstance(answers, list | tuple) or len(answers) != num_clips:
        shown = f"{len(answers)} answers" if isinstance(answers, list | tuple) else f"a {type(answers).__name__}"
        raise ValueError(f"the teacher returned {shown} for {num_clips} clips")
    return [_checked(answer) for answer in answers]


def _checked(answer: Transcription) -> Transcription:
    fault = _fault(answer)
    if fault is not None:
        return Transcription(finish="failed", error=f"the answer of the teacher cannot be used: {fault}")
    return answer


def _fault(answer: object) -> str | None:
    """What is wrong with an answer, None if nothing is."""
    if not isinstance(answer, Transcription):
        return f"it is a {type(answer).__name__}, not a Transcription"
    for name in ("text", "language", "error"):
        value = getattr(answer, name)
        if not (_is_text(value) or (value is None and name != "text")):
            return f"its {name} is {_shown(value)}"
    if answer.finish not in get_args(Finish):
        return f"its finish is {_shown(answer.finish)}"
    if answer.finish == "failed" and answer.error is None:
        return "it is a failure without a reason"
    if answer.mean_logprob is not None and not (_is_number(answer.mean_logprob) and is_logprob(answer.mean_logprob)):
        return f"its mean_logprob is {_shown(answer.mean_logprob)}"
    if not _is_count(answer.num_tokens):
        return f"its num_tokens is {_shown(answer.num_tokens)}"
    if not isinstance(answer.words, list | tuple):
        return f"its words are {_shown(answer.words)}"
    return next((f"a word of it is {_shown(word)}" for word in answer.words if not _is_word(word)), None)


def _is_word(word: object) -> bool:
    if not (isinstance(word, Word) and _is_text(word.text) and _is_count(word.start_ms) and _is_count(word.end_ms)):
        return False
    is_probability = word.prob is None or (_is_number(word.prob) and 0 <= word.prob <= math.exp(LOGPROB_ROUNDING))
    return word.start_ms <= word.end_ms and is_probability


def _is_text(value: object) -> bool:
    """Whether it is text that UTF-8 can hold: half of a surrogate pair is none."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and 0 <= int(value) < _MOST


def _shown(value: object) -> str:
    """The beginning of a value, in ASCII."""
    return ascii(value)[:80]
