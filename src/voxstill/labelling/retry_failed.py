"""Take labels out of a table, failed ones and those of another kind, so that the next run makes them again.

A table is only added to, with this one exception, which a kill at any moment leaves whole: `_retry.json` is written
first and says which parts are replaced by which, and whoever labels there next does what is left of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from voxstill import engine
from voxstill.core.monitor import log
from voxstill.core.records import Label
from voxstill.storage import lease, manifest, tables
from voxstill.storage.store import Store

PLAN = "_retry.json"


def remove_failed(work: Store, prefix: str, of_other_kind: Collection[str] = ()) -> None:
    """Take every label with an error, and those of the utterances `of_other_kind`, out of the table `prefix`.

    It is then not finished any more. An earlier removal must have been finished.
    """
    removals, num_removed, also = {}, 0, frozenset(of_other_kind)
    for key in tables.parts(work, prefix):
        labels = tables.from_parquet(work.read(key), Label, work.uri(key))
        kept = _kept(labels, also)
        num_removed += len(labels) - len(kept)
        if len(kept) < len(labels):
            removals[key] = f"{prefix}/{engine.chunk_id(row.utterance_id for row in kept)}.parquet" if kept else None
    if removals:
        log.info("label: %d labels are removed, to be made again", num_removed)
        work.write_json(f"{prefix}/{PLAN}", {"replaced_by": removals, "of_other_kind": sorted(also)})
        finish_removal(work, prefix)


def finish_removal(work: Store, prefix: str) -> None:
    """Do what is left of a removal that was started; nothing if there is none.

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
    replaced_by, of_other_kind = plan["replaced_by"], plan.get("of_other_kind", [])
    assert isinstance(replaced_by, dict)
    assert isinstance(of_other_kind, list)
    also = frozenset(of_other_kind)
    for key, successor in replaced_by.items():
        if not work.exists(key):
            continue
        if successor is not None:
            labels = tables.from_parquet(work.read(key), Label, work.uri(key))
            work.create(successor, tables.to_parquet(_kept(labels, also), Label))
        work.delete(key)
    work.delete(f"{prefix}/{PLAN}")


def _kept(labels: Sequence[Label], of_other_kind: Collection[str]) -> list[Label]:
    return [label for label in labels if label.error is None and label.utterance_id not in of_other_kind]
