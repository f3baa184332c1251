"""Commit what was made of a chunk of utterances, labels or alignments; what was postponed is left for the next run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from voxstill import engine
from voxstill.core.metrics.steps import StepMeter
from voxstill.core.records import Alignment, Label
from voxstill.storage import tables
from voxstill.storage.store import Store

Row = TypeVar("Row", Label, Alignment)


def commit_rows(
    work: Store,
    table: str,
    chunk: engine.Chunk,
    rows: Sequence[Row | engine.Postponed],
    key: Callable[[Row], str],
    meter: StepMeter,
    outage: engine.Outage,
) -> None:
    """Write the rows of a chunk, less the postponed ones, as one part of a table, and count them.

    `key` is what the items of the chunk are known by. Raises the error of an outage, once the rows are written.
    """
    done: list[Row] = [row for row in rows if not isinstance(row, engine.Postponed)]
    if done:
        name = engine.chunk_id(map(key, done))  # the id of the chunk, which says that it is done, only where it is
        work.create(f"{table}/{name}.parquet", tables.to_parquet(done, type(done[0])))
    ids = {row.utterance_id for row in done}
    meter.count_done(
        sum(utterance.duration_ms for utterance in chunk.items if utterance.id in ids),
        (row.error for row in done if row.error),
    )
    outage.record(rows)
