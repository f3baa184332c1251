"""N-gram language models as back-off automata in arrays that numba reads; the reader of ARPA files.

A state is a history of words, an arc leads from it by a word. Where a state has no arc for a word, its back-off weight
is added and the shorter history is tried (Katz 1987). Boosted phrases are the same kind of automaton over characters
(`text/boost.py`).
"""

from __future__ import annotations

import gzip
import io
import itertools
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

from voxstill.core.errors import DataError
from voxstill.storage.fetch import MAX_BYTES, read_head, read_uri
from voxstill.storage.redaction import redact_uri

UNKNOWN, START, END = "<unk>", "<s>", "</s>"
_UNKNOWN_LOG10 = -100.0  # of `<unk>` where a file has none, as kenlm takes it
_MOST_LOG10 = 1e6  # on either side of 0: sums of such weights are finite
_ROUNDING = 1e-6  # of a probability of 1
_MOST_DIGITS = 18
LN10 = math.log(10)
_GZIPPED = b"\x1f\x8b"
_HEAD_BYTES = 1 << 16
"""Comments before `\\data\\` in an ARPA file are shorter than this."""


F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile a function with numba at its first call; the machine code is cached on disk.

    numba compiles again when the file of the function changes, but not when the file of a function that it calls does:
    remove `__pycache__` after such a change.
    """
    machine_code: F = numba.njit(cache=True)(function)
    return machine_code


def inlined(function: F) -> F:
    """Let numba put a function into the compiled ones that call it."""
    code: F = numba.njit(inline="always")(function)
    return code


class Automaton(NamedTuple):
    """S states and A arcs; the arcs of state s are those from `first_S[s]` to `first_S[s + 1]`, by word id.

    State 0 is the empty history and has an arc for every word in the order of word ids. Weights are natural logarithms;
    `shorter_S` is the state that each one backs off to.
    """

    first_S: NDArray[np.int64]
    word_A: NDArray[np.int64]
    weight_A: NDArray[np.float64]
    next_A: NDArray[np.int64]
    backoff_S: NDArray[np.float64]
    shorter_S: NDArray[np.int64]


@compiled
def lower_bound(sorted_N: NDArray[np.int64] | NDArray[np.uint64], low: int, high: int, wanted: int | np.uint64) -> int:
    """Binary search: the first index from `low` to `high` whose value is not below `wanted`."""
    while low < high:
        middle = (low + high) // 2
        if sorted_N[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def step(automaton: Automaton, state: int, word: int) -> tuple[float, int]:
    """Log-probability of the word after the state's history, back-off included, and the next state."""
    total = 0.0
    while state:
        end = automaton.first_S[state + 1]
        arc = lower_bound(automaton.word_A, automaton.first_S[state], end, word)
        if arc < end and automaton.word_A[arc] == word:
            return total + automaton.weight_A[arc], automaton.next_A[arc]
        total += automaton.backoff_S[state]
        state = automaton.shorter_S[state]
    return total + automaton.weight_A[word], automaton.next_A[word]


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """An n-gram model of words; `start` is the state at the beginning of a sentence."""

    order: int
    ids: Mapping[str, int]
    automaton: Automaton
    start: int

    def id(self, word: str) -> int:
        """Id of the word, that of `<unk>` for one out of vocabulary."""
        return self.ids.get(word, self.ids[UNKNOWN])

    def logprobs(self, words: Sequence[str]) -> list[float]:
        """Natural log-probability of each word of a sentence and of its end, given those before."""
        state, logprobs = self.start, []
        for word in (*words, END):
            logprob, state = step(self.automaton, state, self.id(word))
            logprobs.append(float(logprob))
        return logprobs


def read(uri: str) -> LanguageModel:
    """Read an ARPA file, plain or gzipped, local or in a bucket; DataError if it is not one."""
    data = read_uri(uri)
    try:
        text = (_unzipped(data) if data[:2] == _GZIPPED else data).decode()
        return _build(_sections(iter(text.split("\n"))))
    except (ValueError, KeyError, EOFError, OSError, zlib.error) as error:
        raise _no_model(
            uri, f"the word {error} is not a 1-gram" if isinstance(error, KeyError) else str(error)
        ) from None


def _unzipped(data: bytes) -> bytes:
    parts, num_bytes = [], 0
    with gzip.open(io.BytesIO(data)) as file:
        while part := file.read(_HEAD_BYTES):
            num_bytes += len(part)
            if num_bytes > MAX_BYTES:
                raise ValueError(f"it unpacks to more than {MAX_BYTES / 1e6:,.0f} MB")
            parts.append(part)
    return b"".join(parts)


def check(uri: str) -> None:
    """Check by its first bytes that a file can be read and looks like ARPA, without reading all of it.

    StorageError and DataError as from `read`, which may still find a mistake further on.
    """
    data = read_head(uri, _HEAD_BYTES)
    if data[:2] == _GZIPPED:
        try:
            data = zlib.decompressobj(wbits=31).decompress(data, _HEAD_BYTES)
        except zlib.error as error:
            raise _no_model(uri, str(error)) from None
    if b"\\data\\" not in data.split():
        raise _no_model(uri, "it does not begin with the line `\\data\\`")


