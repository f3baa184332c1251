"""Word n-grams as an automaton: the log-probability of a word and what is remembered of it, by arrays that numba reads.

A state is what the model still remembers of the words before. An arc leads from it by a word; where a state has no arc
for a word, its back-off is paid and the shorter memory is asked (Katz 1987). Phrases to listen for are the same kind of
automaton over characters (`text/boost.py`).
"""

from __future__ import annotations

import gzip
import itertools
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

from voxstill.errors import DataError
from voxstill.fetch import beginning, read_uri

UNKNOWN, START, END = "<unk>", "<s>", "</s>"
_UNKNOWN_LOG10 = -100.0  # of `<unk>` where a file has none, as kenlm takes it
LN10 = math.log(10)
_GZIPPED = b"\x1f\x8b"
_HEAD_BYTES = 1 << 16
"""What stands before `\\data\\` in an ARPA file is a remark, and shorter."""


F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """The function as machine code, made at its first call and kept on disk for the processes after this one.

    What is kept is made anew when the function's own file changes, not when that of another function does which it
    calls: remove `__pycache__` after such a change.
    """
    made: F = numba.njit(cache=True)(function)
    return made


class Automaton(NamedTuple):
    """S states and A arcs; the arcs of state s are those from `first_S[s]` to `first_S[s + 1]`, by word id.

    State 0 remembers nothing and has an arc for every word. Weights are natural logarithms.
    """

    first_S: NDArray[np.int64]
    word_A: NDArray[np.int64]
    weight_A: NDArray[np.float64]
    next_A: NDArray[np.int64]
    backoff_S: NDArray[np.float64]
    shorter_S: NDArray[np.int64]


