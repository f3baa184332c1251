"""The rows of searched texts: a page asks for its rows, counts and histograms of one search."""

from __future__ import annotations

import threading
from collections.abc import Callable

from voxstill.explorer import word_index
from voxstill.explorer.filters import Clause

KEPT = 8
"""The last searches that are known."""


class Searches:
    """May be used by several threads; row numbers are below `num_rows`, and `folded` is a text as those of the file."""

    def __init__(self, numbers: word_index.Numbers, folded: Callable[[str], str], num_rows: int) -> None:
        self._numbers, self._folded, self._num_rows = numbers, folded, num_rows
        self._by_words = word_index.is_shorter(numbers)
        self._lock = threading.Lock()
        self._clause_of: dict[str, Clause] = {}

    def clause(self, text: str) -> Clause:
        """The condition that a row has a text, or has it as its id."""
        with self._lock:  # of several questions about one text the first looks for it
            clause = self._clause_of.pop(text, None) or self._search(text)
            self._clause_of[text] = clause  # the latest comes last
            for oldest in list(self._clause_of)[:-KEPT]:
                del self._clause_of[oldest]
        return clause

    def _search(self, text: str) -> Clause:
        has_N = word_index.rows_with(self._numbers, self._folded(text), self._num_rows, by_words=self._by_words)
        for row_K in self._numbers("SELECT row FROM corpus.rows WHERE id = ?", (text,)):
            has_N[row_K] = True
        return word_index.clause(has_N)
