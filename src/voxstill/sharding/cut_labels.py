"""Cut long labels into samples for a student that wants shorter ones, at the longest pauses between their words."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from voxstill.core.records import Label, Utterance, Word

MARGIN_MS = 500
"""Most audio kept before the first word of a sample and after its last: teachers are that far off at times."""
SHORTEST_MS = 100
"""No sample is shorter: words can have times without length."""
_PAUSE_MS = 100  # the cost of a cut is halved by a pause of this length
_CUT_COST = 0.05  # of every cut, beside at most 1 for its pause: avoids many short samples

NO_WORDS = "no word times"
OTHER_WORDS = "words with times are not those of the text"
HUMAN_TEXT = "a human text has no word times"
LONG_WORD = "no pause where one is needed"


@dataclass(frozen=True, slots=True)
class Shorter:
    """Utterances and labels after cutting; `uncut` counts those that stay too long, by what is in the way.

    `cut_from` is the id of the utterance that each part was cut from, by the id of the part.
    """

    utterances: Sequence[Utterance]
    labels: Mapping[str, Label]
    uncut: Mapping[str, int]
    cut_from: Mapping[str, str]


def shorten(utterances: Sequence[Utterance], labels: Mapping[str, Label], max_ms: int | None) -> Shorter:
    """Cut each utterance that is longer than `max_ms`, with its label; None cuts none.

    A part is named after its utterance and the milliseconds of it that it holds: `call#0-9500`. No word is lost, and no
    audio but pauses beyond `MARGIN_MS` of the words around them. What cannot be cut stays whole and is counted.
    """
    if max_ms is None:
        return Shorter(utterances, labels, {}, {})
    shorter: list[Utterance] = []
    label_of: dict[str, Label] = {}
    cut_from: dict[str, str] = {}
    uncut: Counter[str] = Counter()
    for utterance in utterances:
        label = labels.get(utterance.id)
        if utterance.duration_ms > max_ms:
            parts = _parts(utterance, label, max_ms)
            if not isinstance(parts, str):
                for part, part_label in parts:
                    shorter.append(part)
                    label_of[part.id] = part_label
                    cut_from[part.id] = utterance.id
                continue
            uncut[parts] += 1
        shorter.append(utterance)
        if label is not None:
            label_of[utterance.id] = label
    return Shorter(shorter, label_of, uncut, cut_from)


def _parts(utterance: Utterance, label: Label | None, max_ms: int) -> list[tuple[Utterance, Label]] | str:
    """The utterance in parts with their labels, or what is in the way."""
    if label is None or not label.words:
        return NO_WORDS
    if utterance.split != "train" and utterance.text is not None:
        return HUMAN_TEXT
    tokens = label.text.split()
    counts = _word_counts(tokens, label.words)
    if counts is None:
        return OTHER_WORDS
    word_at = [0, *itertools.accumulate(counts)]
    """The first word of each token."""
    whole = [_joined(label.words[first:last]) for first, last in itertools.pairwise(word_at)]
    spans = cut_words(whole, utterance.duration_ms, max_ms)
    if not spans:
        return LONG_WORD
    parts = []
    for first, last, start_ms, end_ms in spans:
        id_ = f"{utterance.id}#{start_ms}-{end_ms}"
        words = tuple(_moved(word, start_ms, end_ms) for word in label.words[word_at[first] : word_at[last]])
        part = dataclasses.replace(
            utterance,
            id=id_,
            start_ms=utterance.start_ms + start_ms,
            end_ms=utterance.start_ms + end_ms,
            text=None,
        )
        text = " ".join(tokens[first:last])
        parts.append((part, dataclasses.replace(label, utterance_id=id_, text=text, words=words)))
    return parts


def _word_counts(tokens: Sequence[str], words: Sequence[Word]) -> list[int] | None:
    """How many words each token of a text consists of; None if they do not match.

    As many words as tokens are one each, however they are spelt. Whisper may have two words for `well-known`.
    """
    if len(tokens) == len(words):
        return [1] * len(words)
    counts, at = [], 0
    for token in tokens:
        joined, first = "", at
        while len(joined) < len(token) and at < len(words):
            joined += words[at].text.strip()
            at += 1
        if joined != token:
            return None
        counts.append(at - first)
    return counts if at == len(words) else None


def _joined(words: Sequence[Word]) -> Word:
    """Words of one token as one word."""
    text = "".join(word.text for word in words)
    return Word(text=text, start_ms=min(word.start_ms for word in words), end_ms=max(word.end_ms for word in words))


def _moved(word: Word, start_ms: int, end_ms: int) -> Word:
    """The word with its times from the start of its part, and within it."""
    at = min(max(word.start_ms, start_ms), end_ms)
    return dataclasses.replace(word, start_ms=at - start_ms, end_ms=min(max(word.end_ms, at), end_ms) - start_ms)


def cut_words(words: Sequence[Word], duration_ms: int, max_ms: int) -> list[tuple[int, int, int, int]]:
    """Cut words into parts of at most `max_ms`: first word, last word (exclusive), start and end of the audio in ms.

    Dynamic programming finds the cuts with the lowest sum of costs, a cut costing the less the longer its pause. None
    falls where words overlap. Empty if there is no such way, as where a single word is too long or too short.
    """
    num = len(words)
    starts = [min(max(word.start_ms, 0), duration_ms) for word in words]
    ends = [min(max(word.end_ms, start), duration_ms) for word, start in zip(words, starts, strict=True)]
    said_by = [0, *itertools.accumulate(ends, max)]
    """When all words before this place have been said."""
    said_from = [*reversed([*itertools.accumulate(reversed(starts), min)]), duration_ms]
    """When the first of the words from this place on begins."""
    pause = [after - before for before, after in zip(said_by, said_from, strict=True)]
    middle = [0, *((said_by[i] + said_from[i]) // 2 for i in range(1, num)), duration_ms]
    left = [max(middle[i], said_from[i] - MARGIN_MS) for i in range(num + 1)]
    right = [min(middle[i], said_by[i] + MARGIN_MS) for i in range(num + 1)]
    total, previous = [0.0] + [float("inf")] * num, [0] * (num + 1)
    for end in range(1, num + 1):
        if end < num and pause[end] < 0:
            continue
        cost = 0.0 if end == num else _CUT_COST + _PAUSE_MS / (_PAUSE_MS + pause[end])
        for start in range(end - 1, -1, -1):
            length_ms = right[end] - left[start]
            if length_ms > max_ms:
                break
            if length_ms >= SHORTEST_MS and total[start] + cost < total[end]:
                total[end], previous[end] = total[start] + cost, start
    if total[num] == float("inf"):
        return []
    borders = [num]
    while borders[-1]:
        borders.append(previous[borders[-1]])
    return [(start, end, left[start], right[end]) for start, end in itertools.pairwise(reversed(borders))]
