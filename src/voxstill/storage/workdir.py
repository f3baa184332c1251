"""Every prefix in a WORK, and which finished table of a kind a step reads.

One table for each recipe below recordings, utterances, labels, alignments, scores, verdicts and shards. A table is
finished when its `_SUCCESS.json` is there; that of the utterances speaks for the recordings too.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

from pydantic import BaseModel

from voxstill.core import config, legacy
from voxstill.core.errors import DataError
from voxstill.core.monitor import log
from voxstill.core.records import fingerprint
from voxstill.storage import tables
from voxstill.storage.store import Store

Kind = Literal["recordings", "utterances", "labels", "alignments", "scores", "verdicts", "shards"]
MADE_BY: dict[Kind, str] = {
    "recordings": "index",
    "utterances": "index",
    "labels": "label",
    "alignments": "filter",
    "scores": "filter",
    "verdicts": "filter",
    "shards": "shard",
}


def prefix(kind: Kind, recipe: str) -> str:
    """Where the table of one recipe lies."""
    return f"{kind}/{recipe}"


def recipe(work: Store, kind: Kind, *parts: object) -> str:
    """Name of the table that these sections and values make: the hash of the sections' identities and of the values.

    Where version 0.1 has made or begun the table, it is the name that it had there.
    """
    hashed = [config.identity(part) if isinstance(part, BaseModel) else part for part in parts]
    return begun(work, kind, fingerprint(*hashed), legacy.recipe(*parts))


def begun(work: Store, kind: Kind, recipe: str, former: str | None) -> str:
    """The recipe; or its name in version 0.1, where a table of that name is there and none of the recipe, finished or
    not."""
    if former is None or _is_begun(work, kind, recipe) or not _is_begun(work, kind, former):
        return recipe
    _tell_former(work.root, kind, recipe, former)
    return former


def _is_begun(work: Store, kind: Kind, recipe: str) -> bool:
    return next(work.list(prefix(kind, recipe)), None) is not None


@functools.cache
def _tell_former(root: str, kind: Kind, recipe: str, former: str) -> None:
    log.info(
        "`%s`: version 0.1 made or began these %s, as %s: they are not made again as %s", root, kind, former, recipe
    )


def success(work: Store, kind: Kind, recipe: str) -> dict[str, Any] | None:
    """The figures of a finished table; None where it is not finished."""
    return work.read_json(f"{prefix(kind, recipe)}/{tables.SUCCESS}")


def finished(work: Store, kind: Kind, wanted: str | None = None) -> dict[str, Any]:
    """The figures of the table to read: the wanted recipe where it is finished, else the only finished one.

    DataError where there is none, or where several are finished and none is wanted: a guess would be silent.
    """
    if wanted is not None and (found := success(work, kind, wanted)) is not None:
        return found
    recipes = finished_recipes(work, kind)
    if len(recipes) == 1:
        only = success(work, kind, recipes[0])
        assert only is not None
        return only
    step = MADE_BY[kind]
    if not recipes:
        raise DataError(
            f"`{work.root}` has no finished {kind}",
            why=f"`voxstill {step}` has not ended there",
            fix=f"run: voxstill {step} {work.root if kind != 'utterances' else 'SOURCE --work ' + work.root}",
        )
    raise DataError(
        f"`{work.root}` has {kind} of several recipes: {', '.join(recipes)}",
        why="none of them is the one this configuration makes",
        fix=f"give the configuration that made them with --config, or run `voxstill {step}` with this one first",
    )


def finished_recipes(work: Store, kind: Kind) -> list[str]:
    """Of every finished table of a kind."""
    suffix = "/" + tables.SUCCESS
    return sorted(entry.key.split("/")[1] for entry in work.list(kind) if entry.key.endswith(suffix))


def named(work: Store, kind: Kind, recipe: str) -> dict[str, Any]:
    """The figures of the table of this recipe and of no other; DataError where it is not finished."""
    found = success(work, kind, recipe)
    if found is None:
        there = ", ".join(finished_recipes(work, kind)) or "none"
        raise DataError(
            f"`{work.root}` has no finished {kind} of the recipe `{recipe}`",
            why=f"finished are: {there}",
            fix=f"name one of them, or run `voxstill {MADE_BY[kind]}` first",
        )
    return found
