"""Recordings for a model: the next ones are decoded meanwhile, and the utterances of short ones share a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from voxstill.audio import vad
from voxstill.core import pcm
from voxstill.core.config import Segment
from voxstill.core.errors import VoxstillError
from voxstill.decoding.options import GPU_MS
from voxstill.pipeline.audio_input import in_one_line
from voxstill.pipeline.decode_ahead import Decoded

T = TypeVar("T")


@dataclass(slots=True)
class Reading(Generic[T]):
    """A recording that was read, or the `error` that says why not; what is wrong with it although it has audio.

    `outputs` has the start and the end of each utterance in milliseconds, and what the model gave for it, in order.
    """

    audio: str
    duration_ms: int | None = None
    is_silent: bool = False
    outputs: list[tuple[int, int, T]] = field(default_factory=list)
    error: str | None = None
    warning: str | None = None


@dataclass(frozen=True, slots=True)
class _Utterance(Generic[T]):
    reading: Reading[T]
    start_ms: int
    end_ms: int
    samples_T: NDArray[np.int16]


class UtteranceGroups(Generic[T]):
    """Gives a model the utterances of recordings, as many at once as make a batch of it.

    `run` takes their samples and names, and gives an output for each. A batch has at most `batch_ms` of audio, where
    each utterance counts as `window_ms` at least. Of a longer recording as much is in memory as a GPU takes at once, an
    utterance more or less. With `cuts_silence` recordings of zeros have utterances, too.
    """

    def __init__(
        self,
        segment: Segment,
        run: Callable[[Sequence[NDArray[np.int16]], Sequence[str]], Sequence[T]],
        batch_ms: int,
        window_ms: int = 0,
        *,
        cuts_silence: bool = False,
    ) -> None:
        self._segment, self._run, self._window_ms, self._cuts_silence = segment, run, window_ms, cuts_silence
        self.batch_ms = min(batch_ms, GPU_MS)
        """How much audio is to be decoded ahead."""

    def readings(self, recordings: Iterable[tuple[str, AbstractContextManager[Decoded]]]) -> Iterator[Reading[T]]:
        """What came of each recording, in order; they are those of `AudioReader.read_each`."""
        readings, group = list[Reading[T]](), list[_Utterance[T]]()
        for name, opened in recordings:
            readings.append(Reading(name))
            try:
                with opened as decoded:
                    self._add(group, readings[-1], decoded)
            except VoxstillError as error:
                readings[-1].error = in_one_line(error)
            # where nothing waits, as behind recordings without speech, nothing is kept back
            if not group or max(_duration_ms(group), len(group) * self._window_ms) >= self.batch_ms:
                self._take(group)
                yield from readings
                readings.clear()
        self._take(group)
        yield from readings

    def _add(self, group: list[_Utterance[T]], reading: Reading[T], decoded: Decoded) -> None:
        """Add the utterances of a recording to those that are given together, which are as many as fit."""
        samples_T = decoded.samples_T
        reading.duration_ms, reading.is_silent = pcm.samples_to_ms(len(samples_T)), decoded.is_silent
        reading.warning = decoded.warning
        is_cut = self._cuts_silence or not decoded.is_silent
        for start, end in vad.segment(samples_T, self._segment) if is_cut else ():
            if group and _duration_ms(group) + end - start > GPU_MS:
                self._take(group)
            utterance_T = samples_T[pcm.ms_to_samples(start) : pcm.ms_to_samples(end)]
            group.append(_Utterance(reading, start, end, utterance_T))

    def _take(self, group: list[_Utterance[T]]) -> None:
        """Give utterances of one recording or several to the model, and leave none in the group."""
        utterances = group.copy()
        group.clear()
        outputs = self._run(
            [utterance.samples_T for utterance in utterances],
            [f"{utterance.reading.audio}:{utterance.start_ms}" for utterance in utterances],
        )
        for utterance, output in zip(utterances, outputs, strict=True):
            utterance.reading.outputs.append((utterance.start_ms, utterance.end_ms, output))


def _duration_ms(group: Iterable[_Utterance[T]]) -> int:
    """How much audio they are."""
    return sum(utterance.end_ms - utterance.start_ms for utterance in group)
