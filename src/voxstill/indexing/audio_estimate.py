"""How much audio a file holds, before it is decoded: what its manifest says, else an estimate by its size."""

from __future__ import annotations

import re

from voxstill.core.records import RATE_HZ
from voxstill.indexing.scan import SourceFile

LOSSLESS_BYTES_PER_S = RATE_HZ // 2
"""Fewer bytes hold a second of hardly any WAV or FLAC: telephone speech at 8 kHz in 8 bits, or 16 kHz in FLAC."""
LOSSY_BYTES_PER_S = 4_000
"""Of MP3, Opus or AAC at 32 kbit/s, which is low for speech."""
_LOSSLESS = re.compile(r"\.(wav|wave|w64|flac|aiff?|au|snd|sph|caf)\b", re.IGNORECASE)
_BYTE_RANGE = re.compile(r"#\d+\+(\d+)$")


def estimated_ms(file: SourceFile) -> float:
    """Milliseconds of audio, rather too many than too few: chunks of files are bounded by it.

    Audio that is stored at a higher rate is taken for longer. 0 where neither length nor size is known.
    """
    first = file.entries[0]
    stated = [ms for entry in file.entries for ms in (entry.duration_ms, entry.end_ms) if ms is not None]
    if stated:
        return max(stated)
    member = _BYTE_RANGE.search(first.uri)
    num_bytes = first.num_bytes if member is None else int(member[1])
    rate = LOSSLESS_BYTES_PER_S if _LOSSLESS.search(first.uri) else LOSSY_BYTES_PER_S
    return num_bytes / rate * 1000
