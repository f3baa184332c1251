"""Tables with tabs between columns, and Common Voice, whose tables name clips of the folder `clips` beside them."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator
from dataclasses import replace

from voxstill.indexing.formats.entry import SourceEntry, split_named
from voxstill.indexing.formats.remote_file import open_manifest
from voxstill.indexing.formats.tables import ManifestRow, read_separated, row_entry
from voxstill.indexing.formats.webdataset import file_name

SPLIT_TABLES = ("train.tsv", "dev.tsv", "test.tsv")
"""The tables of Common Voice that are its splits, whose speakers are not the same."""
_COLUMNS = {"client_id", "path", "sentence"}
_CLIPS = "clips"


def is_common_voice(uri: str) -> bool:
    """Whether the first line of a table has the columns of Common Voice."""
    with open_manifest(uri) as file:
        return set(file.readline(1 << 20).decode("utf-8-sig", "replace").strip().split("\t")) >= _COLUMNS


def tables_in(path: str, names: Collection[str], folders: Collection[str]) -> list[str]:
    """The tables to read of a folder of Common Voice: its splits, or what is validated; none of any other folder."""
    tables = [name for name in SPLIT_TABLES if name in names] or [name for name in ("validated.tsv",) if name in names]
    if _CLIPS not in folders or not tables or not is_common_voice(f"{path}/{tables[0]}"):
        return []
    return tables


def read_tsv(uri: str) -> Iterator[SourceEntry]:
    """A row for each line of a table with tabs, where a quotation mark is a mark like any other.

    Of Common Voice, `train.tsv`, `dev.tsv` and `test.tsv` are splits.
    """
    name = file_name(uri).rpartition("/")[2]
    for cells, where in tsv_rows(uri):
        entry = row_entry(cells, uri, where)
        if cells.keys() >= _COLUMNS and name in SPLIT_TABLES and entry.split is None and entry.implied_split is None:
            entry = replace(entry, implied_split=split_named(name.removesuffix(".tsv")))
        yield entry


def tsv_rows(uri: str) -> Iterator[ManifestRow]:
    """The cells of each line of a table with tabs by their columns; clips of Common Voice with their folder."""
    for cells, where in read_separated(uri, "\t", csv.QUOTE_NONE):
        clip = cells.get("path")
        if cells.keys() >= _COLUMNS and isinstance(clip, str) and "/" not in clip:
            yield {**cells, "path": f"{_CLIPS}/{clip}"}, where
        else:
            yield cells, where
