"""The chunks of a WAV file (RIFF), and how much of its audio is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from voxstill.audio.byte_source import ByteSource


class DataChunk(NamedTuple):
    """Bytes of the samples of a WAV: as its header states, and as there are in the file."""

    num_stated: int
    num_present: int
    num_unexplained: int
    """Bytes after the data that are not a chunk."""


def data_chunk(data: ByteSource) -> DataChunk | None:
    """Sizes of a WAV's data chunk; None for other files and for WAVs written to a pipe, which state no length."""
    if data[:4] not in (b"RIFF", b"RIFX", b"RF64") or data[8:12] != b"WAVE":
        return None
    order: Literal["little", "big"] = "big" if data[:4] == b"RIFX" else "little"
    long_size = 0
    for start, name, size in chunks(data, 12, order):
        if name == b"ds64":
            long_size = int.from_bytes(data[start + 8 : start + 16], "little")
        if name == b"data":
            if size == 0xFFFFFFFF and long_size:
                size = long_size  # noqa: PLW2901  # RF64 keeps it elsewhere (EBU Tech 3306)
            if size >= 0x7FFFF000:
                return None
            end = start + size + size % 2
            for next_start, _, next_size in chunks(data, end, order):
                end = next_start + next_size + next_size % 2
            return DataChunk(size, min(size, len(data) - start), max(0, len(data) - end))
    return None


def chunks(data: ByteSource, position: int, order: Literal["little", "big"]) -> Iterator[tuple[int, bytes, int]]:
    """Start of content, name and size of each RIFF chunk, up to the first that cannot be one."""
    while (
        position + 8 <= len(data) and (name := data[position : position + 4]).isascii() and name.decode().isprintable()
    ):
        size = int.from_bytes(data[position + 4 : position + 8], order)
        yield position + 8, name, size
        position += 8 + size + size % 2
