"""One column of the manifests of a source, by utterance: what the tables do not hold, such as gender or age."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from voxstill.core.config import Source, sources_of
from voxstill.core.records import Utterance
from voxstill.indexing.formats import kaldi
from voxstill.indexing.formats.common_voice import SPLIT_TABLES, tsv_rows
from voxstill.indexing.formats.tables import (
    MANIFEST_NAMES,
    METADATA_NAMES,
    ManifestRow,
    csv_rows,
    json_rows,
    jsonl_rows,
    parquet_rows,
    row_entry,
)
from voxstill.indexing.formats.webdataset import file_name
from voxstill.storage.uri import is_local, local_path

_ROWS: Mapping[str, Callable[[str], Iterator[ManifestRow]]] = {
    ".jsonl": jsonl_rows,
    ".gz": jsonl_rows,
    ".json": json_rows,
    ".csv": csv_rows,
    ".tsv": tsv_rows,
    ".parquet": lambda uri: ((row, where) for row, where, _ in parquet_rows(uri, lambda _: True)),
}


def column(source: Source | Sequence[Source], name: str, utterances: Sequence[Utterance]) -> dict[str, object]:
    """The values of a column by utterance id, of those that a row names: by its id, or by its audio and stretch.

    Manifests are JSONL, JSON, CSV, TSV and Parquet, also in folders of this machine. Of a Kaldi directory the column is
    the file `utt2NAME`, or `spk2NAME`. Other sources have no columns. DataError if one cannot be read.
    """
    values: dict[str | tuple[str, int | None], object] = {}
    for one in sources_of(source):
        for uri in [one.uri] if isinstance(one.uri, str) else one.uri:
            values.update(_of_kaldi(uri, name))
            for manifest in _manifests(uri):
                for row, where in _ROWS[_ending(manifest)](manifest):
                    if row.get(name) is not None:
                        entry = row_entry(row, manifest, where)
                        values[(entry.uri, entry.start_ms) if entry.id is None else entry.id] = row[name]
    of_utterances: dict[str, object] = {}
    for utterance in utterances:
        keys = (utterance.id, (utterance.uri, utterance.start_ms), (utterance.uri, None))
        if (key := next((key for key in keys if key in values), None)) is not None:
            of_utterances[utterance.id] = values[key]
    return of_utterances


def _of_kaldi(uri: str, name: str) -> dict[str, str]:
    """A column of a Kaldi directory by utterance id; empty for anything else."""
    path = local_path(uri).expanduser() if is_local(uri) else None
    if path is None or not kaldi.is_kaldi(folder := str(path.parent if path.name == kaldi.KALDI_NAME else path)):
        return {}

    def lines(file: str) -> dict[str, str]:
        is_there = "/" not in file and os.path.isfile(os.path.join(folder, file))
        return dict(kaldi.pairs(os.path.join(folder, file))) if is_there else {}

    of_speaker = lines(f"spk2{name}")
    by_speaker = {id_: of_speaker[speaker] for id_, speaker in lines("utt2spk").items() if speaker in of_speaker}
    return {**by_speaker, **lines(f"utt2{name}")}


def _ending(uri: str) -> str:
    return PurePosixPath(file_name(uri)).suffix


def _manifests(uri: str) -> list[str]:
    """The tables at an address of a source: itself, or those in a folder of this machine."""
    if is_local(uri) and os.path.isdir(local_path(uri)):
        names = (*MANIFEST_NAMES, *METADATA_NAMES, *SPLIT_TABLES)
        paths = (os.path.join(local_path(uri), name) for name in names)
        return [path for path in paths if os.path.isfile(path)]
    return [uri] if _ending(uri) in _ROWS else []
