"""Manifests that are tables: JSONL, CSV and Parquet, and lists of paths; each is read as a stream of rows.

Nothing is decoded here and nothing is run. What a manifest says wrongly is a DataError that names file and line; audio
that cannot be had is a row with its `failure`.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from voxstill.core.errors import DataError
from voxstill.indexing.formats.entry import (
    COLUMN_NAMES,
    NUMBER_COLUMNS,
    SourceEntry,
    bad_row,
    decode_text,
    metadata_of,
    number_of,
    parse_json,
    resolve,
    stretch_ms,
    timed,
    value_of,
)
from voxstill.indexing.formats.lhotse_nemo import cut_entry, is_cut, nemo_tar_entry
from voxstill.indexing.formats.remote_file import open_manifest
from voxstill.indexing.formats.webdataset import file_name
from voxstill.storage.redaction import redact_uri

if TYPE_CHECKING:
    import pyarrow.parquet as pq

METADATA_NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Names that Hugging Face gives to the manifest of the audio in a folder."""
_PARQUET_ROWS = 1024


def names_audio(uri: str) -> bool:
    """Whether a file named like Hugging Face's metadata is that: its first line, or its columns, know `file_name`."""
    with open_manifest(uri) as file:
        if uri.endswith(".parquet"):
            import pyarrow.parquet as pq

            return "file_name" in pq.read_schema(file).names
        line = file.readline(1 << 20).decode("utf-8-sig", "replace")
    if uri.endswith(".csv"):
        return "file_name" in next(csv.reader([line]), [])
    return '"file_name"' in line


def read_jsonl(uri: str) -> Iterator[SourceEntry]:
    """A row for each line of a JSONL manifest, gzipped or not."""
    with open_manifest(uri) as file:
        lines = gzip.GzipFile(fileobj=file) if file_name(uri).endswith(".gz") else file
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _entry(parse_json(line, f"{redact_uri(uri)}:{number}"), uri, f"{redact_uri(uri)}:{number}")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            fix = "write it again"
            raise DataError(f"the manifest `{redact_uri(uri)}` is damaged", why=str(error), fix=fix) from None


def read_csv(uri: str) -> Iterator[SourceEntry]:
    """A row for each line of a CSV manifest, whose first line names the columns; an empty cell says nothing."""
    with open_manifest(uri) as file:
        rows = csv.DictReader(io.TextIOWrapper(file, "utf-8-sig", newline=""))
        while True:
            where = f"{redact_uri(uri)}:{rows.line_num + 1}"
            try:
                where = f"{redact_uri(uri)}:{rows.line_num + 1}" if rows.fieldnames else where  # which are read first
                row: Mapping[str | None, str] | None = next(rows, None)
            except (csv.Error, UnicodeDecodeError) as error:
                raise bad_row(where, str(error)) from None
            if row is None:
                return
            if None in row:
                raise bad_row(where, "it has more cells than there are columns")
            cells = {str(name): cell or None for name, cell in row.items()}
            numbers = {name: number_of(cell) for name in NUMBER_COLUMNS if (cell := cells.get(name))}
            yield _entry({**cells, **numbers}, uri, where)


def read_parquet(uri: str) -> Iterator[SourceEntry]:
    """A row for each row of a Parquet manifest, a thousand held at a time; only columns that are known are read.

    DataError where it has audio inside: a page of Parquet is compressed as a whole, so no file can be read alone.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    known = {name for names in COLUMN_NAMES.values() for name in names} | set(NUMBER_COLUMNS)
    with open_manifest(uri) as file:
        try:
            table = pq.ParquetFile(file)
            if _holds_audio(table.metadata):
                raise DataError(
                    f"`{redact_uri(uri)}` holds the audio itself",
                    why="Parquet compresses pages of many rows, so that no recording could be read alone",
                    fix="write its audio into files or a WebDataset tar: docs/sources.md shows how",
                )
            number = 0
            leaves = (table.metadata.schema.column(index).path for index in range(table.metadata.num_columns))
            columns = [leaf for leaf in leaves if leaf.partition(".")[0] in known and leaf != "audio.bytes"]
            for batch in table.iter_batches(_PARQUET_ROWS, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield _entry(row, uri, f"{redact_uri(uri)}:{number}")
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"`{redact_uri(uri)}` is not a Parquet manifest",
                why=str(error).splitlines()[0],
                fix="write the file anew",
            ) from None


def _holds_audio(metadata: pq.FileMetaData) -> bool:
    """Whether a column `audio.bytes` has a value, by the footer: nothing of it is read."""
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            if column.path_in_schema == "audio.bytes":
                nulls = column.statistics.null_count if column.statistics is not None else 0
                if nulls < column.num_values:
                    return True
    return False


def read_list(uri: str) -> Iterator[SourceEntry]:
    """A row for each path or URI of a list, one a line."""
    with open_manifest(uri) as file:
        for number, line in enumerate(file, start=1):
            where = f"{redact_uri(uri)}:{number}"
            if audio := decode_text(line, where).strip():
                yield SourceEntry(uri="", where=where).located(resolve(audio, uri))


def _entry(row: Mapping[str, object], manifest: str, where: str) -> SourceEntry:
    """What one row of a manifest means, whichever tool wrote it."""
    if is_cut(row):
        return cut_entry(row, manifest, where)
    audio = value_of(row, "audio")
    if isinstance(audio, Mapping):  # as Hugging Face writes it
        audio = audio.get("path")
    if not isinstance(audio, str) or not audio:
        raise bad_row(where, "it has no `audio`")
    start_ms, end_ms, duration_ms = stretch_ms(row, where)
    metadata = replace(timed(metadata_of(row, where), start_ms, end_ms, where), duration_ms=duration_ms)
    if "audio_filepath" in row and row.get("shard_id") is not None:
        return nemo_tar_entry(audio, row["shard_id"], manifest, metadata)
    return metadata.located(resolve(audio, manifest))
