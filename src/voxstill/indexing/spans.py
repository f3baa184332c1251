"""The stretch of a recording that an entry of the source means, and the utterances that it is cut into."""

from __future__ import annotations

from dataclasses import replace

from voxstill.audio import codec, vad
from voxstill.core import pcm
from voxstill.core.config import Segment
from voxstill.core.errors import DataError
from voxstill.indexing.failure import FailureKind
from voxstill.indexing.formats.entry import SourceEntry

_CONTRADICTION_MS = 500  # a manifest whose lengths are further off describes other audio
_TOLERANCE_MS = 250  # a manifest may round up this much past the end of the audio


def placed(entry: SourceEntry, duration_ms: int) -> SourceEntry:
    """The entry with the stretch that the description of a sample means.

    Audio that is as long as the stretch was cut from a longer recording, as in most data sets, and is meant as a whole.
    So is audio that ends before a stretch without an end begins.
    """
    if entry.sample_ms is None:
        return entry
    start, end = entry.sample_ms
    if end is None:
        is_cut_out = (start or 0) >= duration_ms
    else:
        is_cut_out = abs(end - (start or 0) - duration_ms) <= _CONTRADICTION_MS
    return entry if is_cut_out else replace(entry, start_ms=start, end_ms=end)


def span_of(entry: SourceEntry, duration_ms: int) -> vad.Span:
    """What an entry means of its file; where that lies past its end, the manifest describes other audio."""
    start, end = entry.start_ms or 0, duration_ms if entry.end_ms is None else entry.end_ms
    if start >= duration_ms or end > duration_ms + _TOLERANCE_MS:
        why = f"the manifest says {start} to {end} ms, the audio ends at {duration_ms} ms"
        raise DataError(FailureKind.BEYOND_END, code="not-in-audio", why=why)
    if entry.duration_ms is not None and abs(entry.duration_ms - duration_ms) > _CONTRADICTION_MS:
        why = f"{entry.duration_ms / 1000:g} s in the manifest, {duration_ms / 1000:g} s of audio: of another file?"
        raise DataError(FailureKind.CONTRADICTED, code="not-in-audio", why=why)
    return start, min(end, duration_ms)


def cut(entry: SourceEntry, audio: codec.Audio, span: vad.Span, cfg: Segment) -> list[vad.Span]:
    """Cut a span into utterances: it is one where the manifest cut it and it is short enough, else the VAD decides."""
    start, end = span
    if entry.is_cut and end - start <= cfg.max_ms:
        return [span]
    samples_T = audio.samples_T[pcm.ms_to_samples(start) : pcm.ms_to_samples(end)]
    return [(start + left, start + right) for left, right in vad.segment(samples_T, cfg)]
