"""The rows of searched texts in tables in memory: a page asks for its rows, counts and histograms of one search."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from voxstill.explorer import word_index

KEPT = 8
"""Searches whose tables stay when nobody reads them."""


@dataclass(slots=True)
class _Search:
    table: str
    num_readers: int = 0


class Searches:
    """May be used by several threads; `ask` runs a query in the database that has the joined file as `corpus`."""

    def __init__(self, ask: word_index.Ask, num_rows: int) -> None:
        self._ask, self._num_rows = ask, num_rows
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._by_text: dict[str, _Search] = {}

    @contextlib.contextmanager
    def rows_of(self, text: str) -> Iterator[str]:
        """The table with a `row` for each row that has a text or has it as its id, some of them twice; it stays while
        the block runs."""
        with self._lock:
            search = self._by_text.pop(text, None) or _Search(self._table(text))
            self._by_text[text] = search  # the latest comes last
            search.num_readers += 1
            self._drop_the_oldest()
        try:
            yield search.table
        finally:
            with self._lock:
                search.num_readers -= 1
                self._drop_the_oldest()

    def _table(self, text: str) -> str:
        [(lower,)] = self._ask("SELECT lower(?)", (text,))
        query, values = word_index.matches(self._ask, lower, self._num_rows)
        table = f"search_{next(self._numbers)}"
        ids = "SELECT row FROM corpus.rows WHERE id = ?"
        self._ask(f"CREATE TABLE {table} AS {query} UNION ALL {ids}", (*values, text))
        return table

    def _drop_the_oldest(self) -> None:
        for text, search in list(self._by_text.items())[:-KEPT]:
            if not search.num_readers:
                self._ask(f"DROP TABLE {search.table}", ())
                del self._by_text[text]
