"""Read JSGF, the part that PocketSphinx reads: sequences, `|`, /weights/, (groups), [optionals], `+`, `*`, <rules>.

Source: JSpeech Grammar Format, W3C Note, 5 June 2000. Imports and tags are refused rather than ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from voxstill.core.errors import DataError
from voxstill.storage.fetch import read_uri
from voxstill.storage.redaction import redact_uri
from voxstill.text.grammar import Choice, Expansion, Grammar, Literal, Reference, Repeat, Sequence, wrong

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


def read(uri: str) -> Grammar:
    """Read a JSGF file, local or in a bucket.

    StorageError if it cannot be read, DataError with the line of a mistake.
    """
    return of_bytes(read_uri(uri), uri)


def of_bytes(data: bytes, uri: str) -> Grammar:
    """Parse the bytes that were read of a JSGF file; DataError as of `read`."""
    try:
        grammar = parse(data.decode())
        grammar.graph()  # a rule that calls itself has none
        return grammar
    except UnicodeDecodeError:
        why, fix = "it is not UTF-8", "give a JSGF file; see examples/digits.jsgf"
    except DataError as error:
        why, fix = f"{error.what}: {error.why}", error.fix
    raise DataError(f"the grammar `{redact_uri(uri)}` cannot be used", code="grammar-broken", why=why, fix=fix)


def parse(text: str) -> Grammar:
    """Parse a JSGF text; DataError names the line of a mistake."""
    try:
        return _Parser(text).grammar()
    except RecursionError:
        raise DataError(
            "the grammar cannot be used", code="grammar-broken", why="its brackets are nested too deeply"
        ) from None


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
            raise wrong(1, "it does not start with `#JSGF V1.0;`")
        self.tokens = list(_tokens(text, header.end()))
        self.position = 0

    def grammar(self) -> Grammar:
        if self._next("a grammar name").text != "grammar":
            raise wrong(self.tokens[0].line, "`grammar NAME;` must come first")
        name = self._next("a grammar name").text
        self._take(";")
        rules: dict[str, Expansion] = {}
        public: list[str] = []
        while self.position < len(self.tokens):
            token = self._next("a rule")
            if token.text == "public":
                token = self._next("a rule name")
            if token.kind != "rule":
                raise wrong(token.line, f"`{token.text}` is where a rule `<name> = ...;` must start")
            rule = token.text[1:-1]
            if rule in rules:
                raise wrong(token.line, f"the rule <{rule}> is defined twice")
            if self.tokens[self.position - 2].text == "public":
                public.append(rule)
            self._take("=")
            rules[rule] = self._choice()
            self._take(";")
        if not public:
            raise wrong(self.tokens[-1].line, "no rule is public, so no sentence can start")
        for token in self.tokens:
            if token.kind == "rule" and token.text not in ("<NULL>",) and token.text[1:-1] not in rules:
                raise wrong(token.line, f"the rule {token.text} is not defined")
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
            raise wrong(token.line, "an alternative is empty; write <NULL> for nothing")
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
            raise wrong(self.tokens[-1].line if self.tokens else 1, f"it ends where {wanted} must follow")
        self.position += 1
        return self.tokens[self.position - 1]

    def _take(self, sign: str) -> None:
        token = self._next(f"`{sign}`")
        if token.text != sign:
            raise wrong(token.line, f"`{token.text}` is where `{sign}` must be")


def _tokens(text: str, start: int) -> Iterator[_Token]:
    position, line = start, 1 + text.count("\n", 0, start)
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise wrong(line, f"`{text[position]}` is not understood: tags are not read")
        if match.lastgroup != "skip":
            if match.group() == "import":
                raise wrong(line, "imports are not read: put the rules into one file")
            yield _Token(str(match.lastgroup), match.group(), line)
        line += match.group().count("\n")
        position = match.end()


def _number(token: _Token) -> float:
    try:
        weight = float(token.text.strip("/ \t"))
    except ValueError:
        weight = -1.0
    if not 0 < weight < float("inf"):
        raise wrong(token.line, f"the weight {token.text} is not a number above 0")
    return weight
