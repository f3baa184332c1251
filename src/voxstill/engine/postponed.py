"""Items that failed for a reason that may pass: they are left for the next run, and many in a row end this one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from voxstill.core.errors import StorageError, VoxstillError
from voxstill.engine.retry import describe

MAX_POSTPONED = 64
"""So many in a row are an outage and no fault of single items: the others would fare no better."""


@dataclass(frozen=True, slots=True)
class Postponed:
    """The row of an item that failed for a reason that may pass, such as storage, a network or a server.

    It is never committed, so the next run does the item. `error` says why; its kind is the exit code of the run.
    """

    error: VoxstillError


class Outage:
    """Count the items that a run postpones, and raise their error: after `MAX_POSTPONED` in a row, or at its end.

    `way_out` says what to do about items that storage will never give.
    """

    def __init__(self, items: str, way_out: str = "") -> None:
        self._items, self._way_out = items, way_out
        self._num = self._in_a_row = 0
        self._error: VoxstillError | None = None

    def record(self, rows: Iterable[object]) -> None:
        """Count the rows of a chunk once what can be committed of it is; raises the error of an outage."""
        for row in rows:
            if isinstance(row, Postponed):
                self._num, self._in_a_row, self._error = self._num + 1, self._in_a_row + 1, row.error
            else:
                self._in_a_row = 0
        if self._in_a_row >= MAX_POSTPONED:
            self.check()

    def check(self) -> None:
        """Raise the last error, as one of its kind that counts the items, where there was any."""
        if self._error is not None:
            fix = f"{self._error.fix or 'fix the cause'}; then the same command does the rest"
            if self._way_out and isinstance(self._error, StorageError):
                fix += f"; {self._way_out}"
            what = f"{self._num:,} {self._items} are not done: storage or a server did not answer"
            raise type(self._error)(what, why=describe(self._error), fix=fix)
