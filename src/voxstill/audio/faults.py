"""What is wrong with a file, by what its decoder gave and what its header states."""

from __future__ import annotations

from voxstill.audio import ogg, wav
from voxstill.audio.byte_source import ByteSource
from voxstill.audio.mono import MonoResampler
from voxstill.core.errors import DataError

INCOMPLETE = ("truncated", "damaged")
"""Faults of files that hold some of their audio."""
_STRAY_BYTES = 256  # allowed after the data of a WAV: padding of some writers, 8 ms if it were audio


def no_audio(why: str) -> DataError:
    """The error of a file without a sample."""
    return DataError("no audio", code="audio-empty", why=why, fix="remove the file")


def damaged(why: str) -> DataError:
    """The error of a file of which something cannot be decoded."""
    return DataError("damaged", code="audio-damaged", why=why, fix="get an intact copy of the file")


def decode_fault(codec: str, mono: MonoResampler, error: Exception) -> DataError:
    """The error of a decoder that stopped: the file is no audio where it found no `codec`, else damaged there."""
    message = (str(error).splitlines() or [""])[0].partition(">: ")[2] or getattr(error, "strerror", "") or str(error)
    if not codec:
        return DataError("not audio", code="not-audio", why=message, fix="remove the file, or convert it")
    decoded_s = mono.num_samples / mono.rate_hz if mono.rate_hz else 0.0
    return damaged(f"after {decoded_s:.2f} s: {message}")


def page_fault(data: ByteSource, mono: MonoResampler) -> DataError | None:
    """The error of an Ogg file that ends in the middle of a page; else None."""
    if not ogg.is_cut_off(data):
        return None
    decoded_s = mono.num_samples / mono.rate_hz if mono.rate_hz else 0.0
    why = f"{decoded_s:.2f} s found, and its last page is cut off"
    return DataError("truncated", code="audio-damaged", why=why, fix="get a complete copy of the file")


def length_fault(data: ByteSource, mono: MonoResampler, stated_s: float | None) -> DataError | None:
    """The error of a file with fewer samples than its header states, or with data after them; else None."""
    decoded_s = mono.num_samples / mono.rate_hz if mono.rate_hz else 0.0
    slack_s = 0.0
    if (chunk := wav.data_chunk(data)) is not None:
        if chunk.num_unexplained > max(_STRAY_BYTES, chunk.num_present // 100):
            why = f"its header says {decoded_s:.2f} s, and {chunk.num_unexplained} unexplained bytes follow"
            return DataError("damaged", code="audio-damaged", why=why, fix="repair the header")
        if chunk.num_present >= chunk.num_stated:
            return None
        if not chunk.num_present:
            why = f"0.00 s found, {chunk.num_stated} bytes promised"
            return DataError("truncated", code="audio-damaged", why=why, fix="get a complete copy of the file")
        stated_s = decoded_s * chunk.num_stated / chunk.num_present
    elif mono.header is not None and mono.header.num_samples is not None:
        stated_s = mono.header.num_samples / max(1, mono.rate_hz or mono.header.rate_hz)
    elif stated_s is not None:
        slack_s = max(0.1, 0.01 * stated_s)
    if stated_s is None or decoded_s >= stated_s - slack_s:
        return None
    return DataError(
        "truncated",
        code="audio-damaged",
        why=f"{decoded_s:.2f} s found, {stated_s:.2f} s promised",
        fix="get a complete copy of the file",
    )
