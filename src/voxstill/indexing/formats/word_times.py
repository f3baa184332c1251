"""Times of words that a manifest has beside a text: read from its rows, and checked against the text and the audio.

What is wrong with them is a reason why they are not used: the words are there without, and can be learnt.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from voxstill.core.errors import DataError
from voxstill.core.records import Word
from voxstill.indexing.formats.entry import TimedWord, stretch_ms

MOST_WORDS = 20_000
"""Of one utterance: more than an hour of speech has."""
NOT_TIMED = "no list of words with start and end"
TOO_MANY = f"more than {MOST_WORDS:,} words"
OUT_OF_ORDER = "a word ends before it starts, or starts before the previous one"
NO_TEXT = "no text with them"
OTHER_WORDS = "not the words of the text"
OUTSIDE = "outside the audio"
_TOLERANCE_MS = 250
"""Times may be rounded by so much past the ends of the audio."""


def read_words(words: object, where: str) -> tuple[TimedWord, ...] | str | None:
    """The words of a row with start and end in milliseconds, or why they are not used; None if it has none.

    Each is an object with `word` or `text`, and times under the names that rows have for them. An empty one is a pause.
    """
    if words is None or words in ("", []):
        return None
    if not isinstance(words, list):
        return NOT_TIMED
    if len(words) > MOST_WORDS:
        return TOO_MANY
    timed = tuple(word for word in (_timed(word, where) for word in words) if word is None or word[0])
    if any(word is None for word in timed):
        return NOT_TIMED
    spoken = tuple(word for word in timed if word is not None)
    if not _are_in_order(spoken):
        return OUT_OF_ORDER
    return spoken or None


def of_alignments(supervisions: Iterable[Mapping[str, object]], start_s: float) -> list[object] | None:
    """The words of a cut of lhotse as those of a row, which starts so late; None if one of its texts has none."""
    words: list[object] = []
    for supervision in supervisions:
        alignment = supervision.get("alignment")
        items = alignment.get("word") if isinstance(alignment, Mapping) else None
        if not isinstance(items, list) or not items:
            return None
        words += (_of_item(item, start_s) for item in items)
    return words


def of_utterance(
    words: Sequence[TimedWord] | str | None, text: str | None, span_ms: tuple[int, int]
) -> tuple[Word, ...] | str | None:
    """The words of a row with times from the start of its utterance, or why they are not used.

    `text` is that of the utterance, `span_ms` where in the file it starts and ends.
    """
    if words is None or isinstance(words, str):
        return words
    if text is None:
        return NO_TEXT
    if [word for word, _, _ in words] != text.split():
        return OTHER_WORDS
    first_ms, last_ms = span_ms
    if words[0][1] < first_ms - _TOLERANCE_MS or words[-1][2] > last_ms + _TOLERANCE_MS:
        return OUTSIDE

    def placed(time_ms: int) -> int:
        return min(max(time_ms, first_ms), last_ms) - first_ms

    return tuple(Word(text=word, start_ms=placed(start), end_ms=placed(end)) for word, start, end in words)


def _timed(word: object, where: str) -> TimedWord | None:
    """One word of a row; None if it is no text with two times."""
    if not isinstance(word, Mapping):
        return None
    text = next((value for name in ("word", "text") if isinstance(value := word.get(name), str)), None)
    try:
        start_ms, end_ms, _ = stretch_ms(word, where)
    except DataError:
        return None
    if text is None or start_ms is None or end_ms is None:
        return None
    return text.strip(), start_ms, end_ms


def _are_in_order(words: Sequence[TimedWord]) -> bool:
    return all(start <= end for _, start, end in words) and all(
        left[1] <= right[1] and left[2] <= right[2] for left, right in itertools.pairwise(words)
    )


def _of_item(item: object, start_s: float) -> object:
    """An item of lhotse, which is a list of symbol, start and duration, as a word of a row; what is not an item is
    none."""
    match [*item.values()] if isinstance(item, Mapping) else item:
        case [symbol, int() | float() as item_start_s, duration_s, *_]:
            return {"word": symbol, "start": start_s + item_start_s, "duration": duration_s}
    return None