@compiled
def find(sorted_N: NDArray[Any], low: int, high: int, wanted: Any) -> int:
    """The first place from `low` to `high` whose value is not below `wanted`."""
    while low < high:
        middle = (low + high) // 2
        if sorted_N[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def step(automaton: Automaton, state: int, word: int) -> tuple[float, int]:
    """The weight of the word after what the state remembers, and the state after it."""
    total = 0.0
    while True:
        end = automaton.first_S[state + 1]
        at = find(automaton.word_A, automaton.first_S[state], end, word)
        if at < end and automaton.word_A[at] == word:
            return total + automaton.weight_A[at], automaton.next_A[at]
        total += automaton.backoff_S[state]
        state = automaton.shorter_S[state]


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """An n-gram model of words; `start` is the state at the beginning of a sentence."""

    order: int
    ids: Mapping[str, int]
    automaton: Automaton
    start: int

    def id(self, word: str) -> int:
        """The word's id, that of `<unk>` for a word the model does not know."""
        return self.ids.get(word, self.ids[UNKNOWN])

    def logprobs(self, words: Sequence[str]) -> list[float]:
        """The natural log-probability of each word of a sentence and of its end, after those before."""
        state, found = self.start, []
        for word in (*words, END):
            logprob, state = step(self.automaton, state, self.id(word))
            found.append(float(logprob))
        return found


def read(uri: str) -> LanguageModel:
    """The model of an ARPA file, plain or gzipped, here or in a bucket; DataError where the file is not one."""
    data = read_uri(uri)
    try:
        text = (gzip.decompress(data) if data[:2] == _GZIPPED else data).decode()
        return _built(_sections(iter(text.split("\n"))))
    except (ValueError, KeyError, EOFError, OSError) as error:
        raise _no_model(uri, f"the word {error} is no 1-gram" if isinstance(error, KeyError) else str(error)) from None


def check(uri: str) -> None:
    """An error where the file cannot be read or does not begin as an ARPA file does: what is seen without reading it.

    StorageError and DataError as `read` raises them, which may still find it broken further on.
    """
    data = beginning(uri, _HEAD_BYTES)
    if data[:2] == _GZIPPED:
        try:
            data = zlib.decompressobj(wbits=31).decompress(data, _HEAD_BYTES)
        except zlib.error as error:
            raise _no_model(uri, str(error)) from None
    if b"\\data\\" not in data.split():
        raise _no_model(uri, "its beginning has no line `\\data\\`")


def _no_model(uri: str, why: str) -> DataError:
    return DataError(
        f"`{uri}` is no language model in ARPA format",
        why=why,
        fix="make one with `voxstill train-lm`, SRILM or `lmplz`; kenlm's binary files cannot be read",
    )


Row = tuple[float, list[str], float]
"""log10 of a probability, the words, log10 of the back-off."""


def _sections(lines: Iterator[str]) -> Iterator[list[Row]]:
    """The n-grams of each order."""
    while _line(lines) != "\\data\\":
        pass
    sizes: list[int] = []
    for line in lines:
        if line.startswith("ngram "):
            sizes.append(int(line.partition("=")[2]))
        elif sizes and not line.strip():
            break
    for order, size in enumerate(sizes, 1):
        head = _line(lines)
        if head != f"\\{order}-grams:":
            raise ValueError(f"`\\{order}-grams:` is missing, there is `{head[:40]}`")
        rows = []
        for line in itertools.islice((line for line in lines if line.strip()), size):
            logprob, *words = line.split()
            if not order <= len(words) <= order + 1:
                raise ValueError(f"`{line[:60]}` is no {order}-gram")
            rows.append((float(logprob), words[:order], float(words[order]) if len(words) > order else 0.0))
        if len(rows) < size:
            raise ValueError(f"{size} {order}-grams are announced, {len(rows)} are there")
        yield rows
    if _line(lines) != "\\end\\":
        raise ValueError(f"there are more {len(sizes)}-grams than are announced")


def _line(lines: Iterator[str]) -> str:
    """The next line that is not empty."""
    found = next((stripped for line in lines if (stripped := line.strip())), None)
    if found is None:
        raise ValueError("it ends too early")
    return found


def _built(sections: Iterator[list[Row]]) -> LanguageModel:
    unigrams = next(sections, [])
    ids = {words[0]: id_ for id_, (_, words, _) in enumerate(unigrams)}
    for missing in (each for each in (UNKNOWN, START, END) if each not in ids):
        unigrams.append((_UNKNOWN_LOG10, [missing], 0.0))
        ids[missing] = len(ids)
    graph, order = Graph(), 0
    for rows in itertools.chain([unigrams], sections):
        order += 1
        for logprob, words, backoff in rows:
            graph.add([ids[word] for word in words], logprob * LN10, backoff * LN10)
    return LanguageModel(order, ids, graph.automaton(), graph.nodes[0, ids[START]])


class Graph:
    """An automaton while it is made: a tree, in which each node is a state."""

    def __init__(self) -> None:
        self.nodes: dict[tuple[int, int], int] = {}  # where one comes by a word
        self.weight, self.backoff, self.shorter = [0.0], [0.0], [0]

    def add(self, words: Sequence[int], weight: float, backoff: float) -> None:
        """A sequence and what it costs; all its shorter ones come before it.

        A beginning that is not there (SRILM leaves some out) is made, and weighs what backing off gives.
        """
        at, last = 0, len(words) - 1
        for position, word in enumerate(words):
            after = self.nodes.get((at, word))
            if after is None:
                paid, shorter = self._step(self.shorter[at], word) if at else (0.0, 0)
                after = self.nodes[at, word] = len(self.weight)
                self.weight.append(self.backoff[at] + paid)
                self.backoff.append(0.0)
                self.shorter.append(shorter)
            at = after
            if position == last:
                self.weight[at], self.backoff[at] = weight, backoff

    def _step(self, state: int, word: int) -> tuple[float, int]:
        paid = 0.0
        while (state, word) not in self.nodes:
            paid += self.backoff[state]
            state = self.shorter[state]
        after = self.nodes[state, word]
        return paid + self.weight[after], after

    def automaton(self) -> Automaton:
        """The arrays."""
        num = len(self.nodes)
        from_A = np.fromiter((state for state, _ in self.nodes), np.int64, num)
        word_A = np.fromiter((word for _, word in self.nodes), np.int64, num)
        next_A = np.fromiter(self.nodes.values(), np.int64, num)
        order_A = np.lexsort((word_A, from_A))
        first_S = np.searchsorted(from_A[order_A], np.arange(len(self.weight) + 1))
        return Automaton(
            first_S=first_S.astype(np.int64),
            word_A=word_A[order_A],
            weight_A=np.array(self.weight)[next_A[order_A]],
            next_A=next_A[order_A],
            backoff_S=np.array(self.backoff),
            shorter_S=np.array(self.shorter, np.int64),
        )
