"""Labels that are started and not finished: which of them are those of a configured teacher."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from voxstill.core import config
from voxstill.core.errors import DataError, VoxstillError
from voxstill.labelling import control
from voxstill.storage import tables, workdir
from voxstill.storage.figures import LabelFigures
from voxstill.storage.store import Store


def recipes(work: Store) -> list[str]:
    """The recipe of every table of labels that has a part, finished or not."""
    return sorted({key.split("/")[1] for key in tables.parts(work, "labels")})


def options(work: Store, recipe: str) -> Mapping[str, object]:
    """The options of the teacher that these labels were started with, as they are kept beside them; empty if they are
    not known.
    """
    if (figures := workdir.success(work, LabelFigures, recipe)) is not None:
        return figures.options
    return next((status.begun for status in control.job_statuses(work) if status.recipe == recipe), {})


def unfinished(work: Store, teacher: config.Teacher, recipe_of: Callable[[], str]) -> str | None:
    """The recipe of the configured teacher's labels where they are started and not finished, else None.

    `recipe_of` makes the teacher to ask for its recipe. It is called only where labels of any teacher are not
    finished; where the teacher cannot be made any more, its labels are those with the same options.
    """
    keys = [entry.key for entry in work.list("labels")]  # listed once: there may be tens of thousands
    done = sorted({key.split("/")[1] for key in keys if key.endswith("/" + tables.SUCCESS)})
    rest = sorted({key.split("/")[1] for key in keys if key.endswith(".parquet")}.difference(done))
    if not rest:
        return None
    try:
        recipe = recipe_of()
    except VoxstillError:
        matching = [recipe for recipe in (*done, *rest) if options(work, recipe) == teacher.model_dump()]
        recipe = matching[0] if matching else ""
    return recipe if recipe in rest else None


def not_finished(work: Store, teacher: config.Teacher) -> DataError:
    """The error of a step that needs all labels of the configured teacher."""
    done = workdir.finished_recipes(work, "labels")
    others = ", ".join(workdir.named(work, LabelFigures, recipe).teacher for recipe in done)
    return DataError(
        f"`{work.root}` has no finished labels of `{teacher.name}`",
        code="step-unfinished",
        why="they are incomplete: `voxstill label` has not finished there"
        + (f"; finished are those of {others}, which this configuration does not use" if others else ""),
        fix="run `voxstill label` again: it resumes where it stopped. `voxstill filter --partial` filters the "
        "labels made "
        "so far" + ("; to use the others, set their teacher" if others else ""),
    )
