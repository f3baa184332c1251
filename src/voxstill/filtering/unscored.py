"""Whether scores lack utterances that were indexed after them and have a label nevertheless.

Such labels were made for another table of utterances, or copied from another work folder: the labels are what they
were, and so the name of their scores would be.
"""

from __future__ import annotations

import functools

import numpy as np

from voxstill.core.records import Label, Utterance, fingerprint, hash64
from voxstill.filtering.measures import Score
from voxstill.storage import manifest, removals, tables, workdir
from voxstill.storage.figures import IndexFigures, LabelFigures, ScoreFigures
from voxstill.storage.store import Store


def identity(work: Store, source: IndexFigures, labels: LabelFigures, scores: ScoreFigures | None) -> str | None:
    """A hash of the labelled utterances that finished scores lack; None if they lack none."""
    utterances = workdir.prefix("utterances", source.recipe)
    now = tables.parts_hash(work, utterances)
    if scores is None or scores.listing in (None, now) or not labels.finished:
        return None
    label_table = workdir.prefix("labels", labels.recipe)
    score_table = workdir.prefix("scores", scores.recipe)
    states = (now, tables.parts_hash(work, label_table), tables.parts_hash(work, score_table))
    return _identity(work.root, utterances, label_table, score_table, states)


@functools.lru_cache(maxsize=16)
def _identity(root: str, utterances: str, labels: str, scores: str, _: tuple[str, ...]) -> str | None:
    """Read the ids of the three tables, once for each of their states."""
    work = Store(root)
    removed = removals.of(work, utterances)
    scored, labelled = (
        tables.IdSet(
            id_
            for part in tables.columns(work, keys, kind, ("utterance_id",))
            for id_ in part["utterance_id"].to_pylist()
        )
        for keys, kind in ((manifest.parts(work, scores), Score), (tables.parts(work, labels), Label))
    )
    num = total = 0
    for part in tables.columns(work, tables.parts(work, utterances), Utterance, ("id",)):
        ids = part["id"].to_pylist()
        for row in np.flatnonzero(labelled.has(ids) & ~scored.has(ids)).tolist():
            if ids[row] not in removed:
                num, total = num + 1, total + hash64(ids[row])  # a sum, as parts come in no order of time
    return fingerprint(num, total) if num else None
