"""Grammars: their sentences, drawn or as a graph, and their text as JSGF (`text/jsgf.py` reads it)."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from voxstill.core.errors import DataError

CONTINUE = 0.5
"""Probability of one more repetition of a loop, and of an optional part."""
MAX_STATES = 1_000_000
"""States of a grammar with each rule where it is used; rules that double make as many in twenty lines."""
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
        """Draw one sentence by the weights; DataError if a rule recurses without end."""
        return list(self._sample(Reference(self.public[0], 0), rng, 0))

    def words(self) -> set[str]:
        """Every word of the grammar."""
        return {text for rule in self.rules.values() for text in _literals(rule)}

    def graph(self) -> Graph:
        """The minimal deterministic graph of the grammar's sentences, without weights.

        DataError if a rule calls itself, or where the rules in one another make more than `MAX_STATES` states.
        Source: subset construction (Rabin and Scott 1959), then partition refinement (Hopcroft 1971).
        """
        try:
            return _minimal(_Automaton(self))
        except RecursionError:
            raise DataError(
                "the grammar cannot be used", code="grammar-broken", why="its rules are nested too deeply"
            ) from None

    def jsgf(self) -> str:
        """Write the grammar as JSGF that `jsgf.parse` reads back to an equal one."""
        rules = [
            f"{'public ' if name in self.public else ''}<{name}> = {_write(rule)};" for name, rule in self.rules.items()
        ]
        return "\n".join(["#JSGF V1.0;", f"grammar {self.name};", *rules, ""])

    def _sample(self, part: Expansion, rng: random.Random, depth: int) -> Iterator[str]:
        if depth > MAX_DEPTH:
            raise DataError(
                f"the grammar `{self.name}` is infinite",
                code="grammar-broken",
                why="a rule refers to itself in all of its alternatives",
                fix="add an alternative that does not",
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
                    raise wrong(line, f"the rule <{rule}> refers to itself: write a loop with + or *")
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
        if self.num_states == MAX_STATES:
            raise DataError(
                f"the grammar `{self.grammar.name}` is too large",
                code="grammar-broken",
                why=f"with all rules expanded it has more than {MAX_STATES:,} states",
                fix="use rules less often, or use loops: (<digit>)+",
            )
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
    class_of = _classes(transitions, [subset for subset in transitions if 1 in subset])
    merged = {
        (class_of[subset], class_of[target], word)
        for subset in transitions
        for word, target in transitions[subset].items()
    }
    return Graph(
        arcs=tuple(sorted(merged)),
        ends=frozenset(class_of[subset] for subset in transitions if 1 in subset),
        num_states=len(set(class_of.values())),
    )


def _classes(
    transitions: Mapping[frozenset[int], Mapping[str, frozenset[int]]], ends: Iterable[frozenset[int]]
) -> dict[frozenset[int], int]:
    """The class of each state: those of one class have the same sentences to the end. The first state is of class 0."""
    number_of = {subset: number for number, subset in enumerate(transitions)}
    sources: list[defaultdict[str, list[int]]] = [defaultdict(list) for _ in transitions]
    for subset, by_word in transitions.items():
        for word, target in by_word.items():
            sources[number_of[target]][word].append(number_of[subset])
    last = {number_of[subset] for subset in ends}
    blocks = [block for block in (last, set(number_of.values()) - last) if block]
    block_of = {state: number for number, block in enumerate(blocks) for state in block}
    waiting = list(range(len(blocks)))
    while waiting:
        by_word_sources: defaultdict[str, set[int]] = defaultdict(set)
        for target_number in blocks[waiting.pop()]:
            for word, numbers in sources[target_number].items():
                by_word_sources[word].update(numbers)
        for reached in by_word_sources.values():
            parts: defaultdict[int, set[int]] = defaultdict(set)
            for state in reached:
                parts[block_of[state]].add(state)
            for number, part in parts.items():
                rest = blocks[number] - part if 2 * len(part) > len(blocks[number]) else None
                smaller = part if rest is None else rest
                if not smaller:
                    continue
                blocks[number] -= smaller
                waiting.append(len(blocks))
                block_of.update(dict.fromkeys(smaller, len(blocks)))
                blocks.append(smaller)
    classes: dict[int, int] = {}
    return {subset: classes.setdefault(block_of[number], len(classes)) for subset, number in number_of.items()}


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


def wrong(line: int, why: str) -> DataError:
    """The error of a mistake in a line of a JSGF text."""
    return DataError(
        f"the grammar is wrong in line {line}",
        code="grammar-broken",
        why=why,
        fix="correct the line; see examples/digits.jsgf",
    )
