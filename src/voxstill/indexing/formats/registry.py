"""Which reader a manifest has, by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath

from voxstill.indexing.formats.common_voice import read_tsv
from voxstill.indexing.formats.entry import SourceEntry
from voxstill.indexing.formats.librispeech import ENDING as LIBRISPEECH_ENDING
from voxstill.indexing.formats.librispeech import is_librispeech, read_librispeech
from voxstill.indexing.formats.tables import read_csv, read_json, read_jsonl, read_list, read_parquet
from voxstill.indexing.formats.transcripts import (
    is_fairseq,
    is_ljspeech,
    is_mls,
    read_fairseq,
    read_ljspeech,
    read_mls,
)
from voxstill.indexing.formats.webdataset import compressed_tar_error, file_name, is_compressed, read_tar

Reader = Callable[[str], Iterator[SourceEntry]]

_READERS: Mapping[str, Reader] = {
    ".jsonl": read_jsonl,
    ".json": read_json,
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".parquet": read_parquet,
    ".txt": read_list,
    ".lst": read_list,
    ".list": read_list,
    ".tar": read_tar,
}


def reader_for(uri: str) -> Reader | None:
    """What reads a manifest of this name; None if the name is not that of a manifest.

    DataError for a compressed tar.
    """
    if is_compressed(uri):
        raise compressed_tar_error(uri)
    if file_name(uri).endswith(".jsonl.gz"):  # as lhotse writes its manifests
        return read_jsonl
    return transcripts_reader(uri) or _READERS.get(PurePosixPath(file_name(uri)).suffix)


def transcripts_reader(uri: str) -> Reader | None:
    """What reads the transcripts of a data set that is known by their name and first line; None of others."""
    if uri.endswith(LIBRISPEECH_ENDING) and is_librispeech(uri):
        return read_librispeech
    if is_mls(uri):
        return read_mls
    if is_ljspeech(uri):
        return read_ljspeech
    return read_fairseq if file_name(uri).endswith(".tsv") and is_fairseq(uri) else None
