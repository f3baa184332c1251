"""How a part of a table of utterances is cut into chunks: by number, by audio, and between recordings."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from voxstill import engine
from voxstill.core.config import Engine

if TYPE_CHECKING:
    import pyarrow as pa

CUT_BY = ("recording_id", "start_ms", "end_ms")
"""Columns of utterances that decide where a chunk ends."""


def cut(recordings: Sequence[str], durations_ms: Sequence[int], cfg: Engine) -> Iterator[slice]:
    """Yield the chunks of rows as slices: at most `engine.chunk` rows and `engine.chunk_hours` of audio.

    A chunk ends inside a recording only where the recording does not fit into a chunk of its own: each chunk decodes
    a recording again. A row that alone has more audio than that is a chunk.
    """
    num, most_ms = len(recordings), round(cfg.chunk_hours * 3_600_000)
    ends_ms = [0, *accumulate(durations_ms)]
    start = 0
    while start < num:
        fits = bisect_right(ends_ms, ends_ms[start] + most_ms, start) - 1
        stop = between = min(start + cfg.chunk, max(fits, start + 1), num)
        while start < between < num and recordings[between] == recordings[between - 1]:
            between -= 1
        stop = between if between > start else stop
        yield slice(start, stop)
        start = stop


def chunk_ids(utterances: pa.Table, cfg: Engine) -> list[str]:
    """The ids of the chunks into which a part is cut, from its columns `id` and `CUT_BY`."""
    ids, recordings, starts_ms, ends_ms = (utterances[name].to_pylist() for name in ("id", *CUT_BY))
    durations_ms = [end - start for start, end in zip(starts_ms, ends_ms, strict=True)]
    return [engine.chunk_id(ids[rows]) for rows in cut(recordings, durations_ms, cfg)]
