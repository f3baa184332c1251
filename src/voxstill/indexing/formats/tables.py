"""Manifests that are tables: JSONL, CSV and Parquet, and lists of paths; each is read as a stream of rows.

Nothing is decoded here and nothing is run. What a manifest says wrongly is a DataError that names file and line; audio
that cannot be had is a row with its `failure`.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO, Literal, cast

from voxstill.core.errors import DataError, first_line
from voxstill.indexing.formats.column_names import COLUMN_NAMES, NUMBER_COLUMNS, is_read, spelling
from voxstill.indexing.formats.entry import (
    SourceEntry,
    bad_row,
    metadata_of,
    resolve,
    resolve_either,
    stretch_ms,
    timed,
    value_of,
    with_known_names,
)
from voxstill.indexing.formats.lhotse_nemo import cut_entry, is_cut, is_half_of_cut, nemo_tar_entry
from voxstill.indexing.formats.lines import decode_text, json_object, number_of, parse_json
from voxstill.indexing.formats.parquet_audio import audio_column, too_much
from voxstill.indexing.formats.remote_file import MAX_LINE_BYTES, open_manifest, read_lines
from voxstill.indexing.formats.webdataset import AUDIO, file_name, is_compressed
from voxstill.indexing.formats.word_times import MOST_WORDS, read_words
from voxstill.storage.redaction import redact_uri

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

ManifestRow = tuple[Mapping[str, object], str]
"""Columns of a row of a manifest, and where it stands, for people."""
METADATA_NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Names that Hugging Face gives to the manifest of the audio in a folder."""
MANIFEST_NAMES = tuple(f"manifest.{ending}" for ending in ("jsonl", "jsonl.gz", "json", "csv", "tsv", "parquet"))
"""Names by which a manifest in a folder is known."""
_SEPARATORS = ",;|\t"
_PARQUET_ROWS = 16
"""Read at a time. Few: all of them may be the same long text, which the file holds once."""
_JSON_PART = 1 << 20
_BETWEEN_ROWS = re.compile(r"[\s,]*")


def names_audio(uri: str) -> bool:
    """Whether the beginning of a table knows a column of audio; named like Hugging Face's metadata, `file_name`."""
    is_metadata = uri.rpartition("/")[2] in METADATA_NAMES
    columns = {"file_name"} if is_metadata else set(COLUMN_NAMES["audio"])
    with open_manifest(uri) as file:
        if uri.endswith(".parquet"):
            import pyarrow as pa
            import pyarrow.parquet as pq

            try:
                return not columns.isdisjoint(map(spelling, pq.read_schema(file).names))
            except (pa.ArrowException, OSError, UnicodeDecodeError):
                return True  # reading it says what is wrong
        lines = _unzipped(file, uri)
        try:
            line = lines.readline(1 << 20)
            line = line if line.strip() not in (b"", b"[") else lines.read(1 << 16)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            return True
    text = line.decode("utf-8-sig", "replace")
    if uri.endswith((".csv", ".tsv")):
        return any(
            not columns.isdisjoint(_names(text, mark)) for mark in ("\t" if uri.endswith(".tsv") else _SEPARATORS)
        )
    return any(f'"{name}"' in text.lower() for name in (columns if is_metadata else {*columns, "recording"}))


def _names(header: str, separator: str) -> list[str]:
    """The columns that the first line of a table names."""
    return [spelling(cell.strip('" \r\n')) for cell in header.split(separator)]


def read_jsonl(uri: str) -> Iterator[SourceEntry]:
    """A row for each line of a JSONL manifest, gzipped or not."""
    return (row_entry(row, uri, where) for row, where in jsonl_rows(uri))


