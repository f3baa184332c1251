"""Judgements of labels made by people, `WORK/corrections/`: append-only, and the last one of an utterance counts.

A part is named after what is in it and holds what one writer judged. `voxstill remove` writes the parts that hold a
removed utterance again, without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from voxstill.core.errors import DataError, VoxstillError
from voxstill.core.monitor import log
from voxstill.core.records import fingerprint
from voxstill.storage import lease, tables
from voxstill.storage.store import Store

PREFIX = "corrections"
"""Where the table lies."""
Judgement = Literal["right", "wrong", "corrected", "withdrawn"]
NOT_LABELLED = ("nobody has judged it", "judged wrong, and nobody wrote what was said")
"""Errors of labels of the teacher `corrected`: such an utterance has no label, which is not a failure."""
FIX = "restore it from a copy, or delete it: its judgements are then lost"
"""What to do about a damaged part."""
MANY_PARTS = 64
"""So many parts are joined to one by `compact`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """One judgement: of which label of which audio, when (UTC, ISO 8601) and by whom.

    `withdrawn` withdraws the previous one. `text` is what was said, where the judgement is `corrected`.
    """

    utterance_id: str
    audio: str
    """`Utterance.audio`: another utterance of the same id has no part in it."""
    judgement: Judgement
    label: str
    """The text that was judged."""
    text: str | None = None
    time: str
    judge: str

    @property
    def truth(self) -> str | None:
        """The true text, as far as the judge knows it: None if the label is wrong and has no correction."""
        return {"right": self.label, "corrected": self.text}.get(self.judgement)


def time_after(earlier: str | None) -> str:
    """The time of a judgement that replaces one of an `earlier` time: now, or just after that.

    A clock that was put back, or that of another machine, does not let the earlier one count.
    """
    now = datetime.now(UTC)
    with contextlib.suppress(ValueError, TypeError, OverflowError):  # what is no time of ours is not compared
        now = now if earlier is None else max(now, datetime.fromisoformat(earlier) + timedelta(microseconds=1))
    return now.isoformat(timespec="microseconds")


def append(work: Store, corrections: Sequence[Correction]) -> str:
    """Add judgements as one part; its key."""
    key = f"{PREFIX}/{_name(corrections)}"
    work.create(key, tables.to_parquet(corrections, Correction))
    return key


def latest(work: Store) -> Mapping[str, Correction]:
    """The judgement that counts of every utterance that has one, by its id; DataError if a part is broken."""
    return {id_: row for id_, row in last_of_each(_rows(work)).items() if row.judgement != "withdrawn"}


def last_of_each(rows: Iterable[Correction]) -> Mapping[str, Correction]:
    """The latest row of every utterance by its id, also where it takes a judgement back."""
    return {row.utterance_id: row for row in sorted(rows, key=lambda row: row.time)}


def compact(work: Store) -> None:
    """Join the parts to one where there are many; StorageError if another process does so."""
    if len(tables.parts(work, PREFIX)) >= MANY_PARTS:
        with lease.hold(work, PREFIX, "explore") as held:
            keys = tables.parts(work, PREFIX)
            log.info("judgements: %d parts are joined", len(keys))
            _rewrite(work, keys, [row for key in keys for row in read(work, key)], held)


def erase(work: Store, ids: Collection[str]) -> None:
    """Remove every judgement of these utterances from the disk; StorageError if another process joins parts.

    DataError, once all others were read, where a part is damaged: its content is unknown.
    """
    if not tables.parts(work, PREFIX):
        return
    damaged = None
    with lease.hold(work, PREFIX, "remove") as held:
        for key in tables.parts(work, PREFIX):
            try:
                rows = read(work, key)
            except DataError as error:
                damaged = error
                continue
            kept = [row for row in rows if row.utterance_id not in ids]
            if len(kept) < len(rows):
                _rewrite(work, [key], kept, held)
    if damaged is not None:
        raise damaged


def _rewrite(work: Store, keys: Sequence[str], rows: Sequence[Correction], held: lease.Lease) -> None:
    """Write rows, each once, as one part in place of others; who is ended in between leaves rows twice, which change
    nothing and are one again when parts are joined next."""
    held.check()
    new = append(work, list(dict.fromkeys(rows))) if rows else None
    for key in keys:
        if key != new:
            work.delete(key)


def _rows(work: Store) -> list[Correction]:
    """The rows of all parts; listed again where another process joins parts meanwhile."""
    while True:
        keys = tables.parts(work, PREFIX)
        try:
            return [row for key in keys for row in read(work, key)]
        except VoxstillError:
            if set(keys) <= set(tables.parts(work, PREFIX)):
                raise


def read(work: Store, key: str) -> list[Correction]:
    """The rows of a part; DataError if they are not those that were written, by the hash in its name."""
    data = work.read(key)
    try:
        rows = tables.from_parquet(data, Correction, work.uri(key))
    except DataError as error:
        raise DataError(
            f"`{work.uri(key)}` is damaged", code="table-broken", why=error.why or error.what, fix=FIX
        ) from None
    if not key.endswith(f"/{_name(rows)}"):
        raise DataError(
            f"`{work.uri(key)}` is damaged",
            code="table-broken",
            why="its rows do not match its name",
            fix=FIX,
        )
    return rows


def _name(rows: Sequence[Correction]) -> str:
    return f"{fingerprint(*map(tables.to_columns, rows))}.parquet"
