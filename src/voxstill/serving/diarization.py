"""Speakers of uploads: one recording after another through the engine of the section `diarize`, in a thread of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

from voxstill.audio import vad
from voxstill.core.config import Diarize
from voxstill.core.errors import VoxstillError
from voxstill.core.monitor import log
from voxstill.diarization.cutting import cut_at_turns
from voxstill.diarization.diarizer import Diarization, Diarizer
from voxstill.serving.errors import RequestError, in_one_line
from voxstill.serving.uploads import REQUEST_MS, DecodedUpload

UNKNOWN = "unknown"
"""The speaker of speech in which the engine finds nobody, as in an STM of labels."""


@dataclass(frozen=True, slots=True)
class SpeakerSpans:
    """Utterances in ms from the start of a recording with their speakers, and the doubt about these in words."""

    spans: Sequence[tuple[vad.Span, str | None]]
    warning: str | None = None


class UploadDiarizer:
    """An engine that is used by one request at a time; the others wait."""

    def __init__(self, section: Diarize, min_ms: int) -> None:
        self._diarizer, self._min_ms = Diarizer(section), min_ms
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="diarize")
        self._waiting_s: list[float] = []

    @classmethod
    def of(cls, section: Diarize, min_ms: int) -> Self | None:
        """The engine that the section names, not loaded; None where it names none."""
        return None if section.name is None else cls(section, min_ms)

    @property
    def waiting_s(self) -> float:
        """Seconds of audio that wait or are being diarized; of one recording at most `REQUEST_MS`."""
        return sum(self._waiting_s)

    async def load(self) -> None:
        """Load the engine; ConfigError where it cannot be."""
        await asyncio.wrap_future(self._thread.submit(self._diarizer.open))

    async def diarize(self, upload: DecodedUpload) -> SpeakerSpans:
        """The utterances of a recording cut at turns; RequestError where it cannot be diarized."""
        if not upload.spans_ms:
            return SpeakerSpans(())
        seconds = min(upload.duration_ms, REQUEST_MS) / 1000
        self._waiting_s.append(seconds)
        future = self._thread.submit(self._diarizer.diarize, upload.samples_T)
        diarizing = asyncio.wrap_future(future)
        try:
            diarization = await asyncio.shield(diarizing)
        except VoxstillError as error:
            log.error("serve: diarization has failed: %s", in_one_line(error))
            raise RequestError(500, "diarization has failed; see the log of the server") from None
        except asyncio.CancelledError:
            if not future.cancel():
                await asyncio.wait([diarizing])  # the engine still reads the samples
            raise
        finally:
            self._waiting_s.remove(seconds)
        if diarization.error is not None:
            raise RequestError(422, f"the recording cannot be diarized: {diarization.error}", param="file")
        return self._cut(upload.spans_ms, diarization)

    async def close(self) -> None:
        """Release the engine, when all requests were answered."""
        await asyncio.wrap_future(self._thread.submit(self._diarizer.close))
        self._thread.shutdown()

    def _cut(self, spans_ms: Sequence[vad.Span], diarization: Diarization) -> SpeakerSpans:
        pieces = [piece for span_ms in spans_ms for piece in cut_at_turns(diarization.turns, span_ms, self._min_ms)]
        spans = [(span_ms, UNKNOWN if number is None else letters(number)) for span_ms, number in pieces]
        return SpeakerSpans(spans, diarization.warning)


def letters(number: int) -> str:
    """A speaker's number, from 1 on, as OpenAI's API writes it: A to Z, then AA, AB and so on.

    >>> from voxstill.serving.diarization import letters
    >>> [letters(number) for number in (1, 26, 27)]
    ['A', 'Z', 'AA']
    """
    text = ""
    while number > 0:
        number, letter = divmod(number - 1, 26)
        text = chr(ord("A") + letter) + text
    return text