def jsonl_rows(uri: str) -> Iterator[ManifestRow]:
    """The object of each line of a JSONL manifest, gzipped or not."""
    with open_manifest(uri) as file:
        lines = _unzipped(file, uri)
        try:
            for number, line in read_lines(lines, redact_uri(uri)):
                if line.strip():
                    yield parse_json(line, f"{redact_uri(uri)}:{number}"), f"{redact_uri(uri)}:{number}"
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            fix = "write it again"
            raise DataError(
                f"the manifest `{redact_uri(uri)}` is damaged", code="unreadable-file", why=str(error), fix=fix
            ) from None


def _unzipped(file: BinaryIO, uri: str) -> BinaryIO:
    return cast(BinaryIO, gzip.GzipFile(fileobj=file)) if file_name(uri).endswith(".gz") else file


def read_json(uri: str) -> Iterator[SourceEntry]:
    """A row for each object of a JSON array, or of a line where the file is not an array."""
    return (row_entry(row, uri, where) for row, where in json_rows(uri))


def json_rows(uri: str) -> Iterator[ManifestRow]:
    """The objects of a JSON array, or of the lines where the file is not an array."""
    with open_manifest(uri) as file:
        is_array = file.read(_JSON_PART).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")
        if is_array:
            file.seek(0)
            try:
                for number, row in enumerate(_array(file, redact_uri(uri)), start=1):
                    where = f"{redact_uri(uri)}:{number}"
                    yield json_object(row, where), where
            except UnicodeDecodeError as error:
                raise bad_row(redact_uri(uri), f"it is not UTF-8: {error}") from None
            return
    yield from jsonl_rows(uri)


def _array(file: BinaryIO, name: str) -> Iterator[object]:
    """The elements of a JSON array, one held at a time; DataError if it breaks off or is none."""
    stream, decoder = io.TextIOWrapper(file, "utf-8-sig"), json.JSONDecoder()
    text, place, number, is_whole = stream.read(_JSON_PART).lstrip()[1:], 0, 1, False
    while True:
        match = _BETWEEN_ROWS.match(text, place)
        place = match.end() if match else place
        if text.startswith("]", place):
            return
        try:
            row, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            if is_whole or len(text) - place > MAX_LINE_BYTES:
                raise bad_row(f"{name}:{number}", f"it is not JSON: {error}") from None
            part = stream.read(_JSON_PART)
            is_whole = not part
            text, place = text[place:] + part, 0
            continue
        yield row
        place, number = end, number + 1


def read_csv(uri: str) -> Iterator[SourceEntry]:
    """A row for each line of a CSV manifest, whose first line names the columns; an empty cell says nothing.

    Columns are separated by what separates the names of the first line: a comma, a semicolon, `|` or a tab.
    """
    return (row_entry(cells, uri, where) for cells, where in csv_rows(uri))


def csv_rows(uri: str) -> Iterator[ManifestRow]:
    """The cells of each line of a CSV manifest by their columns."""
    with open_manifest(uri) as file:
        header = file.readline(1 << 20).decode("utf-8-sig", "replace")
    marks = (mark for mark in _SEPARATORS if not set(COLUMN_NAMES["audio"]).isdisjoint(_names(header, mark)))
    yield from read_separated(uri, next(marks, ","), csv.QUOTE_MINIMAL)


def read_separated(uri: str, separator: str, quoting: Literal[0, 3]) -> Iterator[ManifestRow]:
    """The cells of each line by their columns, and where it stands; an empty cell is None, times are numbers."""
    with open_manifest(uri) as file:
        text = io.TextIOWrapper(file, "utf-8-sig", newline="")
        rows = csv.DictReader(_csv_lines(text), delimiter=separator, quoting=quoting)
        is_first = True
        while True:
            where = f"{redact_uri(uri)}:{rows.line_num + 1}"
            try:
                if is_first:
                    _refuse_doubled_columns(rows.fieldnames or (), where)
                    _refuse_without_audio(rows.fieldnames or (), where)
                    is_first = False
                    where = f"{redact_uri(uri)}:{rows.line_num + 1}"
                row: Mapping[str | None, str] | None = next(rows, None)
            except (csv.Error, UnicodeDecodeError) as error:
                raise bad_row(where, str(error)) from None
            if row is None:
                return
            if None in row:
                raise bad_row(where, "it has more cells than there are columns")
            cells = ((str(name), cell or None) for name, cell in row.items())
            yield {name: number_of(cell) if cell and _is_number(name) else cell for name, cell in cells}, where


