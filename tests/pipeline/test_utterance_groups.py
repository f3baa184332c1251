"""How many utterances a model is given at once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import pytest
from numpy.typing import NDArray

from voxstill.core.config import Segment
from voxstill.decoding.options import BATCH_MS, GPU_MS
from voxstill.pipeline.decode_ahead import Decoded
from voxstill.pipeline.utterance_groups import UtteranceGroups

MINUTES = [1, 25, *[1] * 12]
"""Of recordings."""


@pytest.mark.parametrize("batch_ms", [BATCH_MS, GPU_MS])
def test_a_model_is_given_a_whole_batch_and_no_more_of_a_recording_than_a_gpu_takes(batch_ms: int) -> None:
    given_ms: list[int] = []

    def run(samples: Sequence[NDArray[np.int16]], names: Sequence[str]) -> list[int]:
        given_ms.append(sum(len(samples_T) // 16 for samples_T in samples))
        return [len(samples_T) for samples_T in samples]

    segment = Segment(vad="never", max_ms=30_000)
    groups = UtteranceGroups(segment, run, batch_ms, cuts_silence=True)
    opened = (
        (f"r{number}", nullcontext(Decoded(np.zeros(minutes * 960_000, np.int16), is_silent=True)))
        for number, minutes in enumerate(MINUTES)
    )
    readings = list(groups.readings(opened))
    assert [reading.duration_ms for reading in readings] == [60_000 * minutes for minutes in MINUTES]
    assert [sum(num for *_, num in reading.outputs) for reading in readings] == [960_000 * num for num in MINUTES]
    cut_ms = 30_000  # less than the next utterance is missing
    assert GPU_MS - cut_ms < max(given_ms) <= GPU_MS
    assert all(num_ms > batch_ms - cut_ms for num_ms in given_ms[:-1])
