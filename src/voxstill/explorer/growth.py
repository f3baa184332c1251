"""What was added to the tables since a joined file was built, taken into a copy of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from voxstill.explorer import staging, word_index
from voxstill.explorer.columns import quoted
from voxstill.explorer.staging import Parts, Sources, TableSource, run
from voxstill.storage import manifest
from voxstill.storage.store import Store

if TYPE_CHECKING:
    import duckdb


def added_parts(before: Parts, now: Parts) -> Mapping[str, Sequence[str]] | None:
    """The keys of the parts that were added, by table; None where one is gone or another, or a table is."""
    if before.keys() != now.keys():
        return None
    added = {}
    for prefix, parts in before.items():
        if any(now[prefix].get(name) != about for name, about in parts.items()):
            return None
        added[prefix] = [f"{prefix}/{name}" for name in now[prefix] if name not in parts]
    return added


def take_in(work: Store, sources: Sources, file: duckdb.DuckDBPyConnection, added: Mapping[str, Sequence[str]]) -> bool:
    """Add the rows of new parts; False where utterances were added and older parts may have something of them.

    DataError where a finished table does not have the new parts.
    """
    utterances = sources.tables[0]
    [(num_strays,)] = run(file, "SELECT coalesce(sum(num), 0) FROM strays")
    if added[utterances.prefix] and num_strays:
        return False
    for source in sources.tables:
        if added[source.prefix]:
            manifest.parts(work, source.prefix)  # as a build, which refuses parts that a table was not finished with
            staging.stage(work, file, source, added[source.prefix], sources.removed)
            if source is utterances:
                _add_utterances(file, source)
            else:
                _update(file, sources, source)
            if source.role in ("utterances", "labels"):
                word_index.add(file, f"SELECT row, search FROM rows WHERE id IN (SELECT id FROM {source.staged})")
    return True


def _add_utterances(file: duckdb.DuckDBPyConnection, source: TableSource) -> None:
    run(
        file,
        f"INSERT INTO rows BY NAME SELECT * REPLACE (row + (SELECT coalesce(max(row) + 1, 0) FROM rows) AS row),"
        f" {staging.folded('human')} AS search FROM {source.staged} WHERE id NOT IN (SELECT id FROM rows)",
    )


def _update(file: duckdb.DuckDBPyConnection, sources: Sources, source: TableSource) -> None:
    """Fill the columns of a table where they were empty; of two rows of an id the first counts."""
    names = [name for name, *_ in run(file, f"DESCRIBE {source.staged}") if name != "id"]
    columns = ", ".join(f"{quoted(name)} = staged.{quoted(name)}" for name in names)
    marker = quoted(source.marker)
    [(num_rows,)] = run(file, f"SELECT count({marker}) FROM {source.staged}")
    is_new = f"rows.id = staged.id AND rows.{marker} IS NULL"
    [(num_updated,)] = run(file, f"UPDATE rows SET {columns} FROM {source.staged} AS staged WHERE {is_new}")
    run(file, "UPDATE strays SET num = num + ? WHERE prefix = ?", [num_rows - num_updated, source.prefix])
    derived = []
    if source.role == "labels":
        derived = [f"search = {staging.search_text(sources)}"]
    elif source.role == "scores":
        derived = [f"{name} = {expression}" for expression, name in staging.OF_SCORES]
    if derived:
        run(file, f"UPDATE rows SET {', '.join(derived)} WHERE id IN (SELECT id FROM {source.staged})")
