"""Checks of arguments that come from Python as well as from the command line: what is wrong is a ConfigError."""

from __future__ import annotations

import math
import operator
from numbers import Real

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