def _refuse_without_audio(names: Sequence[str], where: str) -> None:
    """DataError if a first line has no audio column, as that of a table without names; an empty one may."""
    if names and set(COLUMN_NAMES["audio"]).isdisjoint(map(spelling, names)):
        raise DataError(
            f"{where} has no audio column",
            code="bad-line",
            why="the first line of a table must be its column names, one of them `audio`",
            fix="add a first line such as `audio,text`, with the separator of the file",
        )


def _is_number(column: str) -> bool:
    return spelling(column) in NUMBER_COLUMNS


def _csv_lines(text: io.TextIOWrapper) -> Iterator[str]:
    """Lines as the csv module wants them, which may end in a carriage return alone; csv.Error for one too long."""
    while line := text.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            raise csv.Error(f"it is longer than {MAX_LINE_BYTES >> 20} MiB")
        yield line


def _refuse_doubled_columns(names: Sequence[str], where: str) -> None:
    """DataError if two columns have one name; those without a name are not read."""
    doubled = [name for name, count in Counter(names).items() if count > 1 and name]
    if doubled:
        raise bad_row(where, f"it has the column `{doubled[0]}` twice: it is not clear which column is meant")


def read_parquet(uri: str) -> Iterator[SourceEntry]:
    """A row for each row of a Parquet manifest, a few held at a time; only columns that are known are read.

    DataError if it has audio inside: a page of Parquet is compressed as a whole, so no file can be read alone. And
    where it is small and states to hold much, or a row is too long for a manifest.
    """
    for row, where, names in parquet_rows(uri):
        yield replace(row_entry(row, uri, where), columns=names)


def parquet_rows(
    uri: str, wanted: Callable[[str], bool] = is_read
) -> Iterator[tuple[dict[str, object], str, tuple[str, ...]]]:
    """The wanted columns of each row of a Parquet manifest, where it stands, and the names of all columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open_manifest(uri) as file:
        try:
            num_bytes = file.seek(0, io.SEEK_END)
            table = pq.ParquetFile(file)
            if why := too_much(table.metadata, num_bytes):
                raise DataError(
                    f"`{redact_uri(uri)}` is not read", code="unreadable-file", why=why, fix="write the file again"
                )
            if audio_column(table.metadata) is not None:
                raise DataError(
                    f"`{redact_uri(uri)}` contains the audio itself",
                    code="source-layout",
                    why="Parquet compresses pages of many rows, so a single recording cannot be read",
                    fix="give it to `voxstill index`, which unpacks it into its work folder",
                )
            number, names = 0, tuple(table.schema_arrow.names)
            _refuse_doubled_columns(names, redact_uri(uri))
            leaves = (table.metadata.schema.column(index).path for index in range(table.metadata.num_columns))
            columns = [leaf for leaf in leaves if wanted(leaf.partition(".")[0]) and leaf != "audio.bytes"]
            _refuse_too_many_words(table.metadata, redact_uri(uri))
            for batch in table.iter_batches(_PARQUET_ROWS, columns=columns, use_threads=False):
                for row in _with_words_cut(batch).to_pylist():
                    number += 1
                    if sum(len(value) for value in row.values() if isinstance(value, str)) > MAX_LINE_BYTES:
                        raise bad_row(f"{redact_uri(uri)}:{number}", f"it is longer than {MAX_LINE_BYTES >> 20} MiB")
                    yield row, f"{redact_uri(uri)}:{number}", names
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"`{redact_uri(uri)}` is not a Parquet manifest",
                code="unreadable-file",
                why=first_line(error),
                fix="write the file again",
            ) from None


def _refuse_too_many_words(metadata: pq.FileMetaData, where: str) -> None:
    """DataError if lists of words are longer, on the average, than any may be: equal ones take no place."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    for group in groups:
        leaves = (group.column(index) for index in range(group.num_columns))
        num_words = max((leaf.num_values for leaf in leaves if _is_words(leaf.path_in_schema)), default=0)
        if num_words > MOST_WORDS * group.num_rows:
            why = f"the column `words` has {num_words:,} values in {group.num_rows:,} rows"
            raise DataError(
                f"`{where}` is not read",
                code="unreadable-file",
                why=why,
                fix="write the file again, with the words of each row",
            )


