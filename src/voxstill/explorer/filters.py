"""What a request wants to see: parsed, checked against the columns there are, and made into SQL.

Names of columns are those of the white list and never text of the request; every value is a bound parameter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from voxstill.explorer.columns import Column
from voxstill.explorer.errors import RequestError

Value = str | float | bool | None
MAX_TEXT = 200
MAX_CONDITIONS = 32
MAX_VALUES = 100
MAX_ROW = 1 << 62
"""No row has such a number."""
MAX_WHOLE = 1 << 127
"""The database has no whole number of this size."""
MAX_FILTER = 20_000
"""Characters of a filter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """A condition in SQL with the values of its parameters."""

    sql: str
    values: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A column whose value is in a range, both ends included, or is one of several; None stands for no value."""

    column: Column
    low: float | None = None
    high: float | None = None
    values: tuple[Value, ...] | None = None

    def clause(self) -> Clause:
        """The condition in SQL."""
        name = self.column.sql
        if self.values is None:
            ends = [(f"{name} >= ?", self.low), (f"{name} <= ?", self.high)]
            bounds = [(sql, value) for sql, value in ends if value is not None]
            return Clause(
                sql=" AND ".join(sql for sql, _ in bounds) or f"{name} IS NOT NULL",
                values=tuple(value for _, value in bounds),
            )
        known = tuple(value for value in self.values if value is not None)
        parts = [f"{name} IN ({', '.join('?' * len(known))})"] if known else []
        parts += [f"{name} IS NULL"] if len(known) < len(self.values) else []
        return Clause(sql=" OR ".join(parts) or "false", values=known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What is shown: a text that is searched, and conditions that all hold."""

    text: str = ""
    conditions: tuple[Condition, ...] = ()

    def without(self, column: str) -> Filter:
        """The filter without the conditions of one column, whose histogram shows what could be chosen."""
        return Filter(text=self.text, conditions=tuple(one for one in self.conditions if one.column.name != column))

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that it asks for."""
        return tuple(condition.column for condition in self.conditions)

    def clause(self, search: Clause | None = None) -> Clause:
        """All of it in SQL; `found` is the condition of the text, which the corpus makes."""
        clauses = [condition.clause() for condition in self.conditions]
        if search is not None:
            clauses.append(search)
        return Clause(
            sql=" AND ".join(f"({clause.sql})" for clause in clauses) or "true",
            values=tuple(value for clause in clauses for value in clause.values),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The column by which rows are sorted, and the last row before those that are wanted."""

    column: Column
    descending: bool = False
    after: tuple[Value, int] | None = None

    def stages(self) -> Sequence[Clause]:
        """The rows behind `after`, one condition after the other, as each alone skips blocks and all in one would not:
        equal ones by their number, those beyond, and those without a value."""
        if self.after is None:
            return (Clause(sql="true"),)
        value, row = self.after
        name = self.column.sql
        if value is None:
            return (Clause(sql=f"{name} IS NULL AND rows.row > ?", values=(row,)),)
        beyond = Clause(sql=f"{name} {'<' if self.descending else '>'} ?", values=(value,))
        if self.column is ROW:
            return (beyond,)
        equal = Clause(sql=f"{name} = ? AND rows.row > ?", values=(value, row))
        return (equal, beyond, Clause(sql=f"{name} IS NULL"))

    @property
    def sql(self) -> str:
        """The expressions behind ORDER BY."""
        if self.column.name == "row":
            return f"rows.row {'DESC' if self.descending else 'ASC'}"
        return f"{self.column.sql} {'DESC' if self.descending else 'ASC'} NULLS LAST, rows.row"


