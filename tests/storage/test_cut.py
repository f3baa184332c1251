"""Chunks of utterances: bounded by number and by audio, and recordings stay whole where they can."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from voxstill.core.config import Engine
from voxstill.storage.cut import cut

HOUR_MS = 3_600_000


def lengths(recordings: list[str], durations_ms: list[int], cfg: Engine) -> list[int]:
    return [rows.stop - rows.start for rows in cut(recordings, durations_ms, cfg)]


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 30)), max_size=12), st.integers(1, 10), st.integers(1, 100)
)
@example([(2, 1)], 2, 2)  # 2 ms in hours and back are a little less than 2
def test_chunks_keep_to_both_limits_and_recordings_stay_whole_where_they_fit(
    sizes: list[tuple[int, int]], chunk: int, most_ms: int
) -> None:
    recordings = [f"r{number}" for number, (num, _) in enumerate(sizes) for _ in range(num)]
    durations_ms = [ms for num, ms in sizes for _ in range(num)]
    chunks = list(cut(recordings, durations_ms, Engine(chunk=chunk, chunk_hours=most_ms / HOUR_MS)))
    assert [row for rows in chunks for row in range(rows.start, rows.stop)] == list(range(len(recordings)))
    for rows in chunks:
        num, audio_ms = rows.stop - rows.start, sum(durations_ms[rows])
        assert num == 1 or (num <= chunk and audio_ms <= most_ms)
    for number, (num, ms) in enumerate(sizes):
        if num <= chunk and num * ms <= most_ms:
            assert sum(f"r{number}" in recordings[rows] for rows in chunks) == 1


def test_recordings_of_one_utterance_are_cut_by_number_as_in_earlier_versions() -> None:
    names = [f"r{number}" for number in range(600)]
    assert lengths(names, [30_000] * 600, Engine()) == [256, 256, 88]


def test_a_recording_is_in_as_few_chunks_as_it_needs() -> None:
    long = [name for name in "abc" for _ in range(400)]  # three hours each, in utterances of 27 s
    assert lengths(long, [27_000] * 1200, Engine()) == [256, 144, 256, 144, 256, 144]
    short = [f"r{number}" for number in range(32) for _ in range(40)]  # 16 minutes each
    assert lengths(short, [24_000] * 1280, Engine()) == [240] * 5 + [80]
    assert lengths(["r"] * 800, [27_000] * 800, Engine(chunk=1000)) == [533, 267]  # six hours, four of them at once
