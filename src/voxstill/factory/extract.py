"""The audio of utterances as their table says: all of it, or the reason why not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from voxstill.audio import codec
from voxstill.errors import DataError, VoxstillError
from voxstill.records import Utterance
from voxstill.store import read_uri


def samples(utterances: Sequence[Utterance]) -> Iterator[tuple[Utterance, NDArray[np.int16] | VoxstillError]]:
    """Each utterance once, with all of its 16 kHz samples or with the error that names what is wrong.

    A recording is read and decoded once for all of its utterances, which therefore follow one another; one recording
    is held at a time.
    """
    by_source: dict[tuple[str, int | None], list[Utterance]] = {}
    for each in utterances:
        by_source.setdefault((each.uri, each.channel), []).append(each)
    for (uri, channel), members in by_source.items():
        try:
            recording_T = codec.decode(read_uri(uri), channel=channel).samples_T
        except VoxstillError as error:
            yield from ((each, error) for each in members)
            continue
        yield from ((each, stretch(recording_T, each)) for each in members)


def stretch(recording_T: NDArray[np.int16], utterance: Utterance) -> NDArray[np.int16] | DataError:
    """The samples of an utterance, or DataError where the recording no longer has them all."""
    start, end = codec.ms_to_samples(utterance.start_ms), codec.ms_to_samples(utterance.end_ms)
    if len(recording_T) < end - codec.ms_to_samples(1):
        return DataError(
            "shorter than when it was indexed",
            why=f"{codec.samples_to_ms(len(recording_T))} ms are there and it ends at {utterance.end_ms} ms",
            fix="run `voxstill index` again",
        )
    return recording_T[start:end]
