"""Index files far away by their headers: a few hundred bytes of each instead of all of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from voxstill.audio import codec
from voxstill.audio.header import HEAD_BYTES, Header, read_header
from voxstill.core.config import Segment
from voxstill.core.errors import VoxstillError
from voxstill.core.records import RATE_HZ
from voxstill.indexing.formats.entry import SourceEntry
from voxstill.indexing.scan import SourceFile
from voxstill.storage.fetch import Blob, read_many
from voxstill.storage.uri import split_range


def audio_by_header(files: Sequence[SourceFile], cfg: Segment) -> list[tuple[Blob, codec.Audio] | None]:
    """For each file its version and its audio without samples; None if the file must be read.

    That is so of a file whose header states no length, of one with channels to mix, and where utterances are to be
    cut by their speech. The array of samples has their length, and all of them are 0.
    """
    answers = read_many(map(_head_uri, files))
    return [_audio(file, head, cfg) for file, head in zip(files, answers, strict=True)]


def _head_uri(file: SourceFile) -> str:
    address, byte_range = split_range(file.entries[0].uri)
    if byte_range is None:
        return f"{address}#0+{HEAD_BYTES}"
    return f"{address}#{byte_range.start}+{min(byte_range.length, HEAD_BYTES)}"


def _audio(file: SourceFile, head: Blob | VoxstillError, cfg: Segment) -> tuple[Blob, codec.Audio] | None:
    if isinstance(head, VoxstillError):
        return None
    _, byte_range = split_range(file.entries[0].uri)
    header = read_header(head.data, head.num_bytes if byte_range is None else byte_range.length)
    if header is None or not all(_is_enough(header, entry, cfg) for entry in file.entries):
        return None
    samples_T = np.broadcast_to(np.int16(0), header.num_samples * RATE_HZ // header.rate_hz)
    audio = codec.Audio(
        samples_T=samples_T, codec=header.codec, rate_hz=header.rate_hz, num_channels=header.num_channels
    )
    return head, audio


def _is_enough(header: Header, entry: SourceEntry, cfg: Segment) -> bool:
    """Whether the utterances of an entry are known without its samples."""
    is_one_channel = header.num_channels == 1 if entry.channel is None else entry.channel < header.num_channels
    end_ms = header.duration_ms if entry.end_ms is None else min(entry.end_ms, header.duration_ms)
    fits = end_ms - (entry.start_ms or 0) <= cfg.max_ms
    return is_one_channel and fits and (entry.is_cut or cfg.vad != "always")
