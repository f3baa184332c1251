from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from voxstill.audio import vad
from voxstill.core.config import Segment
from voxstill.core.errors import ConfigError

W = vad.WINDOW_MS
OPTIONS = st.builds(
    Segment,
    max_ms=st.integers(100, 5_000),
    min_ms=st.integers(1, 300),
    threshold=st.sampled_from([0.3, 0.5, 0.9]),
    min_silence_ms=st.integers(0, 500),
    pad_ms=st.integers(0, 400),
)
PROBS = st.lists(st.sampled_from([0.0, 0.2, 0.4, 0.6, 0.95]), max_size=300).map(lambda p: np.array(p, np.float32))


def assert_in_order(spans: list[vad.Span], duration_ms: int) -> None:
    edges = [0, *(edge for span in spans for edge in span), duration_ms]
    assert edges == sorted(edges)
    assert all(start < end for start, end in spans)


def recording(shared_data: Callable[[str], Path], num_files: int) -> NDArray[np.int16]:
    files = sorted((shared_data("librispeech-unlabelled-30") / "audio").iterdir())[:num_files]
    return np.concatenate([soundfile.read(path, dtype="int16")[0] for path in files])


@given(PROBS, OPTIONS, st.integers(0, W - 1))
@settings(deadline=None)
def test_spans_are_in_order_disjoint_and_hold_all_speech_that_is_long_enough(
    probs_W: NDArray[np.float32], cfg: Segment, missing_ms: int
) -> None:
    duration_ms = max(0, len(probs_W) * W - missing_ms)
    spans = vad.speech_segments(probs_W, cfg, duration_ms)
    assert_in_order(spans, duration_ms)
    covered = {ms for start, end in spans for ms in range(start, end)}
    speech = [w for w, prob in enumerate(probs_W) if prob >= np.float32(cfg.threshold)]
    runs = np.split(speech, np.flatnonzero(np.diff(speech) > 1) + 1) if speech else []
    for run in runs:
        start, end = int(run[0]) * W, min((int(run[-1]) + 1) * W, duration_ms)
        if end - start >= cfg.min_ms:
            assert covered.issuperset(range(start, end))


@given(st.lists(st.floats(0, 1, width=32), min_size=4, max_size=400), st.integers(100, 3_000), st.data())
@settings(deadline=None)
def test_cutting_loses_nothing_and_leaves_no_piece_too_long_nor_too_short(
    busy: list[float], max_ms: int, drawn: st.DataObject
) -> None:
    busy_W = np.array(busy, np.float32)
    edges = sorted(drawn.draw(st.sets(st.integers(0, len(busy) * W), min_size=2, max_size=6)))
    stretches = list(zip(edges[::2], edges[1::2], strict=False))
    pieces = vad.split_long(stretches, busy_W, max_ms)
    assert_in_order(pieces, len(busy) * W)
    assert sum(end - start for start, end in pieces) == sum(end - start for start, end in stretches)
    assert {start for start, _ in stretches} <= {start for start, _ in pieces}
    assert all(end - start <= max_ms for start, end in pieces)
    assert all(end - start >= max_ms // 4 or (start, end) in stretches for start, end in pieces)


@given(st.lists(st.tuples(st.integers(10, 60), st.integers(8, 20)), min_size=3, max_size=30))
@settings(deadline=None)
def test_a_cut_falls_into_a_pause_where_there_is_one(words_and_pauses: list[tuple[int, int]]) -> None:
    busy_W = np.concatenate([[0.9] * word + [0.05] * pause for word, pause in words_and_pauses]).astype(np.float32)
    duration_ms = len(busy_W) * W
    pieces = vad.split_long([(0, duration_ms)], busy_W, 100 * W)  # a word and its pauses are at most 80
    for _, end in pieces[:-1]:
        assert busy_W[end // W] < 0.5
        assert busy_W[end // W - 1] < 0.5


def test_a_pause_is_cut_in_its_middle() -> None:
    busy_W = np.array([0.9] * 50 + [0.0] * 5 + [0.9] * 50, np.float32)
    assert vad.split_long([(0, 105 * W)], busy_W, 70 * W)[0][1] in {52 * W, 53 * W}


def test_padding_meets_its_neighbour_in_the_middle() -> None:
    probs_W = np.array([0.9] * 10 + [0.0] * 10 + [0.9] * 10, np.float32)
    cfg = Segment(min_silence_ms=100, pad_ms=1000)
    assert vad.speech_segments(probs_W, cfg, 30 * W) == [(0, 15 * W), (15 * W, 30 * W)]


def test_the_sequence_network_equals_the_network_for_one_window(shared_data: Callable[[str], Path]) -> None:
    samples_T = recording(shared_data, 2)[: 16_000 * 20 + 77]
    got_W = vad.speech_probs(samples_T)
    path = Path(vad._session()._model_path).with_name("silero_vad.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    window_session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    state = np.zeros((2, 1, 128), np.float32)
    padded_T = np.pad(samples_T.astype(np.float32) / 32768, (64, -len(samples_T) % 512))
    for window, got in enumerate(got_W):
        input_T = padded_T[None, window * 512 : window * 512 + 576]
        want, state = window_session.run(None, {"input": input_T, "state": state, "sr": np.array(16_000)})
        assert got == pytest.approx(want[0, 0], abs=1e-6)


def test_real_speech_is_divided_and_none_of_it_lost(shared_data: Callable[[str], Path]) -> None:
    samples_T = recording(shared_data, 5)
    duration_ms = len(samples_T) // 16
    spans = vad.segment(samples_T, Segment(max_ms=10_000))
    assert_in_order(spans, duration_ms)
    assert all(end - start <= 10_000 for start, end in spans)
    energy_T = np.square(samples_T.astype(np.float64))
    kept = sum(energy_T[start * 16 : end * 16].sum() for start, end in spans)
    assert kept / energy_T.sum() > 0.99


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60)), max_size=12), st.integers(1, 100))
def test_packed_spans_hold_all_spans_and_are_as_few_as_can_be(
    pauses_and_lengths: list[tuple[int, int]], target_ms: int
) -> None:
    spans, at = [], 0
    for pause, length in pauses_and_lengths:
        spans.append((at + pause, at + pause + length))
        at += pause + length
    packed = vad.pack(spans, target_ms)
    assert all(sum(start <= left and right <= end for start, end in packed) == 1 for left, right in spans)
    assert {start for start, _ in packed} <= {start for start, _ in spans}
    assert {end for _, end in packed} <= {end for _, end in spans}
    assert all(end - start <= target_ms or (start, end) in spans for start, end in packed)
    fewest = [0]
    for last in range(len(spans)):
        firsts = [i for i in range(last + 1) if i == last or spans[last][1] - spans[i][0] <= target_ms]
        fewest.append(min(fewest[i] for i in firsts) + 1)
    assert len(packed) == fewest[-1]


