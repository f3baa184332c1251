"""Errors of the process that decodes, as its answers carry them: of known kinds, and nothing but text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from voxstill.audio.codec import SilentError
from voxstill.core.errors import DataError, VoxstillError

_KINDS = {kind.__name__: kind for kind in (VoxstillError, DataError, SilentError)}


def of(error: Exception, limit_mb: int) -> VoxstillError:
    """What an exception of a decoder means."""
    if isinstance(error, VoxstillError):
        return error
    if isinstance(error, MemoryError):
        return DataError(
            "decoding needs too much memory", code="audio-damaged", why=f"more than {limit_mb} MB", fix="split it"
        )
    why = f"{type(error).__name__}: {error}"
    return DataError("cannot be decoded", code="audio-damaged", why=why, fix="remove the file, or repair it")


def unanswered(end: str, why: str) -> DataError:
    """What it means that a decoder hung or crashed: no answer came."""
    return DataError(f"decoding {end}", code="audio-damaged", why=why, fix="remove the file, or repair it")


def packed(error: VoxstillError) -> Mapping[str, object]:
    """The error as a part of an answer."""
    return {"error": [type(error).__name__, error.what, error.code, error.why, error.fix]}


def unpacked(texts: Sequence[object]) -> VoxstillError:
    """The error of `packed`; KeyError, TypeError or ValueError if it is none."""
    kind, what, code, why, fix = texts
    if not re.fullmatch(r"[a-z-]*", str(code)):  # it is shown in a command that people copy
        raise ValueError("no code of an error")
    return _KINDS[str(kind)](str(what), code=str(code), why=str(why), fix=str(fix))
