"""JSGF, the part that PocketSphinx reads: sequences, `|`, /weights/, (groups), [optionals], `+`, `*` and <rules>.

Source: JSpeech Grammar Format, W3C Note, 5 June 2000. Imports and tags are refused rather than ignored.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from voxstill.errors import DataError

CONTINUE = 0.5
"""Chance of one more turn in a loop, and of an optional part being said."""
MAX_DEPTH = 200
"""A rule nested deeper than this never ends."""


@dataclass(frozen=True, slots=True)
class Literal:
    """One word."""

    text: str


@dataclass(frozen=True, slots=True)
class Reference:
    """What another rule says."""

    rule: str
    line: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Sequence:
    """One part after the other; none says nothing."""

    parts: tuple[Expansion, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several, likelier with more weight."""

    parts: tuple[Expansion, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part said at least so many times (0 or 1), and at most once or any number of times."""

    part: Expansion
    least: int
    once: bool = False


Expansion: TypeAlias = Literal | Reference | Sequence | Choice | Repeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Sentences as paths from state 0 to one of the `ends`; an arc goes from a state to a state by a word."""

    arcs: tuple[tuple[int, int, str], ...]
    ends: frozenset[int]
    num_states: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """What may be said: rules by name, and those where a sentence may start."""

    name: str
    rules: Mapping[str, Expansion]
    public: tuple[str, ...]

    def sample(self, rng: random.Random) -> list[str]:
        """One sentence, by the weights; DataError where a rule calls itself without end."""
        return list(self._say(Reference(self.public[0], 0), rng, 0))

    def words(self) -> set[str]:
        """Every word that some sentence has."""
        return {text for rule in self.rules.values() for text in _literals(rule)}

    def graph(self) -> Graph:
        """The smallest graph of the same sentences, no two arcs of a state with the same word; weights are left out.

        DataError where a rule calls itself. Source: subset construction (Rabin and Scott 1959), then refinement of
        classes (Moore 1956).
        """
        return _smallest(_Arcs(self))

    def jsgf(self) -> str:
        """The grammar as text that `parse` reads back to an equal one."""
        rules = [
            f"{'public ' if name in self.public else ''}<{name}> = {_write(rule)};" for name, rule in self.rules.items()
        ]
        return "\n".join(["#JSGF V1.0;", f"grammar {self.name};", *rules, ""])

    def _say(self, part: Expansion, rng: random.Random, depth: int) -> Iterator[str]:
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
                yield from self._say(self.rules[rule], rng, depth + 1)
            case Sequence(parts):
                for each in parts:
                    yield from self._say(each, rng, depth + 1)
            case Choice(parts, weights):
                yield from self._say(rng.choices(parts, weights)[0], rng, depth + 1)
            case Repeat(inner, least, once):
                turns = least
                while rng.random() < CONTINUE:
                    turns += 1
                for _ in range(min(turns, 1) if once else turns):
                    yield from self._say(inner, rng, depth + 1)


def parse(text: str) -> Grammar:
    """The grammar in a JSGF text; DataError says in which line it is wrong."""
    return _Parser(text).grammar()


class _Arcs:
    """Arcs from state 0 to state 1, by a word or silent: the grammar with each rule copied to where it is used."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.num_states = 2
        self.silent: defaultdict[int, set[int]] = defaultdict(set)
        self.spoken: defaultdict[int, set[tuple[str, int]]] = defaultdict(set)
        self._add(Reference(grammar.public[0], 0), 0, 1, ())

    def closure(self, states: Iterable[int]) -> frozenset[int]:
        """The states, and those reached from them silently."""
        reached = set(states)
        todo = list(reached)
        while todo:
            new = self.silent[todo.pop()] - reached
            reached |= new
            todo += new
        return frozenset(reached)

    def _add(self, part: Expansion, source: int, target: int, within: tuple[str, ...]) -> None:
        match part:
            case Literal(text):
                self.spoken[source].add((text, target))
            case Reference(rule, line):
                if rule in within:
                    raise _wrong(line, f"the rule <{rule}> calls itself: write a loop with + or *")
                self._add(self.grammar.rules[rule], source, target, (*within, rule))
            case Sequence(parts):
                for each in parts:
                    source, before = self._state(), source
                    self._add(each, before, source, within)
                self.silent[source].add(target)
            case Choice(parts):
                for each in parts:
                    self._add(each, source, target, within)
            case Repeat(inner, least, once):
                first, last = self._state(), self._state()
                self._add(inner, first, last, within)
                self.silent[source].add(first)
                self.silent[last].add(target)
                if not once:
                    self.silent[last].add(first)
                if least == 0:
                    self.silent[source].add(target)

    def _state(self) -> int:
        self.num_states += 1
        return self.num_states - 1


def _smallest(arcs: _Arcs) -> Graph:
    ways: dict[frozenset[int], dict[str, frozenset[int]]] = {}
    todo = [arcs.closure([0])]
    while todo:
        subset = todo.pop()
        if subset in ways:
            continue
        targets = defaultdict(set)
        for word, target in sorted({each for state in subset for each in arcs.spoken[state]}):
            targets[word].add(target)
        ways[subset] = {word: arcs.closure(states) for word, states in targets.items()}
        todo += ways[subset].values()
    class_of = {subset: int(1 in subset) for subset in ways}
    while True:
        numbers: dict[object, int] = {}  # the first subset is the start, so its class is 0
        finer = {}
        for subset, by_word in ways.items():
            future = (class_of[subset], *((word, class_of[target]) for word, target in by_word.items()))
            finer[subset] = numbers.setdefault(future, len(numbers))
        if len(numbers) == len(set(class_of.values())):
            break
        class_of = finer
    merged = {(finer[subset], finer[target], word) for subset in ways for word, target in ways[subset].items()}
    return Graph(
        arcs=tuple(sorted(merged)),
        ends=frozenset(finer[subset] for subset in ways if 1 in subset),
        num_states=len(numbers),
    )


def _literals(part: Expansion) -> Iterator[str]:
    match part:
        case Literal(text):
            yield text
        case Sequence(parts) | Choice(parts):
            for each in parts:
                yield from _literals(each)
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
                f"({_write(each)})" if isinstance(each, Choice | Sequence) else _write(each) for each in parts
            )
        case Choice(parts, weights):
            plain = len(set(weights)) == 1
            return " | ".join(
                ("" if plain else f"/{weight!r}/ ")
                + (f"({_write(each)})" if isinstance(each, Choice) else _write(each))
                for each, weight in zip(parts, weights, strict=True)
            )
        case Repeat(inner, _, True):
            return f"[{_write(inner)}]"
        case Repeat(inner, least):
            inside = _write(inner) if isinstance(inner, Literal | Reference) else f"({_write(inner)})"
            return inside + ("+" if least else "*")


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
        self.at = 0

    def grammar(self) -> Grammar:
        if self._next("a grammar name").text != "grammar":
            raise _wrong(self.tokens[0].line, "`grammar NAME;` must come first")
        name = self._next("a grammar name").text
        self._take(";")
        rules: dict[str, Expansion] = {}
        public: list[str] = []
        while self.at < len(self.tokens):
            token = self._next("a rule")
            if token.text == "public":
                token = self._next("a rule name")
            if token.kind != "rule":
                raise _wrong(token.line, f"`{token.text}` stands where a rule `<name> = ...;` must start")
            rule = token.text[1:-1]
            if rule in rules:
                raise _wrong(token.line, f"the rule <{rule}> is there twice")
            if self.tokens[self.at - 2].text == "public":
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
            weight = 1.0
            if self._peek() is not None and self.tokens[self.at].kind == "weight":
                token = self._next("a weight")
                weight = _number(token)
            weights.append(weight)
            parts.append(self._sequence())
            if self._peek() != "|":
                break
            self.at += 1
        return parts[0] if len(parts) == 1 else Choice(tuple(parts), tuple(weights))

    def _sequence(self) -> Expansion:
        parts: list[Expansion] = []
        while (part := self._part()) is not None:
            while (sign := self._peek()) in ("+", "*"):
                part = Repeat(part, least=1 if sign == "+" else 0)
                self.at += 1
            parts.append(part)
        if not parts:
            line = self.tokens[min(self.at, len(self.tokens) - 1)].line
            raise _wrong(line, "an alternative is empty; say <NULL> for nothing")
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _part(self) -> Expansion | None:
        if self.at >= len(self.tokens):
            return None
        token = self.tokens[self.at]
        if token.kind in ("word", "quoted"):
            self.at += 1
            return Literal(token.text.strip('"'))
        if token.kind == "rule":
            self.at += 1
            return Sequence(()) if token.text == "<NULL>" else Reference(token.text[1:-1], token.line)
        if token.text in ("(", "["):
            self.at += 1
            inner = self._choice()
            self._take(")" if token.text == "(" else "]")
            return inner if token.text == "(" else Repeat(inner, least=0, once=True)
        return None

    def _peek(self) -> str | None:
        return self.tokens[self.at].text if self.at < len(self.tokens) else None

    def _next(self, wanted: str) -> _Token:
        if self.at >= len(self.tokens):
            raise _wrong(self.tokens[-1].line if self.tokens else 1, f"it ends where {wanted} must follow")
        self.at += 1
        return self.tokens[self.at - 1]

    def _take(self, sign: str) -> None:
        token = self._next(f"`{sign}`")
        if token.text != sign:
            raise _wrong(token.line, f"`{token.text}` stands where `{sign}` must")


def _tokens(text: str, start: int) -> Iterator[_Token]:
    at, line = start, 1 + text.count("\n", 0, start)
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _wrong(line, f"`{text[at]}` is not understood: tags are not read")
        if match.lastgroup != "skip":
            if match.group() == "import":
                raise _wrong(line, "imports are not read: put the rules into one file")
            yield _Token(str(match.lastgroup), match.group(), line)
        line += match.group().count("\n")
        at = match.end()


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
