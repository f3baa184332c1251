"""Subtitles from words with times: cues that people can read, as SubRip (SRT) and WebVTT.

A cue has at most two lines of 42 characters and lasts 1 to 7 seconds, as broadcasters ask for. Dynamic programming
chooses where cues end: at the ends of sentences and clauses, in pauses, and so that each can last long enough.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from voxstill.core.records import Word

LINE_CHARS = 42
MIN_MS, MAX_MS = 1000, 7000
CLOSED_MS = 500
"""A gap between two cues below this is closed: the screen would flash."""
SHORTEST_GAP_MS = 120
"""The gap that is left where the first cue would be too long: three frames."""
CHARS_PER_S = 20
"""A cue stays as long as reading takes, where no other follows."""
_LONG_PAUSE_MS = 1500
"""A cue ends here: its next words would be on the screen before they are spoken."""
_SENTENCE_END = re.compile(r"[.!?…。！？][\"'”’»)\]]*$")
_CLAUSE_END = re.compile(r"[,;:–—，、；：][\"'”’»)\]]*$")
_CUE, _SHORT, _MID_CLAUSE, _MID_SENTENCE, _INNER_SENTENCE = 0.5, 8.0, 1.0, 0.3, 0.6
"""Costs of a cue, of a second that it lacks to the shortest, of an end within a clause or sentence, and of the end of a
sentence within it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cue:
    """One subtitle of one or two lines, in milliseconds from the start of the audio."""

    start_ms: int
    end_ms: int
    text: str


