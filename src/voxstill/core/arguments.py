"""Checks of arguments that come from Python as well as from the command line: what is wrong is a ConfigError."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Set
from numbers import Real
from typing import Any

from voxstill.core.errors import ConfigError


def whole_number(name: str, value: object, least: int, most: int | None = None) -> int:
    """The value as an int, NumPy's too; ConfigError if it is none, or not from `least` to `most`."""
    span = f"of {least:,} or more" if most is None else f"from {least:,} to {most:,}"
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        raise ConfigError(
            f"`{name}` cannot be {value!r}",
            code="option-value",
            why=f"it must be a whole number {span}",
            fix="give a number in this range",
        )
    return number


def not_negative(name: str, value: object) -> float:
    """The value as a float; ConfigError if it is not a number, negative or not finite."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    number = float(value) if is_number else math.nan  # type: ignore[arg-type]
    if not 0 <= number < math.inf:
        raise ConfigError(
            f"`{name}` cannot be {value!r}",
            code="option-value",
            why="it must be 0 or more",
            fix="give a number in this range",
        )
    return number


def text(name: str, value: object) -> str:
    """The value, which is a string that can be stored; ConfigError if it is none, or bytes that are no UTF-8 are in it.

    A shell passes such bytes on, and Python holds each as half of a surrogate pair.
    """
    try:
        if not isinstance(value, str):
            raise TypeError(f"it is of the type {type(value).__name__}")
        value.encode()
    except (TypeError, UnicodeEncodeError) as error:
        is_text = isinstance(error, UnicodeEncodeError)
        raise ConfigError(
            f"`{name}` cannot be {value!r:.100}",
            code="option-value",
            why="it has bytes that are no UTF-8" if is_text else str(error),
            fix="give it as UTF-8" if is_text else "give a string",
        ) from None
    return value


def strings(name: str, value: object, *, several: str | None = None) -> list[str]:
    """The value as a list of strings: names, overrides or paths, of which one may stand alone.

    With `several`, which says how to give them, one alone is refused, and so are paths: `remove` cannot be undone.
    ConfigError where it is something else.
    """
    kinds = str | os.PathLike if several is None else str
    if several is None and isinstance(value, kinds):
        value = [value]
    is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray | os.PathLike)
    values: list[Any] = list(value) if is_list else []  # type: ignore[call-overload]
    if not is_list or not all(isinstance(item, kinds) for item in values):
        raise ConfigError(
            f"`{name}` cannot be {value!r:.100}",
            code="option-value",
            why=f"it is a list of strings{' or paths' if several is None else ''}",
            fix=several or f"give a list: {name}=[...]",
        )
    return [os.fspath(item) for item in values]


def string_pairs(name: str, value: object) -> Iterator[tuple[str, str]]:
    """The pairs of strings in the value, one at a time; ConfigError where it holds something else.

    A string of two letters is no pair, and mappings and sets have no first and second.
    """
    is_list = isinstance(value, Iterable) and not isinstance(value, str | Mapping | Set)
    for item in value if is_list else [value]:  # type: ignore[attr-defined]
        is_pair = isinstance(item, Iterable) and not isinstance(item, str | Mapping | Set)
        pair = list(item) if is_pair else []
        if len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise ConfigError(
                f"`{name}` cannot have {item!r:.100}",
                code="option-value",
                why="it is a list of pairs of strings",
                fix=f"give a list of tuples of two strings: {name}=[(..., ...), ...]",
            )
        yield pair[0], pair[1]