def _no_model(uri: str, why: str) -> DataError:
    return DataError(
        f"`{redact_uri(uri)}` is not a language model in ARPA format",
        code="unreadable-file",
        why=why,
        fix="make one with `voxstill train-lm`, SRILM or `lmplz`; kenlm's binary files cannot be read",
    )


Row = tuple[float, list[str], float]
"""log10 of a probability, the words, log10 of the back-off weight."""


def _sections(lines: Iterator[str]) -> Iterator[list[Row]]:
    """Yield the n-grams of each order of an ARPA file."""
    while _line(lines) != "\\data\\":
        pass
    sizes: list[int] = []
    for line in lines:
        if line.startswith("ngram "):
            sizes.append(_size(line))
        elif sizes and not line.strip():
            break
    for order, size in enumerate(sizes, 1):
        head = _line(lines)
        if head != f"\\{order}-grams:":
            raise ValueError(f"`\\{order}-grams:` is missing, `{head[:40]}` is in its place")
        rows = []
        for line in itertools.islice((line for line in lines if line.strip()), size):
            logprob, *words = line.split()
            if not order <= len(words) <= order + 1:
                raise ValueError(f"`{line[:60]}` is not a {order}-gram")
            rows.append(
                (_log10(logprob, line), words[:order], _weight(words[order], line) if len(words) > order else 0.0)
            )
        if len(rows) < size:
            raise ValueError(f"{size} {order}-grams are announced, {len(rows)} are there")
        yield rows
    if _line(lines) != "\\end\\":
        raise ValueError(f"there are more {len(sizes)}-grams than are announced")


def _size(line: str) -> int:
    """How many n-grams of an order are announced; ValueError if no number is."""
    number = line.partition("=")[2].strip()
    if not number.isdecimal() or len(number) > _MOST_DIGITS:
        raise ValueError(f"`{line[:60]}` does not have the number of n-grams")
    return int(number)


def _log10(number: str, line: str) -> float:
    """A log-probability; ValueError if it is none."""
    if (logprob := _weight(number, line)) > _ROUNDING:
        raise ValueError(f"`{line[:60]}` has a log-probability above 0")
    return logprob


def _weight(number: str, line: str) -> float:
    if not abs(weight := float(number)) <= _MOST_LOG10:  # nor NaN
        raise ValueError(f"`{line[:60]}` has a number that is not finite, or beyond {_MOST_LOG10:,.0f}")
    return weight


def _line(lines: Iterator[str]) -> str:
    """The next line that is not empty."""
    next_line = next((stripped for line in lines if (stripped := line.strip())), None)
    if next_line is None:
        raise ValueError("it ends too early")
    return next_line


def _build(sections: Iterator[list[Row]]) -> LanguageModel:
    unigrams = next(sections, [])
    ids = {words[0]: id_ for id_, (_, words, _) in enumerate(unigrams)}
    if len(ids) < len(unigrams):
        raise ValueError("a word is listed twice in the 1-grams")
    for word in (word for word in (UNKNOWN, START, END) if word not in ids):
        unigrams.append((_UNKNOWN_LOG10, [word], 0.0))
        ids[word] = len(ids)
    graph, order = Graph(), 0
    for rows in itertools.chain([unigrams], sections):
        order += 1
        for logprob, words, backoff in rows:
            graph.add([ids[word] for word in words], logprob * LN10, backoff * LN10)
    return LanguageModel(order, ids, graph.automaton(), graph.nodes[0, ids[START]])


class Graph:
    """Builds an `Automaton`: a tree of histories, in which each node is a state."""

    def __init__(self) -> None:
        self.nodes: dict[tuple[int, int], int] = {}  # (state, word) -> next state
        self.weight, self.backoff, self.shorter = [0.0], [0.0], [0]

    def add(self, words: Sequence[int], weight: float, backoff: float) -> None:
        """Add an n-gram with its weights; shorter n-grams are added before longer ones.

        A missing prefix (SRILM leaves some out) is added with the weight that backing off gives.
        """
        state = 0
        for word in words:
            state = self.after(state, word)
        self.weight[state], self.backoff[state] = weight, backoff

    def after(self, state: int, word: int) -> int:
        """The state after a word in a state; where there is none yet it is added, with the weight of backing off."""
        next_state = self.nodes.get((state, word))
        if next_state is None:
            backoff_weight, shorter = self._back_off(self.shorter[state], word) if state else (0.0, 0)
            next_state = self.nodes[state, word] = len(self.weight)
            self.weight.append(self.backoff[state] + backoff_weight)
            self.backoff.append(0.0)
            self.shorter.append(shorter)
        return next_state

    def _back_off(self, state: int, word: int) -> tuple[float, int]:
        backoff_weight = 0.0
        while (state, word) not in self.nodes:
            backoff_weight += self.backoff[state]
            state = self.shorter[state]
        next_state = self.nodes[state, word]
        return backoff_weight + self.weight[next_state], next_state

    def automaton(self) -> Automaton:
        """Pack the tree into arrays."""
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
