"""The tables of a work folder: what is read of them, and the columns of the joined file that follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from voxstill.core.records import fingerprint
from voxstill.explorer.columns import quoted
from voxstill.storage import tables
from voxstill.storage.arrays import arrow_array, arrow_numbers
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
_ROWS_AT_ONCE = 100_000
_UTTERANCE = (
    *("id", "recording_id", "uri", "channel", "start_ms", "end_ms", "gain_db"),
    *("split", "language", "speaker", "dialect", "dataset", "text"),
)
_READ: dict[Role, tuple[str, ...]] = {
    "utterances": _UTTERANCE,
    "labels": ("utterance_id", "text", "language", "mean_logprob", "finish", "error"),
    "verdicts": ("utterance_id", "kept", "reason"),
    "shards": ("id", "tar", "offset", "num_bytes", "format", "cut_from"),
}
OF_SCORES = (
    ("characters * 1000 / greatest(duration_ms, 1)", "chars_per_s"),
    ("errors / nullif(reference_words, 0)", "wer"),
)
"""Columns that follow from those of scores."""
_NOT_OF_SCORES = ("split", "duration_ms", "mean_logprob")
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
    file.register("part", schema(source).empty_table())
    columns = ", ".join(f"{expression} AS {name}" for expression, name in expressions(source))
    query = f"SELECT {columns} FROM part WHERE id NOT IN (SELECT id FROM removed)"
    run(file, f"CREATE OR REPLACE TEMP TABLE {source.staged} AS {query}")
    for part in _gathered(read(work, source, keys)):
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


def read(work: Store, source: TableSource, keys: Sequence[str]) -> Iterator[pa.Table]:
    """What the joined file needs of parts of a table; utterances with the number of their row, samples with the tar
    beside their sidecar."""
    import numpy as np
    import pyarrow as pa

    start = 0
    for key, part in zip(keys, tables.columns(work, keys, source.kind, _names(source)), strict=True):
        if source.role == "utterances":
            yield part.append_column("row", arrow_numbers(np.arange(start, start + len(part))))
            start += len(part)
        elif source.role == "shards":
            [tar] = arrow_array([key.removesuffix(".parquet") + ".tar"], pa.string())
            yield part.append_column("own_tar", pa.repeat(tar, len(part)))
        else:
            yield part


def schema(source: TableSource) -> pa.Schema:
    """The columns that `read` gives."""
    import pyarrow as pa

    names = _names(source)
    fields = [field for field in tables.schema(source.kind) if field.name in names]
    if source.role == "utterances":
        fields.append(pa.field("row", pa.int64()))
    if source.role == "shards":
        fields.append(pa.field("own_tar", pa.string()))
    return pa.schema(fields)


def _names(source: TableSource) -> Sequence[str]:
    """The columns that are read of a table."""
    if source.role == "scores":
        return [name for name in tables.schema(source.kind).names if name not in _NOT_OF_SCORES]
    return _READ[source.role]


def id_names(source: TableSource) -> tuple[str, ...]:
    """The columns that name the utterance of a row."""
    return {"utterances": ("id",), "shards": ("cut_from", "id")}.get(source.role, ("utterance_id",))


def ids_of(source: TableSource, rows: pa.Table) -> pa.ChunkedArray:
    """The utterance of each row; that of a piece is the one that it was cut from."""
    import pyarrow.compute as pc

    first, *others = (rows[name] for name in id_names(source))
    return pc.coalesce(first, *others) if others else first


def search_text(sources: Sources) -> str:
    """The expression of the text that is searched: all that anybody wrote of an utterance, in lower case."""
    main, *others = [quoted(source.text_column) for source in sources.joined if source.role == "labels"] or ["NULL"]
    rest = "".join(f", CASE WHEN {name} IS DISTINCT FROM {main} THEN {name} END" for name in (*others, "human"))
    return folded(f"concat_ws(chr(10), {main}{rest})")


def folded(text: str) -> str:
    """The expression of a text whatever its case: a capital sigma has two small letters."""
    return f"replace(lower({text}), 'ς', 'σ')"


def derived(sources: Sources) -> str:
    """The columns that follow from those of several tables."""
    columns = [f"{search_text(sources)} AS search"]
    if any(source.role == "scores" for source in sources.tables):
        columns += [f"{expression} AS {name}" for expression, name in OF_SCORES]
    return ", ".join(columns)


def expressions(source: TableSource, prefix: str = "") -> list[tuple[str, str]]:
    """Expressions of the columns of the joined file with their names, the id first; `prefix` is that of the columns of
    the table."""

    def of(name: str) -> str:
        return quoted(f"{prefix}{name}")

    def plain(*names: str) -> list[tuple[str, str]]:
        return [(of(name), quoted(name)) for name in names]

    if source.role == "utterances":
        return [
            *plain("id", "row", "recording_id", "uri", "channel", "start_ms", "end_ms"),
            (f"{of('end_ms')} - {of('start_ms')}", "duration_ms"),
            (_finite(of("gain_db")), "gain_db"),
            *plain("split", "language", "speaker", "dialect", "dataset"),
            (of("text"), "human"),
        ]
    if source.role == "shards":
        tar = f"CASE WHEN {of('cut_from')} IS NULL THEN coalesce({of('tar')}, {of('own_tar')}) END"
        return [
            (f"coalesce({of('cut_from')}, {of('id')})", "id"),
            (tar, "tar"),
            (of("offset"), "tar_offset"),
            (of("num_bytes"), "tar_bytes"),
            (of("format"), "tar_format"),
        ]
    id_ = (of("utterance_id"), "id")
    if source.role == "labels":
        columns = [id_, (of("text"), quoted(source.text_column))]
        if source.is_main:
            confidence, language = _finite(f"exp({of('mean_logprob')})"), of("language")
            columns += [(confidence, "confidence"), (language, "label_language"), *plain("finish", "error")]
        return columns
    if source.role == "verdicts":
        return [id_, *plain("kept", "reason")]
    import pyarrow as pa

    return [
        id_,
        *(
            (_finite(of(field.name)), quoted(field.name))
            if pa.types.is_floating(field.type)
            else (of(field.name), quoted(field.name))
            for field in tables.schema(source.kind)
            if field.name not in (*_NOT_OF_SCORES, "utterance_id")
        ),
    ]


def _finite(number: str) -> str:
    """The expression of a number that is null where it is NaN or infinite, for JSON has neither."""
    return f"CASE WHEN isfinite({number}) THEN {number} END"


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
