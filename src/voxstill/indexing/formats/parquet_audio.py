"""Parquet files with the audio itself, as Hugging Face stores data sets: repacked as a tar, whose members are read
alone."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from voxstill.core.errors import DataError, first_line
from voxstill.core.records import Split
from voxstill.indexing.formats.column_names import COLUMN_NAMES, spelling
from voxstill.indexing.formats.entry import split_named
from voxstill.indexing.formats.remote_file import open_manifest
from voxstill.indexing.formats.webdataset import AUDIO, file_name

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_ROWS_AT_ONCE = 2
"""Few: all of them may be the same long value, which the file holds once."""
_MAX_ROWS_PER_BYTE = 64
_MAX_RATIO = 1000
_ALWAYS_BYTES = 1 << 30
_BUFFER_BYTES = 1 << 20
"""Read at a time of each column, so that one page is the most that is held."""
_PART_OF_SPLIT = re.compile(r"([\w.]+)-\d{5}-of-\d{5}(-[0-9a-f]+)?\.parquet")
"""How Hugging Face names the files of a split: `train-00000-of-00012.parquet`."""


def holds_audio(uri: str) -> bool:
    """Whether it is a Parquet file with audio inside; a file that cannot be opened has none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not file_name(uri).endswith(".parquet"):
        return False
    try:
        with open_manifest(uri) as file:
            return audio_column(pq.read_metadata(file)) is not None
    except (pa.ArrowException, DataError, OSError, UnicodeDecodeError):
        return False


def audio_column(metadata: pq.FileMetaData) -> str | None:
    """The column with audio, of bytes or of structs with `bytes`, by the footer; None if it has no value."""
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            is_bytes = (
                column.physical_type == "BYTE_ARRAY" and metadata.schema.column(index).logical_type.type == "NONE"
            )
            nulls = column.statistics.null_count if column.statistics is not None else 0
            name = column.path_in_schema.removesuffix(".bytes")
            is_audio = spelling(name) in COLUMN_NAMES["audio"]
            if is_audio and is_bytes and (nulls or 0) < column.num_values:
                return str(name)
    return None


def split_of_name(uri: str) -> Split | None:
    """The split that a file is a part of by its name; None if the name says nothing."""
    match = _PART_OF_SPLIT.fullmatch(file_name(uri).rpartition("/")[2])
    return None if match is None else split_named(match[1])


def too_much(metadata: pq.FileMetaData, num_bytes: int) -> str | None:
    """Why a Parquet file of this size is not read: what it states to hold has no place in it, or hardly differs."""
    num_rows = max(metadata.num_rows, sum(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)))
    if num_rows > _MAX_ROWS_PER_BYTE * num_bytes:
        return f"its header claims {num_rows:,} rows in {num_bytes:,} bytes"
    num_unpacked = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    return unpacks_to_too_much(num_unpacked, num_bytes)


def unpacks_to_too_much(num_unpacked: int, num_bytes: int) -> str | None:
    """Why a compressed file is not unpacked further: no audio can be compressed so."""
    if num_unpacked <= max(_ALWAYS_BYTES, _MAX_RATIO * num_bytes):
        return None
    return f"its {num_bytes:,} bytes unpack to more than {_MAX_RATIO:,} times as many"


def write_tar(uri: str, out: IO[bytes]) -> str | None:
    """Write the rows as samples of a tar: the audio, and the other columns as JSON; returns why it breaks off.

    A sample has the number of its row for a name. An incomplete one ends in an invalid header, so that the tar
    is known to be damaged.
    """
    archive = tarfile.open(fileobj=out, mode="w:")  # noqa: SIM115  # one that breaks off has no end
    for number, row in enumerate(_rows(uri)):
        if isinstance(row, str):
            out.write(row.encode())
            return row
        _add(archive, f"{number:08}.{_ending(row.name)}", row.data)
        _add(archive, f"{number:08}.json", json.dumps(row.others, ensure_ascii=False, default=str).encode())
    archive.close()
    return None


@dataclass(frozen=True, slots=True)
class _Row:
    """Name and bytes of a row's audio, empty if there is none, and the other columns."""

    name: str
    data: bytes
    others: dict[str, object]


def _rows(uri: str) -> Iterator[_Row | str]:
    """Each row, and as the last the reason, as text, where they are not all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open_manifest(uri) as file:
        num_bytes, num_unpacked = file.seek(0, io.SEEK_END), 0
        table = pq.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        if why := too_much(table.metadata, num_bytes):
            yield why
            return
        audio = audio_column(table.metadata)
        assert audio is not None, "the caller has looked"
        schema = table.schema_arrow
        others = [field.name for field in schema if field.name != audio and not pa.types.is_binary(field.type)]
        classes = _class_names(schema)
        batches = table.iter_batches(_ROWS_AT_ONCE, columns=[audio, *others], use_threads=False)
        while True:
            try:
                rows = next(batches).to_pylist()
            except StopIteration:
                return
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                if getattr(error, "errno", None) is not None:  # of the disk, not of what is on it
                    raise
                yield first_line(error)
                return
            for row in rows:
                value = row.pop(audio)
                value = value if isinstance(value, dict) else {"bytes": value}
                num_unpacked += len(value.get("bytes") or b"")
                if why := unpacks_to_too_much(num_unpacked, num_bytes):
                    yield why
                    return
                for column, names in classes.items():
                    if isinstance(number := row.get(column), int):
                        row[column] = names[number] if 0 <= number < len(names) else None
                yield _Row(str(value.get("path") or ""), value.get("bytes") or b"", row)


def _class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """The names of the numbers in a column of classes, as Hugging Face notes them in the schema."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    kinds = features.items() if isinstance(features, Mapping) else ()
    return {
        column: kind["names"]
        for column, kind in kinds
        if isinstance(kind, Mapping) and kind.get("_type") == "ClassLabel" and isinstance(kind.get("names"), list)
    }


def _ending(name: str) -> str:
    ending = name.rpartition(".")[2].lower()
    return ending if ending in AUDIO else "audio"


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))