def _with_words_cut(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with lists of words that are too long cut before they become objects; what is left is too long."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for index, field in enumerate(batch.schema):
        if _is_words(field.name) and (pa.types.is_list(field.type) or pa.types.is_large_list(field.type)):
            batch = batch.set_column(index, field.name, pc.list_slice(batch[index], 0, MOST_WORDS + 1))
    return batch


def _is_words(path: str) -> bool:
    return spelling(path.partition(".")[0]) == "words"


def read_list(uri: str) -> Iterator[SourceEntry]:
    """A row for each path or URI of a list, one a line; of WeNet's `data.list` a line may be a JSON object."""
    with open_manifest(uri) as file:
        is_json = file.read(1 << 16).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{")
        file.seek(0)
        if is_json:
            yield from read_jsonl(uri)
            return
        for number, line in read_lines(file, redact_uri(uri)):
            where = f"{redact_uri(uri)}:{number}"
            if audio := decode_text(line, where).strip():
                file_entry = resolve_either(audio, uri)
                if not file_entry.etag and _is_row_of_table(audio):
                    raise DataError(
                        f"{where} is not a path",
                        code="bad-line",
                        why="the line has more, such as a text, but a list has one path or address per line",
                        fix="write a `.csv` whose first line has the column names, such as `audio,text`, or a `.jsonl`",
                    )
                yield SourceEntry(uri="", where=where).located(file_entry)


def _is_row_of_table(line: str) -> bool:
    """Whether a line of a list begins with a path and continues with something else, or is a text."""
    first = re.split(r"[|\t;,\s]", line, maxsplit=1)[0]
    is_text = "://" not in line and len(line.split()) > 1
    return not _is_recording(line) and (is_text or (first != line and _is_recording(first)))


def _is_recording(path: str) -> bool:
    name = file_name(path)
    return name.rpartition(".")[2] in {*AUDIO, "tar"} or is_compressed(name)


def row_entry(row: Mapping[str, object], manifest: str, where: str) -> SourceEntry:
    """What one row of a manifest means, whichever tool wrote it."""
    if is_cut(row):
        try:
            return cut_entry(row, manifest, where)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise bad_row(where, f"a value is not in lhotse's format: {error}") from None
    row = with_known_names(row, where)
    audio = value_of(row, "audio")
    if isinstance(audio, Mapping):  # as Hugging Face writes it
        audio = audio.get("path")
    if not isinstance(audio, str) or not audio:
        if is_half_of_cut(row):
            raise bad_row(
                where,
                "it is only one half of a lhotse manifest: join recordings and supervisions with `lhotse cut simple`",
            )
        raise bad_row(where, "it has no `audio`")
    start_ms, end_ms, duration_ms = stretch_ms(row, where)
    metadata = timed(metadata_of(row, where), start_ms, end_ms, where)
    metadata = replace(metadata, duration_ms=duration_ms, words=read_words(row.get("words"), where))
    if "audio_filepath" in row and row.get("shard_id") is not None:
        return nemo_tar_entry(audio, row["shard_id"], manifest, metadata)
    if metadata.id is None and isinstance(row.get("key"), str) and {"wav", "txt"} <= row.keys():  # as WeNet writes it
        return replace(metadata, implied_id=str(row["key"]).strip() or None).located(resolve_either(audio, manifest))
    return metadata.located(resolve(audio, manifest))
