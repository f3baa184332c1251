"""Write a tar again from its sidecar: every byte of it follows from that and from the audio."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Mapping, Sequence

from voxstill.storage import shard_format
from voxstill.storage.shard_format import Sample

Audio = Mapping[str, bytes | memoryview]
"""The encoded audio of samples by their ids."""


def rebuilt(data: bytes, samples: Sequence[Sample], read: Callable[[Sequence[Sample]], Audio]) -> bytes | None:
    """The tar that the samples were written as, from what is left of it.

    `read` gives the audio of those whose own has another checksum, or fewer. None where it is not the tar that was
    written: audio is missing, the sidecar has no checksums (version 0.1), or that version wrote other fields.
    """
    view = memoryview(data)
    own = {sample.id: view[sample.offset : sample.offset + sample.num_bytes] for sample in samples}
    broken = [sample for sample in samples if not is_audio_of(sample, own[sample.id])]
    audio = {**own, **(read(broken) if broken else {})}
    if not all(is_audio_of(sample, audio[sample.id]) for sample in broken):
        return None
    file = io.BytesIO()
    rows = shard_format.write(file, ((sample, bytes(audio[sample.id])) for sample in samples))
    return file.getvalue() if rows == list(samples) else None


def is_audio_of(sample: Sample, audio: bytes | memoryview) -> bool:
    """Whether this is the audio that a sample was written with."""
    return len(audio) == sample.num_bytes and sample.crc32 == zlib.crc32(audio)
