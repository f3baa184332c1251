"""A streaming student chunk by chunk is what it is on the whole utterance, and what `transformers` makes of chunks."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from numpy.typing import NDArray

from voxstill.core.config import CHUNKS_MS, lookahead
from voxstill.nn import chunks, students
from voxstill.nn.chunk_encoder import ChunkEncoder
from voxstill.nn.log_mel import LogMel
from voxstill.nn.mel import NUM_MELS, causal_output_frames

LOG_MEL = LogMel(normalization="none")


@pytest.fixture(scope="module")
def model() -> students.PreTrainedModel:
    """A new streaming student."""
    new = {"kind": "rnnt", "normalization": "none", "streaming": True}
    return students.build("tiny", 9, dropout=0.0, seed=0, **new).eval()  # type: ignore[arg-type]


def noise(num_samples: int, seed: int = 0) -> NDArray[np.int16]:
    draw = np.random.default_rng(seed)
    return (draw.normal(0, 1000, num_samples) * np.sin(np.arange(num_samples) / 3000)).astype(np.int16)


@torch.inference_mode()
def whole(model: students.PreTrainedModel, samples_T: NDArray[np.int16], chunk_ms: int) -> torch.Tensor:
    """Encoder states (F, P) of an utterance, by the chunked mask of `transformers`."""
    model.encoder.config.default_num_lookahead_tokens = lookahead(chunk_ms)
    features_BFD, frames_B = LOG_MEL(torch.from_numpy(samples_T)[None], torch.tensor([len(samples_T)]))
    no_tokens = torch.zeros(1, 0, dtype=torch.long)
    encoded_BFP, out_B, *_ = students.encode_and_predict(model, features_BFD, frames_B, no_tokens)
    return encoded_BFP[0, : int(out_B[0])]


@torch.inference_mode()
def in_chunks(model: students.PreTrainedModel, samples_T: NDArray[np.int16], chunk_ms: int, block: int) -> torch.Tensor:
    """The same of samples that come in blocks, with no sample read before it is there."""
    encoder, parts, chunk, end = ChunkEncoder(model, chunk_ms), [], 0, 0
    cache = encoder.start(1)
    while end < len(samples_T):
        end = min(end + block, len(samples_T))
        while chunks.is_ready(end, chunk, chunk_ms, is_last=end == len(samples_T)):
            mel_DW, num = chunks.window(samples_T[:end], chunk, chunk_ms, NUM_MELS)
            encoded_BPC, num_B, *after = encoder(torch.from_numpy(mel_DW)[None], torch.tensor([num]), *cache)
            cache = (after[0], after[1], after[2])
            parts.append(encoded_BPC[0, :, : int(num_B[0])].T)
            chunk += 1
    return torch.cat(parts)


@settings(max_examples=12, deadline=None)
@given(st.integers(160, 50_000), st.integers(1, 40_000), st.sampled_from(CHUNKS_MS))
@example(100_000, 777, 80)  # longer than the left context, and the second window begins before the audio, too
@example(100_000, 100_000, 1120)
@example(160, 160, 560)
def test_chunks_are_the_whole(model: students.PreTrainedModel, num_samples: int, block: int, chunk_ms: int) -> None:
    samples_T = noise(num_samples)
    block = max(block, num_samples // 60)
    expected_FP, encoded_FP = whole(model, samples_T, chunk_ms), in_chunks(model, samples_T, chunk_ms, block)
    assert len(encoded_FP) == len(expected_FP) == causal_output_frames(num_samples // 160)
    torch.testing.assert_close(encoded_FP, expected_FP, atol=1e-5, rtol=0)


@pytest.mark.parametrize("chunk_ms", CHUNKS_MS)
def test_streams_in_one_batch_may_be_at_any_place(model: students.PreTrainedModel, chunk_ms: int) -> None:
    samples_T, encoder = noise(60_000), ChunkEncoder(model, chunk_ms)
    windows = [torch.from_numpy(chunks.window(samples_T, i, chunk_ms, NUM_MELS)[0])[None] for i in range(3)]
    full = torch.tensor([chunks.window_frames(chunk_ms)])
    with torch.inference_mode():
        first = encoder(windows[0], full, *encoder.start(1))
        second = encoder(windows[1], full, *first[2:])
        pairs = zip(encoder.start(1), second[2:], strict=True)
        both = encoder(torch.cat([windows[0], windows[2]]), full.repeat(2), *(torch.cat(pair) for pair in pairs))
        third = encoder(windows[2], full, *second[2:])
    for row, alone in enumerate((first, third)):
        for tensor, expected in zip(both, alone, strict=True):
            torch.testing.assert_close(tensor[row : row + 1], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("chunk_ms", CHUNKS_MS)
def test_chunks_are_those_of_the_caches_of_transformers(model: students.PreTrainedModel, chunk_ms: int) -> None:
    ahead, samples_T = lookahead(chunk_ms), noise(60_000)
    features_BFD, _ = LOG_MEL(torch.from_numpy(samples_T)[None], torch.tensor([len(samples_T)]))
    states, kv, padding, at = [], None, None, 0
    with torch.inference_mode():
        while at < features_BFD.shape[1]:
            step = 8 * (ahead + 1) if at else 8 * ahead + 1
            if at + step > features_BFD.shape[1]:
                break
            output = model.get_audio_features(
                input_features=features_BFD[:, at : at + step],
                past_key_values=kv,
                padding_cache=padding,
                use_cache=True,
                num_lookahead_tokens=ahead,
                output_attention_mask=False,
            )
            kv, padding, at = output.past_key_values, output.padding_cache, at + step
            states.append(output.pooler_output[0])
    expected_FP = torch.cat(states)
    encoded_FP = in_chunks(model, samples_T, chunk_ms, 10_000)[: len(expected_FP)]
    torch.testing.assert_close(encoded_FP, expected_FP, atol=1e-5, rtol=0)


def test_a_batch_of_the_training_hears_a_length_that_is_drawn(model: students.PreTrainedModel) -> None:
    features_BFD, frames_B = torch.randn(1, 200, NUM_MELS), torch.tensor([200])
    no_tokens = torch.zeros(1, 0, dtype=torch.long)
    model.train()
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(0)
        states = [students.encode_and_predict(model, features_BFD, frames_B, no_tokens)[0] for _ in range(40)]
    model.eval()
    assert len({float(state.sum()) for state in states}) == len(CHUNKS_MS)