def test_stretches_of_real_speech_are_packed_up_to_the_target(shared_data: Callable[[str], Path]) -> None:
    samples_T = recording(shared_data, 5)
    unpacked = vad.segment(samples_T, Segment(max_ms=20_000))
    packed = vad.segment(samples_T, Segment(max_ms=20_000, target_ms=20_000))
    assert packed == vad.pack(unpacked, 20_000)
    assert len(packed) < len(unpacked) / 2
    short_T = samples_T[: 16_000 * 15]  # not longer than `max_ms`
    assert vad.segment(short_T, Segment(max_ms=20_000, target_ms=1_000)) == [(0, 15_000)]


def test_without_the_detector_nothing_is_dropped(shared_data: Callable[[str], Path]) -> None:
    samples_T = recording(shared_data, 3)
    spans = vad.segment(samples_T, Segment(max_ms=7_000, vad="never"))
    assert_in_order(spans, len(samples_T) // 16)
    assert sum(end - start for start, end in spans) == len(samples_T) // 16
    assert max(end - start for start, end in spans) <= 7_000
    power_T = np.square(samples_T.astype(np.float64))
    around_cuts = [power_T[end * 16 - 256 : end * 16 + 256].mean() for _, end in spans[:-1]]
    assert max(around_cuts) < power_T.mean() / 10


def test_noise_and_silence_hold_no_speech() -> None:
    noise_T = np.random.default_rng(0).normal(0, 500, 16_000 * 4).astype(np.int16)
    assert vad.segment(noise_T, Segment(vad="always")) == []
    assert vad.segment(np.zeros(0, np.int16), Segment(vad="always")) == []


def test_the_detector_loads_no_torch() -> None:
    code = "import sys, numpy as np; from voxstill.audio import vad; vad.speech_probs(np.zeros(999, np.int16)); "
    code += "assert not {'torch', 'silero_vad'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_detector_is_many_times_faster_than_speech(shared_data: Callable[[str], Path]) -> None:
    samples_T = recording(shared_data, 3)
    vad.speech_probs(samples_T[:1000])
    start = time.process_time()
    vad.speech_probs(samples_T)
    assert len(samples_T) / 16_000 / (time.process_time() - start) > 60  # 400 on an idle core


def test_a_network_that_cannot_be_loaded_is_an_error_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/silero_vad_16k_sequence.onnx").write_bytes(b"torn")
    package = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: package)
    with pytest.raises(ConfigError, match="cannot be loaded") as caught:
        vad._session.__wrapped__()
    assert "torn" not in caught.value.why
    assert caught.value.why
