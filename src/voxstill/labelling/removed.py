"""Labels of removed utterances: rows with that reason, made without audio and without a teacher."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from voxstill import engine
from voxstill.core.records import Label, Utterance
from voxstill.labelling.task import Task
from voxstill.storage import lease, tables
from voxstill.storage.removals import REMOVED
from voxstill.storage.store import Store

WAY_OUT = "of files that no longer exist: remove the utterances with `voxstill remove`"
"""What ends a run that storage will never let finish."""


def removed_label(task: Task, utterance: Utterance) -> Label:
    """The label of a removed utterance; it has no text."""
    return Label(
        utterance_id=utterance.id,
        recipe=task.recipe,
        teacher=task.name,
        finish="failed",
        error=REMOVED,
        audio=utterance.audio,
    )


def without_removed(
    work: Store, task: Task, chunks: Iterator[engine.Chunk], removed: Container[str], held: lease.Lease
) -> Iterator[engine.Chunk]:
    """Chunks without their removed utterances, whose labels are written at once."""
    for chunk in chunks:
        kept = [utterance for utterance in chunk.items if utterance.id not in removed]
        if len(kept) == len(chunk.items):
            yield chunk
            continue
        rows = [removed_label(task, utterance) for utterance in chunk.items if utterance.id in removed]
        held.check()
        name = engine.chunk_id(row.utterance_id for row in rows)
        work.create(f"{task.prefix}/{name}.parquet", tables.to_parquet(rows, Label))
        if kept:
            yield _chunk(kept)


def _chunk(utterances: Sequence[Utterance]) -> engine.Chunk:
    return engine.Chunk(engine.chunk_id(utterance.id for utterance in utterances), tuple(utterances))