def cues(words: Iterable[Word], duration_ms: int | None = None) -> list[Cue]:
    """Group words into cues in time order, within the limits above; none overlap and no word is lost.

    A text of several words with one time, as of recognisers without word times, is divided in proportion to its
    characters, and so is a word longer than a line. Where speech is faster than the limits allow, cues come later. None
    ends after the audio, whose length is `duration_ms`: there cues are shorter than the limits.
    """
    pieces = [piece for word in sorted(words, key=lambda word: (word.start_ms, word.end_ms)) for piece in _pieces(word)]
    groups = [pieces[first:end] for first, end in _divide(pieces)]
    cue_list: list[Cue] = []
    for group, following in zip(groups, [*groups, None][1:], strict=True):
        text = "\n".join(_lines([word.text for word in group]))
        start_ms = max(group[0].start_ms, cue_list[-1].end_ms if cue_list else 0)
        wanted_ms = max(MIN_MS, group[-1].end_ms - start_ms, 1000 * len(text) // CHARS_PER_S)
        end_ms = start_ms + min(wanted_ms, MAX_MS)
        if following is not None:
            next_ms = following[0].start_ms
            end_ms = min(end_ms, max(next_ms, start_ms + MIN_MS))
            if 0 < next_ms - end_ms < CLOSED_MS:
                end_ms = next_ms if next_ms - start_ms <= MAX_MS else min(end_ms, next_ms - SHORTEST_GAP_MS)
        cue_list.append(Cue(start_ms=start_ms, end_ms=end_ms, text=text))
    if duration_ms is None:
        return cue_list
    return _within([group[0].start_ms for group in groups], cue_list, duration_ms)


def _within(spoken_ms: Sequence[int], cue_list: Sequence[Cue], duration_ms: int) -> list[Cue]:
    """The cues, of which none ends after the audio: one that would begin there begins when its words are spoken."""
    result: list[Cue] = []
    latest_ms = duration_ms
    for start_ms, cue in zip(spoken_ms[::-1], cue_list[::-1], strict=True):
        end_ms = min(cue.end_ms, latest_ms)
        latest_ms = cue.start_ms if cue.start_ms < end_ms else min(start_ms, end_ms)
        result.append(replace(cue, start_ms=latest_ms, end_ms=end_ms))
    return result[::-1]


def srt(cues: Iterable[Cue]) -> str:
    """SubRip: numbered from 1, a comma before the milliseconds, an empty line after each cue."""
    return "".join(
        f"{number}\n{_clock(cue.start_ms, ',')} --> {_clock(cue.end_ms, ',')}\n{cue.text}\n\n"
        for number, cue in enumerate(cues, 1)
    )


def vtt(cues: Iterable[Cue]) -> str:
    """WebVTT (W3C): a header, a point before the milliseconds, `&`, `<` and `>` escaped."""
    return "WEBVTT\n\n" + "".join(
        f"{_clock(cue.start_ms, '.')} --> {_clock(cue.end_ms, '.')}\n{html.escape(cue.text, quote=False)}\n\n"
        for cue in cues
    )


def _pieces(word: Word) -> Iterator[Word]:
    """The words of its text that fit into a line, with their share of its time."""
    texts = [
        part[start : start + LINE_CHARS] for part in word.text.split() for start in range(0, len(part), LINE_CHARS)
    ]
    total = sum(map(len, texts))
    duration_ms, done = max(0, word.end_ms - word.start_ms), 0
    for text in texts:
        start_ms = word.start_ms + duration_ms * done // total
        done += len(text)
        yield replace(word, text=text, start_ms=start_ms, end_ms=word.start_ms + duration_ms * done // total)


def _divide(words: Sequence[Word]) -> list[tuple[int, int]]:
    """First word and the word behind the last of each cue: the division of least cost."""
    length = [0, *accumulate(len(word.text) + 1 for word in words)]  # of all words before, a space behind each
    sentence_ends = [0, *accumulate(int(_SENTENCE_END.search(word.text) is not None) for word in words)]
    cost, previous = [0.0], [0]
    for end in range(1, len(words) + 1):
        best, best_first = float("inf"), end - 1
        at_end = _cost_of_end(words, end)
        for first in range(end - 1, -1, -1):
            is_single = first == end - 1
            if not is_single and (
                words[end - 1].end_ms - words[first].start_ms > MAX_MS
                or words[first + 1].start_ms - words[first].end_ms >= _LONG_PAUSE_MS
                or not _fits(length, first, end)
            ):
                break
            room_ms = words[end].start_ms - words[first].start_ms if end < len(words) else MIN_MS
            missing_s = max(0, MIN_MS - room_ms) / 1000
            inner = sentence_ends[end - 1] - sentence_ends[first]
            total = cost[first] + _CUE + at_end + _SHORT * missing_s + _INNER_SENTENCE * inner
            if total < best:
                best, best_first = total, first
        cost.append(best)
        previous.append(best_first)
    groups: list[tuple[int, int]] = []
    end = len(words)
    while end:
        groups.append((previous[end], end))
        end = previous[end]
    return groups[::-1]


def _cost_of_end(words: Sequence[Word], end: int) -> float:
    """What it costs to end a cue before the word `end`: a pause makes it cheaper, up to half a second."""
    if end == len(words) or _SENTENCE_END.search(words[end - 1].text):
        return 0.0
    pause_s = min(max(0, words[end].start_ms - words[end - 1].end_ms), 500) / 1000
    return (_MID_SENTENCE if _CLAUSE_END.search(words[end - 1].text) else _MID_CLAUSE) * (1 - 1.5 * pause_s)


def _fits(length: Sequence[int], first: int, end: int) -> bool:
    """Whether the words from `first` to before `end` fit into two lines."""
    if length[end] - length[first] - 1 <= LINE_CHARS:
        return True
    second = bisect_right(length, length[first] + LINE_CHARS + 1) - 1  # the first line as full as it can be
    return length[end] - length[second] - 1 <= LINE_CHARS


def _lines(words: Sequence[str]) -> list[str]:
    """One line where it is long enough, else two of like length, divided at the end of a clause where there is one."""
    text = " ".join(words)
    if len(text) <= LINE_CHARS:
        return [text]

    def cost(second: int) -> float:
        one, two = len(" ".join(words[:second])), len(" ".join(words[second:]))
        is_clause = _CLAUSE_END.search(words[second - 1]) or _SENTENCE_END.search(words[second - 1])
        return (
            max(one, two, LINE_CHARS) * 10 - 10 * LINE_CHARS + abs(one - two) / LINE_CHARS - (0.5 if is_clause else 0)
        )

    second = min(range(1, len(words)), key=cost)
    return [" ".join(words[:second]), " ".join(words[second:])]


def _clock(time_ms: int, mark: str) -> str:
    seconds, milliseconds = divmod(time_ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{mark}{milliseconds:03}"
