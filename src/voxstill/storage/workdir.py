"""Every prefix in a WORK, and which finished table of a kind a step reads.

One table for each recipe below recordings, utterances, labels, alignments, scores, verdicts and shards. A table is
finished when its `_SUCCESS.json` is there; that of the utterances speaks for the recordings too.
"""

from __future__ import annotations

import functools
from typing import TypeVar, get_args

from pydantic import BaseModel

from voxstill.core import config, legacy
from voxstill.core.errors import DataError
from voxstill.core.monitor import log
from voxstill.core.records import fingerprint
from voxstill.storage import checked_json, manifest, parts, tables
from voxstill.storage.figures import Kind, TableFigures
from voxstill.storage.redaction import redact_uri
from voxstill.storage.store import MAX_JSON_BYTES, Store

Figures = TypeVar("Figures", bound=TableFigures)
OWN_NAMES = frozenset(
    (
        *get_args(Kind),
        *("leases", "unpacked", "set_aside", "removed", "corrections", "explorer", "control", "control.json", "logs"),
    )
)
"""What lies directly in a work folder."""


def prefix(kind: Kind, recipe: str) -> str:
    """Where the table of one recipe lies."""
    return f"{kind}/{recipe}"


def recipe(work: Store, kind: Kind, *parts: object) -> str:
    """Name of the table that these sections and values make: the hash of the sections' identities and of the values.

    Where version 0.1 has made or started the table, it is the name that it had there.
    """
    hashed = [config.identity(part) if isinstance(part, BaseModel) else part for part in parts]
    return begun(work, kind, fingerprint(*hashed), legacy.recipe(*parts))


def begun(work: Store, kind: Kind, recipe: str, former: str | None) -> str:
    """The recipe; or the one it had in an earlier version, where a table of that is there and none of the recipe,
    finished or not."""
    if former is None or _is_begun(work, kind, recipe) or not _is_begun(work, kind, former):
        return recipe
    _tell_former(work.root, kind, recipe, former)
    return former


def _is_begun(work: Store, kind: Kind, recipe: str) -> bool:
    return next(work.list(prefix(kind, recipe)), None) is not None


@functools.cache
def _tell_former(root: str, kind: Kind, recipe: str, former: str) -> None:
    log.info(
        "`%s`: an earlier version made or started these %s as %s: they are not made again as %s",
        root,
        kind,
        former,
        recipe,
    )


def success(work: Store, figures_type: type[Figures], recipe: str) -> Figures | None:
    """The figures of a finished table; None if it is not finished, DataError if they are not what was written."""
    table = prefix(figures_type.kind, recipe)
    data = work.read_or_none(f"{table}/{tables.SUCCESS}", MAX_JSON_BYTES)
    if data is None:
        return None
    figures = parsed(work, figures_type, recipe, data)
    if not checked_json.has_checksum(data):
        manifest.check_success(work, table, data)
    return figures


def parsed(work: Store, figures_type: type[Figures], recipe: str, data: bytes) -> Figures:
    """The figures in a `_SUCCESS.json`; DataError if they are not those of the table of this recipe."""
    where = work.uri(f"{prefix(figures_type.kind, recipe)}/{tables.SUCCESS}")
    figures = figures_type.from_dict(checked_json.decode(data, where))
    if not figures.recipe:
        raise DataError(
            f"`{redact_uri(where)}` is not what was written",
            code="table-broken",
            why="it does not contain the recipe of its table",
            fix=f"run: voxstill verify {redact_uri(work.root)} --repair",
        )
    return figures


def finish(work: Store, figures: TableFigures) -> None:
    """Write the manifest and then `_SUCCESS.json`: from now on the table is finished.

    What is added later may be made in other parts.
    """
    table = prefix(figures.kind, figures.recipe)
    manifest.write(work, table)
    work.replace(f"{table}/{tables.SUCCESS}", checked_json.encode(figures.to_dict()))
    work.delete(f"{table}/{parts.AGREED}")


def finished(work: Store, figures_type: type[Figures], wanted: str | None = None) -> Figures:
    """The figures of the table to read: the wanted recipe where it is finished, else the only finished one.

    DataError if there is none, or where several are finished and none is wanted: a guess would be silent.
    """
    if wanted is not None and (figures := success(work, figures_type, wanted)) is not None:
        return figures
    kind, step = figures_type.kind, figures_type.step
    recipes = finished_recipes(work, kind)
    if len(recipes) == 1:
        return named(work, figures_type, recipes[0])
    if not recipes:
        raise DataError(
            f"`{work.root}` has no finished {kind}",
            code="step-unfinished",
            why=f"`voxstill {step}` has not finished there",
            fix=f"run: voxstill {step} {work.root if kind != 'utterances' else 'SOURCE --work ' + work.root}",
        )
    raise DataError(
        f"`{work.root}` has {kind} of several recipes: {', '.join(recipes)}",
        code="several-recipes",
        why="none of them is that of this configuration",
        fix=f"give the configuration that made them with --config, or run `voxstill {step}` with this one first",
    )


def finished_recipes(work: Store, kind: Kind) -> list[str]:
    """Of every finished table of a kind."""
    suffix = "/" + tables.SUCCESS
    return sorted(entry.key.split("/")[1] for entry in work.list(kind) if entry.key.endswith(suffix))


def named(work: Store, figures_type: type[Figures], recipe: str) -> Figures:
    """The figures of the table of this recipe and of no other; DataError if it is not finished."""
    figures = success(work, figures_type, recipe)
    if figures is None:
        there = ", ".join(finished_recipes(work, figures_type.kind)) or "none"
        raise DataError(
            f"`{work.root}` has no finished {figures_type.kind} of the recipe `{recipe}`",
            code="step-unfinished",
            why=f"finished are: {there}",
            fix=f"set one of them, or run `voxstill {figures_type.step}` first",
        )
    return figures
