"""Columns of manifests that the index does not keep, such as the gender of a speaker, by the ids of the utterances."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

from voxstill.core.errors import DataError, first_line
from voxstill.indexing.formats import kaldi, tables
from voxstill.indexing.formats.remote_file import open_manifest
from voxstill.indexing.formats.webdataset import file_name
from voxstill.storage.redaction import redact_uri
from voxstill.storage.uri import is_local, local_path


def column(uri: str, name: str) -> dict[str, object]:
    """A column of a manifest by the `id` of its rows; empty where there is no such column, no id, or no manifest.

    It may be JSONL, JSON, CSV, TSV or Parquet, or a folder that holds such a manifest. Of a Kaldi directory the column
    is the file `utt2NAME`, or `spk2NAME`. DataError where the manifest is damaged.
    """
    path = local_path(uri).expanduser() if is_local(uri) else None
    if path is not None and path.name == kaldi.KALDI_NAME:
        path = path.parent
    if path is None or not path.is_dir():
        return _of_rows(uri, name)
    if kaldi.is_kaldi(str(path)):
        return _of_kaldi(path, name)
    manifests = (path / file for file in (*tables.MANIFEST_NAMES, *tables.METADATA_NAMES))
    return {id_: value for file in manifests if file.is_file() for id_, value in _of_rows(str(file), name).items()}


def _of_rows(uri: str, name: str) -> dict[str, object]:
    rows = _rows(uri, ("id", name))
    return {str(row["id"]): row[name] for row in rows if row.get("id") is not None and row.get(name) is not None}


def _rows(uri: str, names: tuple[str, ...]) -> Iterator[Mapping[str, object]]:
    file = file_name(uri)
    if file.endswith((".jsonl", ".jsonl.gz")):
        yield from (row for row, _ in tables.jsonl_rows(uri))
    elif file.endswith(".json"):
        yield from (row for row, _ in tables.json_rows(uri))
    elif file.endswith(".csv"):
        yield from (row for row, _ in tables.csv_rows(uri))
    elif file.endswith(".tsv"):
        yield from (row for row, _ in tables.read_separated(uri, "\t", csv.QUOTE_NONE))
    elif file.endswith(".parquet"):
        yield from _parquet_rows(uri, names)


def _parquet_rows(uri: str, names: tuple[str, ...]) -> Iterator[Mapping[str, object]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open_manifest(uri) as file:
        try:
            table = pq.ParquetFile(file)
            if set(names) <= set(table.schema_arrow.names):
                for batch in table.iter_batches(columns=list(names), use_threads=False):
                    yield from batch.to_pylist()
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            fix = "write the file anew"
            raise DataError(f"`{redact_uri(uri)}` cannot be read", why=first_line(error), fix=fix) from None


def _of_kaldi(folder: Path, name: str) -> dict[str, object]:
    def lines(file: str) -> dict[str, str]:
        path = folder / file
        return dict(kaldi.pairs(str(path))) if "/" not in file and path.is_file() else {}

    of_speaker = lines(f"spk2{name}")
    by_speaker = {id_: of_speaker[speaker] for id_, speaker in lines("utt2spk").items() if speaker in of_speaker}
    return {**by_speaker, **lines(f"utt2{name}")}
