"""The tables of a work folder as DuckDB tables beside one another, and the join of them to one row an utterance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from voxstill.core.records import fingerprint
from voxstill.storage import tables
from voxstill.storage.store import Store

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    from _typeshed import DataclassInstance

Parts = Mapping[str, Mapping[str, Sequence[object]]]
"""Size and etag of each part, by table."""
Role = Literal["utterances", "labels", "scores", "verdicts", "shards"]
IDS = ("id", "recording_id", "uri", "tar")
"""Columns of which nearly every row has another value: they are neither counted nor drawn."""
HIDDEN = ("row", "search", "gain_db", "tar_offset", "tar_bytes", "tar_format")
"""Columns that no request may name."""
JOINED_AT_ONCE = 1_000_000
"""Utterances, of which the columns of all tables fit into memory."""
_ROWS_AT_ONCE = 100_000
_UTTERANCE = (
    *("id", "recording_id", "uri", "channel", "start_ms", "end_ms", "gain_db"),
    *("split", "language", "speaker", "dialect", "dataset", "text"),
)
_READ: dict[Role, tuple[str, ...] | None] = {
    "utterances": _UTTERANCE,
    "labels": ("utterance_id", "text", "language", "mean_logprob", "finish", "error"),
    "scores": None,
    "verdicts": ("utterance_id", "kept", "reason"),
    "shards": ("id", "tar", "offset", "num_bytes", "format", "cut_from"),
}
OF_SCORES = (
    ("characters * 1000 / greatest(duration_ms, 1)", "chars_per_s"),
    ("errors / nullif(reference_words, 0)", "wer"),
)
"""Columns that follow from those of scores."""
_NOT_OF_SCORES = ("utterance_id", "split", "duration_ms", "mean_logprob")
"""Columns of scores that other tables have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """One table of a work folder: what it is, where it lies, and the dataclass of its rows."""

    role: Role
    prefix: str
    kind: type[DataclassInstance]
    title: str = ""
    """The teacher, of labels."""
    is_main: bool = False
    """Whether these are the labels that are judged."""

    @property
    def staged(self) -> str:
        """The name of its DuckDB table while it is joined."""
        return f"staged_{fingerprint(self.prefix)}"

    @property
    def text_column(self) -> str:
        """The column of its texts in the joined file."""
        return f"label_{self.prefix.rpartition('/')[2]}"

    @property
    def marker(self) -> str:
        """The column of the joined file that is not null where an utterance is in this table."""
        return {"labels": self.text_column, "scores": "finished", "verdicts": "kept", "shards": "tar"}[self.role]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The tables that are joined, that of the utterances first; and the ids that were removed."""

    tables: tuple[TableSource, ...]
    removed: frozenset[str] = frozenset()
    removed_identity: str | None = None

    @property
    def joined(self) -> tuple[TableSource, ...]:
        """The tables beside that of the utterances."""
        return self.tables[1:]


def run(file: duckdb.DuckDBPyConnection, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """Run a query to its end; a result that was not read to its end blocks the connection."""
    return file.execute(query, list(values)).fetchall()


def stage(
    work: Store, file: duckdb.DuckDBPyConnection, source: TableSource, keys: Sequence[str], removed: frozenset[str]
) -> None:
    """Read parts of a table into a DuckDB table, in their order and without what was removed; of two rows of an id the
    first stays."""
    import pyarrow as pa

    file.register("removed", pa.table({"id": pa.array(sorted(removed), pa.string())}))
    parts = _numbered(source, keys, tables.columns(work, keys, source.kind, _READ[source.role]))
    empty = pa.schema(_fields(source)).empty_table()
    file.register("part", empty)
    query = f"{_select(source)} WHERE id NOT IN (SELECT id FROM removed)"
    run(file, f"CREATE OR REPLACE TEMP TABLE {source.staged} AS {query}")
    for part in _gathered(parts):
        file.register("part", part)
        run(file, f"INSERT INTO {source.staged} {query}")
    for name in ("part", "removed"):
        file.unregister(name)
    [(num_rows, num_ids)] = run(file, f"SELECT count(*), count(DISTINCT id) FROM {source.staged}")
    if num_rows != num_ids:
        run(
            file,
            f"CREATE OR REPLACE TEMP TABLE {source.staged} AS SELECT * EXCLUDE place FROM (SELECT *, row_number() OVER"
            f" (PARTITION BY id ORDER BY rowid) AS place FROM {source.staged}) WHERE place = 1",
        )


def insert(sources: Sources, share: int = 0, num_shares: int = 1) -> str:
    """The join of the staged tables, a row for each utterance; of several shares, which differ by their ids, one."""

    def of_share(source: TableSource) -> str:
        if num_shares == 1:
            return source.staged
        return f"(SELECT * FROM {source.staged} WHERE hash(id) % {num_shares} = {share})"

    joins = "".join(f" LEFT JOIN {of_share(source)} USING (id)" for source in sources.joined)
    return f"SELECT *, {_derived(sources)} FROM {of_share(sources.tables[0])}{joins}"


def create_rows(file: duckdb.DuckDBPyConnection, sources: Sources) -> None:
    """Make the table of all rows, and fill it.

    What is searched and what every page shows is not compressed: to read one text of a compressed block all of it is
    decoded. Many utterances are joined in shares that fit into memory, as the join of all would write to the disk
    several times what it joins.
    """
    query = insert(sources)
    kinds = run(file, f"DESCRIBE {query}")
    plain = {"search", "id", *(source.text_column for source in sources.joined if source.is_main)}
    columns = ", ".join(
        f'"{name}" {kind}{" USING COMPRESSION uncompressed" if name in plain else ""}' for name, kind, *_ in kinds
    )
    run(file, f"CREATE TABLE rows ({columns})")
    [(num_rows,)] = run(file, f"SELECT count(*) FROM {sources.tables[0].staged}")
    num_shares = max(1, -(-num_rows // JOINED_AT_ONCE))
    for share in range(num_shares):
        run(file, f"INSERT INTO rows {insert(sources, share, num_shares)}")
        run(file, "CHECKPOINT")


def search_text(sources: Sources) -> str:
    """The expression of the text that is searched: all that anybody wrote of an utterance, in lower case."""
    main, *others = [f'"{source.text_column}"' for source in sources.joined if source.role == "labels"] or ["NULL"]
    rest = "".join(f", CASE WHEN {name} IS DISTINCT FROM {main} THEN {name} END" for name in (*others, "human"))
    return f"lower(concat_ws(chr(10), {main}{rest}))"


def _derived(sources: Sources) -> str:
    columns = [f"{search_text(sources)} AS search"]
    if any(source.role == "scores" for source in sources.tables):
        columns += [f"{expression} AS {name}" for expression, name in OF_SCORES]
    return ", ".join(columns)


def _fields(source: TableSource) -> list[pa.Field]:
    import pyarrow as pa

    names = _READ[source.role]
    fields = [field for field in tables.schema(source.kind) if names is None or field.name in names]
    if source.role == "utterances":
        fields.append(pa.field("row", pa.int64()))
    if source.role == "shards":
        fields.append(pa.field("own_tar", pa.string()))
    return fields


def _select(source: TableSource) -> str:
    """The query that makes columns of the joined file of columns of a table."""
    if source.role == "utterances":
        return (
            'SELECT "row", id, recording_id, uri, channel, start_ms, end_ms, end_ms - start_ms AS duration_ms, gain_db,'
            " split, language, speaker, dialect, dataset, text AS human FROM part"
        )
    if source.role == "labels":
        more = ", exp(mean_logprob) AS confidence, language AS label_language, finish, error" if source.is_main else ""
        return f'SELECT utterance_id AS id, text AS "{source.text_column}"{more} FROM part'
    if source.role == "verdicts":
        return "SELECT utterance_id AS id, kept, reason FROM part"
    if source.role == "shards":
        return (
            "SELECT coalesce(cut_from, id) AS id, CASE WHEN cut_from IS NULL THEN coalesce(tar, own_tar) END AS tar,"
            ' "offset" AS tar_offset, num_bytes AS tar_bytes, format AS tar_format FROM part'
        )
    import pyarrow as pa

    columns = [
        f'CASE WHEN NOT isnan("{field.name}") THEN "{field.name}" END AS "{field.name}"'
        if pa.types.is_floating(field.type)
        else f'"{field.name}"'
        for field in tables.schema(source.kind)
        if field.name not in _NOT_OF_SCORES
    ]
    return f"SELECT utterance_id AS id, {', '.join(columns)} FROM part"


def _numbered(source: TableSource, keys: Sequence[str], parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The parts; utterances with the number of their row, samples with the tar beside their sidecar."""
    import numpy as np
    import pyarrow as pa

    start = 0
    for key, part in zip(keys, parts, strict=True):
        if source.role == "utterances":
            yield part.append_column("row", pa.array(np.arange(start, start + len(part))))
            start += len(part)
        elif source.role == "shards":
            yield part.append_column("own_tar", pa.repeat(key.removesuffix(".parquet") + ".tar", len(part)))
        else:
            yield part


def _gathered(parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The rows in tables of many: an insertion takes as long for a few."""
    import pyarrow as pa

    waiting: list[pa.Table] = []
    num_rows = 0
    for part in parts:
        waiting.append(part)
        num_rows += len(part)
        if num_rows >= _ROWS_AT_ONCE:
            yield pa.concat_tables(waiting)
            waiting, num_rows = [], 0
    if waiting:
        yield pa.concat_tables(waiting)
