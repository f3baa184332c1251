"""Take failed labels out of a table, so that the next run makes them again.

A table is only added to, with this one exception, which a kill at any moment leaves whole: `_retry.json` is written
first and says which parts are replaced by which, and whoever labels there next does what is left of it.
"""

from __future__ import annotations

from voxstill import engine
from voxstill.core.monitor import log
from voxstill.core.records import Label
from voxstill.storage import lease, manifest, tables
from voxstill.storage.store import Store

PLAN = "_retry.json"


def remove_failed(work: Store, prefix: str) -> None:
    """Take every label with an error out of the table `prefix`, which is then not finished any more.

    An earlier removal must have been finished.
    """
    removals, num_failed = {}, 0
    for key in tables.parts(work, prefix):
        labels = tables.from_parquet(work.read(key), Label, work.uri(key))
        kept = [label for label in labels if label.error is None]
        num_failed += len(labels) - len(kept)
        if len(kept) < len(labels):
            removals[key] = f"{prefix}/{engine.chunk_id(row.utterance_id for row in kept)}.parquet" if kept else None
    if removals:
        log.info("label: %d failed labels are taken out, to be made again", num_failed)
        work.write_json(f"{prefix}/{PLAN}", {"replaced_by": removals})
        finish_removal(work, prefix)


def finish_removal(work: Store, prefix: str) -> None:
    """Do what is left of a removal that was begun; nothing where there is none.

    One process at a time does it: another could take out what was labelled since. StorageError for the others.
    """
    if work.exists(f"{prefix}/{PLAN}"):
        with lease.hold(work, f"{prefix}/removal", "label"):
            _finish_removal(work, prefix)


def _finish_removal(work: Store, prefix: str) -> None:
    plan = work.read_json(f"{prefix}/{PLAN}")
    if plan is None:  # another process was faster
        return
    work.delete(f"{prefix}/{manifest.NAME}")
    work.delete(f"{prefix}/{tables.SUCCESS}")
    replaced_by = plan["replaced_by"]
    assert isinstance(replaced_by, dict)
    for key, successor in replaced_by.items():
        if not work.exists(key):
            continue
        if successor is not None:
            labels = tables.from_parquet(work.read(key), Label, work.uri(key))
            work.create(successor, tables.to_parquet([label for label in labels if label.error is None], Label))
        work.delete(key)
    work.delete(f"{prefix}/{PLAN}")