def parse_filter(text: str | None, columns: Mapping[str, Column]) -> Filter:
    """The filter that a request has as JSON; RequestError where it is none.

    `{"text": "...", "where": [{"column": "duration_ms", "min": 1}, {"column": "split", "in": ["dev", null]}]}`
    """
    if not text:
        return Filter()
    tree = _object(text)
    wanted = tree.get("text", "")
    where = tree.get("where", [])
    if not isinstance(wanted, str) or len(wanted) > MAX_TEXT:
        raise RequestError(400, f"`text` is not a text of at most {MAX_TEXT} characters")
    if not isinstance(where, list) or len(where) > MAX_CONDITIONS:
        raise RequestError(400, f"`where` is not a list of at most {MAX_CONDITIONS} conditions")
    return Filter(
        text=" ".join(wanted.splitlines()).strip(), conditions=tuple(_condition(one, columns) for one in where)
    )


def parse_order(name: str | None, after: str | None, columns: Mapping[str, Column]) -> Order:
    """The order that a request has: a column, with `-` before it for the largest first, and `[value, row]`."""
    descending = (name or "").startswith("-")
    wanted = (name or "").removeprefix("-")
    column = column_of(wanted, columns) if wanted else ROW
    if not after:
        return Order(column=column, descending=descending)
    try:
        value, row = _json(after)
    except (ValueError, TypeError):
        raise RequestError(400, "`after` is not a pair of a value and a row") from None
    if isinstance(row, bool) or not isinstance(row, int) or abs(row) >= MAX_ROW or not _fits(column, value):
        raise RequestError(400, "`after` is not a pair of a value and a row")
    return Order(column=column, descending=descending, after=(value, row))


ROW = Column(name="row", title="row", kind="number")
"""The order of the table of utterances."""


def column_of(name: object, columns: Mapping[str, Column]) -> Column:
    """The column of a name; RequestError where there is none."""
    column = columns.get(name) if isinstance(name, str) else None
    if column is None:
        raise RequestError(400, "the column does not exist")
    return column


def _condition(tree: object, columns: Mapping[str, Column]) -> Condition:
    if not isinstance(tree, dict):
        raise RequestError(400, "a condition must be an object")
    column = column_of(tree.get("column"), columns)
    if "in" in tree:
        values = tree["in"]
        if not isinstance(values, list) or len(values) > MAX_VALUES or not all(_fits(column, one) for one in values):
            raise RequestError(400, f"`in` of `{column.name}` is not a list of at most {MAX_VALUES} of its values")
        return Condition(column=column, values=tuple(values))
    ends = [tree.get(name) for name in ("min", "max")]
    if column.kind != "number" or not all(_fits(column, end) for end in ends):
        raise RequestError(400, f"`{column.name}` has no such range")
    return Condition(column=column, low=ends[0], high=ends[1])


def _fits(column: Column, value: object) -> bool:
    """Whether a value of JSON can be one of this column."""
    if value is None:
        return True
    if column.kind == "flag" or isinstance(value, bool):
        return column.kind == "flag" and isinstance(value, bool)
    if column.kind == "number":
        return math.isfinite(value) if isinstance(value, float) else isinstance(value, int) and abs(value) < MAX_WHOLE
    return isinstance(value, str)


def _object(text: str) -> Mapping[str, Any]:
    if len(text) > MAX_FILTER:
        raise RequestError(400, f"the filter has more than {MAX_FILTER:,} characters")
    try:
        tree = _json(text)
    except ValueError:
        raise RequestError(400, "the filter is not JSON") from None
    if not isinstance(tree, dict):
        raise RequestError(400, "the filter is not an object")
    return tree


def _json(text: str) -> Any:
    """The value of a JSON text; ValueError where it is none, or has half of a surrogate pair in it."""
    try:
        text.encode()
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
        return value
    except RecursionError as error:
        raise ValueError(str(error)) from None


def joins(columns: Sequence[Column]) -> str:
    """The tables that these columns are of, joined to the rows."""
    places = dict.fromkeys(column.place for column in columns if column.place != "rows")
    return "corpus.rows AS rows" + "".join(f" LEFT JOIN {place} USING (row)" for place in places)
