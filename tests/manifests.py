"""Manifests, tars and sound files that tests write, and what the index makes of them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from voxstill.audio import codec
from voxstill.core.config import Segment, Source
from voxstill.core.errors import DataError
from voxstill.indexing.formats.entry import SourceEntry
from voxstill.indexing.scan import by_file, scan
from voxstill.indexing.segment import IndexedFile, index


def wav(pitch_hz: int = 300, seconds: float = 0.2) -> bytes:
    time_T = np.arange(int(16_000 * seconds)) / 16_000
    return codec.encode((9000 * np.sin(2 * np.pi * pitch_hz * time_T)).astype(np.int16), "wav")


def entries_in(uri: Path | str) -> list[SourceEntry]:
    return list(scan(Source(uri=str(uri))))


def indexed(uri: Path | str) -> list[IndexedFile]:
    return [index(file, Segment(), Source(), 0) for file in by_file(scan(Source(uri=str(uri))))]


def refused(uri: Path | str) -> DataError:
    with pytest.raises(DataError) as caught:
        entries_in(uri)
    assert caught.value.fix
    return caught.value


def write_tar(path: Path, members: Mapping[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path
