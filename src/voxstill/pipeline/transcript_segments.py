"""Transcripts in sentences and words, and aligned words in utterances; no model and no file."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from voxstill.core.config import Segment
from voxstill.core.records import Word
from voxstill.decoding.forced_alignment import AlignedTokens
from voxstill.sharding.cut_labels import cut_words

UNALIGNED_MS = 1000
"""Most audio that a word without tokens, such as a number in digits, gets at the edge of an utterance."""
_WORD = re.compile(r"\S+")
_SENTENCE_END = re.compile(r"[.!?…。！？][\"'”’»)\]]*$")


@dataclass(frozen=True, slots=True)
class TextWord:
    """A word of a line, from the character `begin` to before `end`, and its tokens; none where it cannot be written."""

    begin: int
    end: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words that are aligned together, or not at all: a sentence of a line."""

    line: str
    line_number: int
    """From 0; two lines may have the same text."""
    words: Sequence[TextWord]
    delimiter_id: int | None = None

    @property
    def tokens(self) -> list[int]:
        """The tokens of its words, with the model's delimiter between them."""
        between = [] if self.delimiter_id is None else [self.delimiter_id]
        written = [word.tokens for word in self.words if word.tokens]
        return [token for i, ids in enumerate(written) for token in (*(between if i else ()), *ids)]

    @property
    def text(self) -> str:
        """As it is written in the transcript."""
        return self.line[self.words[0].begin : self.words[-1].end]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedText:
    """Words of a line with their time and score: the characters `begin` to `end`, the tokens `first` to `last`."""

    line: str
    begin: int
    end: int
    start_ms: int
    end_ms: int
    first: int
    last: int
    unaligned_before: int = 0
    """Words at its beginning that have no tokens, and so no time."""
    unaligned_after: int = 0

    @property
    def text(self) -> str:
        """As it is written in the transcript."""
        return self.line[self.begin : self.end]


def sentences(text: str, encode: Callable[[str], Sequence[int]], delimiter_id: int | None = None) -> list[Sentence]:
    """The sentences of all lines; one without tokens is a part of its neighbour in the line.

    `encode` returns the tokens of a word, none where it cannot be written.
    """
    result: list[Sentence] = []
    for number, line in enumerate(text.splitlines()):
        of_line: list[list[TextWord]] = [[]]
        for match in _WORD.finditer(line):
            word = TextWord(match.start(), match.end(), tuple(encode(match.group())))
            of_line[-1].append(word)
            if _SENTENCE_END.search(match.group()) and any(other.tokens for other in of_line[-1]):
                of_line.append([])
        if len(of_line) > 1 and not any(word.tokens for word in of_line[-1]):
            of_line[-2:] = [of_line[-2] + of_line[-1]]
        result += [Sentence(line, number, words, delimiter_id) for words in of_line if words]
    return result


def timed(sentence: Sentence, first: int, aligned: AlignedTokens, frame_ms: int) -> list[TimedText]:
    """The words of a sentence whose first token is `first`, with their times; those without tokens at a neighbour."""
    words: list[TimedText] = []
    num_before = 0
    for word in sentence.words:
        if not word.tokens and words:
            words[-1] = replace(words[-1], end=word.end, unaligned_after=words[-1].unaligned_after + 1)
        elif not word.tokens:
            num_before += 1
        else:
            first += len(words) > 0 and sentence.delimiter_id is not None
            last = first + len(word.tokens)
            words.append(
                TimedText(
                    line=sentence.line,
                    begin=word.begin if words else sentence.words[0].begin,
                    end=word.end,
                    start_ms=int(aligned.start_U[first]) * frame_ms,
                    end_ms=int(aligned.end_U[last - 1]) * frame_ms,
                    first=first,
                    last=last,
                    unaligned_before=0 if words else num_before,
                )
            )
            first = last
    return words


def pieces(line: Sequence[Sequence[TimedText]], max_ms: int) -> list[TimedText]:
    """Sentences of a line, which follow one another, as texts of at most `max_ms`.

    Whole where they are short enough. Else as many sentences go together as fit, and a sentence that is too long itself
    is cut at its longest pauses; where there is none it stays too long.
    """
    whole = _joined([word for words in line for word in words])
    if whole.end_ms - whole.start_ms <= max_ms:
        return [whole]
    result: list[TimedText] = []
    is_open = False
    for words in line:
        sentence = _joined(words)
        if sentence.end_ms - sentence.start_ms > max_ms:
            result += _cut(words, max_ms)
            is_open = False
        elif is_open and sentence.end_ms - result[-1].start_ms <= max_ms:
            result[-1] = _joined([result[-1], sentence])
        else:
            result.append(sentence)
            is_open = True
    return result


def padded(texts: Sequence[TimedText], duration_ms: int, cfg: Segment) -> list[tuple[int, int]]:
    """Start and end of the audio of each text, in order, with `segment.pad_ms`; neighbours never overlap.

    A text that begins or ends with words without a time gets more audio there, as far as its neighbour, and as far as
    all of it stays within `segment.max_ms`.
    """
    spans = []
    for i, text in enumerate(texts):
        room_ms = max(cfg.max_ms - 2 * cfg.pad_ms - (text.end_ms - text.start_ms), 0)
        before_ms = min(UNALIGNED_MS * text.unaligned_before, room_ms)
        after_ms = min(UNALIGNED_MS * text.unaligned_after, room_ms - before_ms)
        left = _border(texts[i - 1], text) if i else 0
        right = _border(text, texts[i + 1]) if i + 1 < len(texts) else duration_ms
        start_ms = max(text.start_ms - cfg.pad_ms - before_ms, left)
        spans.append((start_ms, min(text.end_ms + cfg.pad_ms + after_ms, right, start_ms + cfg.max_ms)))
    return spans


def _border(one: TimedText, other: TimedText) -> int:
    """Where the audio of one text ends and that of the next begins at the latest: amid the pause between them."""
    if bool(one.unaligned_after) == bool(other.unaligned_before):
        return (one.end_ms + other.start_ms) // 2
    return other.start_ms if one.unaligned_after else one.end_ms


def _joined(texts: Sequence[TimedText]) -> TimedText:
    last = texts[-1]
    return replace(texts[0], end=last.end, end_ms=last.end_ms, last=last.last, unaligned_after=last.unaligned_after)


def _cut(words: Sequence[TimedText], max_ms: int) -> list[TimedText]:
    """One sentence in parts, cut at its longest pauses."""
    start_ms = words[0].start_ms
    shifted = [Word(text=word.text, start_ms=word.start_ms - start_ms, end_ms=word.end_ms - start_ms) for word in words]
    cuts = cut_words(shifted, shifted[-1].end_ms, max_ms)
    return [_joined(words[first:last]) for first, last, _, _ in cuts] or [_joined(words)]
