"""Labels so far: those that are there while labelling has not ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from voxstill.core import config
from voxstill.core.errors import DataError, VoxstillError
from voxstill.core.records import Label, Utterance
from voxstill.labelling import begun, label, label_figures
from voxstill.labelling.task import Task
from voxstill.storage import join, tables, workdir
from voxstill.storage.figures import LabelFigures
from voxstill.storage.store import Store


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels that are judged: their figures, and their parts where they are not finished.

    Parts that are added meanwhile are then left out.
    """

    figures: LabelFigures
    keys: frozenset[str] | None = None

    def restrict(self, joined: Sequence[join.Part]) -> list[join.Part]:
        """The parts of utterances with these labels and no later ones."""
        keys = self.keys
        if keys is None:
            return list(joined)
        return [dataclasses.replace(part, labels=tuple(key for key in part.labels if key in keys)) for part in joined]


def labels_so_far(work: Store, teacher: config.Teacher) -> Labels:
    """The labels of the configured teacher that are there, finished or not; DataError if there are none."""
    task = begun_task(work, teacher)
    keys = tables.parts(work, task.prefix)
    done = workdir.success(work, LabelFigures, task.recipe)
    if done is not None and done.listing in (None, tables.parts_hash(work, task.prefix)):
        return Labels(done)
    figures = label_figures.count(work, task, keys)
    return Labels(dataclasses.replace(figures, finished=False), frozenset(keys))


def num_labelled(work: Store, utterances: str, labels: Collection[str]) -> int:
    """How many utterances of a table have a label in these parts; labels of another segmentation lie among them."""
    label_tables = tables.columns(work, labels, Label, ("utterance_id",))
    ids = tables.IdSet(id_ for table in label_tables for id_ in table["utterance_id"].to_pylist())
    utterance_tables = tables.columns(work, tables.parts(work, utterances), Utterance, ("id",))
    return sum(int(ids.has(table["id"].to_pylist()).sum()) for table in utterance_tables)


def begun_task(work: Store, teacher: config.Teacher) -> Task:
    """The task of the configured teacher, whose labels are started; DataError if there are none.

    Where the teacher cannot be made any more, its labels are those with the same options. A configuration that says
    nothing of a teacher has the only labels that are there.
    """
    recipes = begun.recipes(work)
    matching = []
    try:
        task = label.task(teacher, work)
        if task.recipe in recipes:
            return task
    except VoxstillError:
        matching = [recipe for recipe in recipes if begun.options(work, recipe) == teacher.model_dump()]
    if not teacher.model_fields_set:
        matching = recipes
    if len(matching) != 1:
        raise DataError(
            f"`{work.root}` has no labels of `{teacher.name}`",
            code="step-unfinished",
            why=f"labels started there: {', '.join(recipes) or 'none'}",
            fix=f"set the teacher of one of them, or run: voxstill label {work.root}",
        )
    (recipe,) = matching
    options = begun.options(work, recipe)
    [first, *_] = tables.parts(work, workdir.prefix("labels", recipe))
    rows = tables.from_parquet(work.read(first), Label, work.uri(first), ("utterance_id", "teacher", "recipe"))
    names = [row.teacher for row in rows if row.recipe == recipe]
    own = config.validated(config.Teacher, options, "teacher.") if options else teacher
    return Task(own, names[0] if names else own.name, reads_texts=False, table=recipe)
