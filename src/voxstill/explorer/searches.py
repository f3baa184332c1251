"""The rows of searched texts, a bit for each: a page asks for its rows, counts and histograms of one search."""

from __future__ import annotations

import threading

from voxstill.explorer import word_index
from voxstill.explorer.filters import Clause

KEPT = 8
"""The last searches whose bits stay."""


class Searches:
    """May be used by several threads; row numbers are below `num_rows`."""

    def __init__(self, numbers: word_index.Numbers, num_rows: int) -> None:
        self._numbers, self._num_rows = numbers, num_rows
        self._lock = threading.Lock()
        self._bits_of: dict[str, bytes] = {}

    def clause(self, text: str, lower: str) -> Clause:
        """The condition that a row has a text, which is there in lower case, too, or has it as its id."""
        with self._lock:  # of several questions about one text the first looks for it
            bits = self._bits_of.pop(text, None) or self._bits(text, lower)
            self._bits_of[text] = bits  # the latest comes last
            for oldest in list(self._bits_of)[:-KEPT]:
                del self._bits_of[oldest]
        return Clause(sql=word_index.HAS_BIT, values=(bits,))

    def _bits(self, text: str, lower: str) -> bytes:
        has_N = word_index.rows_with(self._numbers, lower, self._num_rows)
        for row_K in self._numbers("SELECT row FROM corpus.rows WHERE id = ?", (text,)):
            has_N[row_K] = True
        return word_index.bits(has_N)
