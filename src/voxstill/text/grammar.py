"""JSGF grammars, the part that PocketSphinx reads: sequences, `|`, /weights/, (groups), [optionals], `+`, `*`, <rules>.

Source: JSpeech Grammar Format, W3C Note, 5 June 2000. Imports and tags are refused rather than ignored.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from voxstill.core.errors import DataError

CONTINUE = 0.5
"""Probability of one more repetition of a loop, and of an optional part."""
MAX_DEPTH = 200
"""A rule nested deeper than this is taken for endless recursion."""


@dataclass(frozen=True, slots=True)
class Literal:
    """One word."""

    text: str


@dataclass(frozen=True, slots=True)
class Reference:
    """The expansion of another rule."""

    rule: str
    line: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Sequence:
    """One part after the other; the empty sequence is <NULL>."""

    parts: tuple[Expansion, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several parts, drawn in proportion to their weights."""

    parts: tuple[Expansion, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part repeated at least `least` times (0 or 1), and at most once or without limit."""

    part: Expansion
    least: int
    once: bool = False


Expansion: TypeAlias = Literal | Reference | Sequence | Choice | Repeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A finite-state acceptor: sentences are paths from state 0 to one of `ends`; an arc is (source, target, word)."""

    arcs: tuple[tuple[int, int, str], ...]
    ends: frozenset[int]
    num_states: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """A parsed grammar: rules by name, and those where a sentence may start."""

    name: str
    rules: Mapping[str, Expansion]
    public: tuple[str, ...]

    def sample(self, rng: random.Random) -> list[str]:
        """Draw one sentence by the weights; DataError where a rule recurses without end."""
        return list(self._sample(Reference(self.public[0], 0), rng, 0))

    def words(self) -> set[str]:
        """Every word of the grammar."""
        return {text for rule in self.rules.values() for text in _literals(rule)}

    def graph(self) -> Graph:
        """The minimal deterministic graph of the grammar's sentences, without weights.

        DataError where a rule calls itself. Source: subset construction (Rabin and Scott 1959), then partition
        refinement (Moore 1956).
        """
        return _minimal(_Automaton(self))

    def jsgf(self) -> str:
        """Write the grammar as JSGF that `parse` reads back to an equal one."""
        rules = [
            f"{'public ' if name in self.public else ''}<{name}> = {_write(rule)};" for name, rule in self.rules.items()
        ]
        return "\n".join(["#JSGF V1.0;", f"grammar {self.name};", *rules, ""])

    def _sample(self, part: Expansion, rng: random.Random, depth: int) -> Iterator[str]:
        if depth > MAX_DEPTH:
            raise DataError(
                f"the grammar `{self.name}` never ends",
                why="a rule calls itself in each of its sentences",
                fix="give it an alternative that does not",
            )
        match part:
            case Literal(text):
                yield text
            case Reference(rule):
                yield from self._sample(self.rules[rule], rng, depth + 1)
            case Sequence(parts):
                for alternative in parts:
                    yield from self._sample(alternative, rng, depth + 1)
            case Choice(parts, weights):
                yield from self._sample(rng.choices(parts, weights)[0], rng, depth + 1)
            case Repeat(inner, least, once):
                repetitions = least
                while rng.random() < CONTINUE:
                    repetitions += 1
                for _ in range(min(repetitions, 1) if once else repetitions):
                    yield from self._sample(inner, rng, depth + 1)


def parse(text: str) -> Grammar:
    """Parse a JSGF text; DataError names the line of a mistake."""
    try:
        return _Parser(text).grammar()
    except RecursionError:
        raise DataError("the grammar cannot be used", why="its brackets are nested too deeply") from None


class _Automaton:
    """A non-deterministic automaton from state 0 to state 1, with each rule expanded where it is used.

    `labelled` are arcs with a word, `epsilon` are epsilon arcs.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.num_states = 2
        self.epsilon: defaultdict[int, set[int]] = defaultdict(set)
        self.labelled: defaultdict[int, set[tuple[str, int]]] = defaultdict(set)
        self._add(Reference(grammar.public[0], 0), 0, 1, ())

    def closure(self, states: Iterable[int]) -> frozenset[int]:
        """Epsilon closure of the states."""
        reached = set(states)
        pending = list(reached)
        while pending:
            new = self.epsilon[pending.pop()] - reached
            reached |= new
            pending += new
        return frozenset(reached)

    def _add(self, part: Expansion, source: int, target: int, enclosing_rules: tuple[str, ...]) -> None:
        match part:
            case Literal(text):
                self.labelled[source].add((text, target))
            case Reference(rule, line):
                if rule in enclosing_rules:
                    raise _wrong(line, f"the rule <{rule}> calls itself: write a loop with + or *")
                self._add(self.grammar.rules[rule], source, target, (*enclosing_rules, rule))
            case Sequence(parts):
                for expansion in parts:
                    source, before = self._state(), source
                    self._add(expansion, before, source, enclosing_rules)
                self.epsilon[source].add(target)
            case Choice(parts):
                for expansion in parts:
                    self._add(expansion, source, target, enclosing_rules)
            case Repeat(inner, least, once):
                first, last = self._state(), self._state()
                self._add(inner, first, last, enclosing_rules)
                self.epsilon[source].add(first)
                self.epsilon[last].add(target)
                if not once:
                    self.epsilon[last].add(first)
                if least == 0:
                    self.epsilon[source].add(target)

    def _state(self) -> int:
        self.num_states += 1
        return self.num_states - 1


def _minimal(arcs: _Automaton) -> Graph:
    transitions: dict[frozenset[int], dict[str, frozenset[int]]] = {}
    pending = [arcs.closure([0])]
    while pending:
        subset = pending.pop()
        if subset in transitions:
            continue
        targets = defaultdict(set)
        for word, target in sorted({arc for state in subset for arc in arcs.labelled[state]}):
            targets[word].add(target)
        transitions[subset] = {word: arcs.closure(states) for word, states in targets.items()}
        pending += transitions[subset].values()
    class_of = {subset: int(1 in subset) for subset in transitions}
    while True:
        numbers: dict[object, int] = {}  # the first subset is the start, so its class is 0
        finer = {}
        for subset, by_word in transitions.items():
            future = (class_of[subset], *((word, class_of[target]) for word, target in by_word.items()))
            finer[subset] = numbers.setdefault(future, len(numbers))
        if len(numbers) == len(set(class_of.values())):
            break
        class_of = finer
    merged = {
        (finer[subset], finer[target], word) for subset in transitions for word, target in transitions[subset].items()
    }
    return Graph(
        arcs=tuple(sorted(merged)),
        ends=frozenset(finer[subset] for subset in transitions if 1 in subset),
        num_states=len(numbers),
    )


def _literals(part: Expansion) -> Iterator[str]:
    match part:
        case Literal(text):
            yield text
        case Sequence(parts) | Choice(parts):
            for expansion in parts:
                yield from _literals(expansion)
        case Repeat(inner):
            yield from _literals(inner)


def _write(part: Expansion) -> str:
    match part:
        case Literal(text):
            return text
        case Reference(rule):
            return f"<{rule}>"
        case Sequence(()):
            return "<NULL>"
        case Sequence(parts):
            return " ".join(
                f"({_write(expansion)})" if isinstance(expansion, Choice | Sequence) else _write(expansion)
                for expansion in parts
            )
        case Choice(parts, weights):
            is_unweighted = len(set(weights)) == 1
            return " | ".join(
                ("" if is_unweighted else f"/{weight!r}/ ")
                + (f"({_write(expansion)})" if isinstance(expansion, Choice) else _write(expansion))
                for expansion, weight in zip(parts, weights, strict=True)
            )
        case Repeat(inner, _, True):
            return f"[{_write(inner)}]"
        case Repeat(inner, least):
            body = _write(inner) if isinstance(inner, Literal | Reference) else f"({_write(inner)})"
            return body + ("+" if least else "*")


_TOKEN = re.compile(
    r"(?P<skip>\s+|//[^\n]*|/\*.*?\*/)"
    r"|(?P<weight>/\s*[0-9.eE+-]+\s*/)"
    r"|(?P<rule><[^<>\s]+>)"
    r'|(?P<quoted>"[^"\n]*")'
    r"|(?P<sign>[=;|()\[\]+*])"
    r'|(?P<word>[^\s=;|()\[\]+*<>/"{}]+)',
    re.DOTALL,
)
_HEADER = re.compile(r"\ufeff?\s*#JSGF(\s+V1\.0)?[^;\n]*;?")


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    line: int


class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str) -> None:
        header = _HEADER.match(text)
        if header is None:
            raise _wrong(1, "it does not start with `#JSGF V1.0;`")
        self.tokens = list(_tokens(text, header.end()))
        self.position = 0

    def grammar(self) -> Grammar:
        if self._next("a grammar name").text != "grammar":
            raise _wrong(self.tokens[0].line, "`grammar NAME;` must come first")
        name = self._next("a grammar name").text
        self._take(";")
        rules: dict[str, Expansion] = {}
        public: list[str] = []
        while self.position < len(self.tokens):
            token = self._next("a rule")
            if token.text == "public":
                token = self._next("a rule name")
            if token.kind != "rule":
                raise _wrong(token.line, f"`{token.text}` stands where a rule `<name> = ...;` must start")
            rule = token.text[1:-1]
            if rule in rules:
                raise _wrong(token.line, f"the rule <{rule}> is there twice")
            if self.tokens[self.position - 2].text == "public":
                public.append(rule)
            self._take("=")
            rules[rule] = self._choice()
            self._take(";")
        if not public:
            raise _wrong(self.tokens[-1].line, "no rule is public, so no sentence can start")
        for token in self.tokens:
            if token.kind == "rule" and token.text not in ("<NULL>",) and token.text[1:-1] not in rules:
                raise _wrong(token.line, f"the rule {token.text} is nowhere defined")
        return Grammar(name=name, rules=rules, public=tuple(public))

    def _choice(self) -> Expansion:
        parts, weights = [], []
        while True:
            has_weight = self._peek() is not None and self.tokens[self.position].kind == "weight"
            weights.append(_number(self._next("a weight")) if has_weight else 1.0)
            parts.append(self._sequence())
            if self._peek() != "|":
                break
            self.position += 1
        return parts[0] if len(parts) == 1 else Choice(tuple(parts), tuple(weights))

    def _sequence(self) -> Expansion:
        parts: list[Expansion] = []
        while (part := self._part()) is not None:
            if (sign := self._peek()) in ("+", "*"):
                part = Repeat(part, least=1 if sign == "+" else 0)
                self.position += 1
            parts.append(part)
        if not parts:
            token = self.tokens[min(self.position, len(self.tokens) - 1)]
            raise _wrong(token.line, "an alternative is empty; say <NULL> for nothing")
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _part(self) -> Expansion | None:
        if self.position >= len(self.tokens):
            return None
        token = self.tokens[self.position]
        if token.kind in ("word", "quoted"):
            self.position += 1
            return Literal(token.text.strip('"'))
        if token.kind == "rule":
            self.position += 1
            return Sequence(()) if token.text == "<NULL>" else Reference(token.text[1:-1], token.line)
        if token.text in ("(", "["):
            self.position += 1
            inner = self._choice()
            self._take(")" if token.text == "(" else "]")
            return inner if token.text == "(" else Repeat(inner, least=0, once=True)
        return None

    def _peek(self) -> str | None:
        return self.tokens[self.position].text if self.position < len(self.tokens) else None

    def _next(self, wanted: str) -> _Token:
        if self.position >= len(self.tokens):
            raise _wrong(self.tokens[-1].line if self.tokens else 1, f"it ends where {wanted} must follow")
        self.position += 1
        return self.tokens[self.position - 1]

    def _take(self, sign: str) -> None:
        token = self._next(f"`{sign}`")
        if token.text != sign:
            raise _wrong(token.line, f"`{token.text}` stands where `{sign}` must")


def _tokens(text: str, start: int) -> Iterator[_Token]:
    position, line = start, 1 + text.count("\n", 0, start)
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _wrong(line, f"`{text[position]}` is not understood: tags are not read")
        if match.lastgroup != "skip":
            if match.group() == "import":
                raise _wrong(line, "imports are not read: put the rules into one file")
            yield _Token(str(match.lastgroup), match.group(), line)
        line += match.group().count("\n")
        position = match.end()


def _number(token: _Token) -> float:
    try:
        weight = float(token.text.strip("/ \t"))
    except ValueError:
        weight = -1.0
    if not 0 < weight < float("inf"):
        raise _wrong(token.line, f"the weight {token.text} is not a number above 0")
    return weight


def _wrong(line: int, why: str) -> DataError:
    return DataError(f"the grammar is wrong in line {line}", why=why, fix="correct the line; see examples/digits.jsgf")
