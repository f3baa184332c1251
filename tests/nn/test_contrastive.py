"""Masks, negatives, and the loss of wav2vec 2.0 compared with that of `transformers`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints import write_waveform_checkpoint
from pretraining import draw_step, gathered, peer_loss, peer_of, random_audio
from voxstill.core.config import Pretrain
from voxstill.core.errors import ConfigError
from voxstill.nn import contrastive, self_supervised

PLAIN = Pretrain(size="tiny", dropout=0.0, layer_drop=0.0, feature_gradient=1.0)


@settings(max_examples=50, deadline=None)
@given(
    frames=st.lists(st.integers(0, 400), min_size=1, max_size=5),
    prob=st.floats(0.05, 1.0),
    length=st.integers(1, 12),
    least=st.integers(1, 3),
    seed=st.integers(0, 9),
)
def test_masks_cover_as_many_own_frames_as_their_number_says(
    frames: list[int], prob: float, length: int, least: int, seed: int
) -> None:
    frames_B = torch.tensor([max(1, *frames), *frames])
    num_B = contrastive.num_masked(frames_B, prob, length, least)
    assert num_B.tolist() == contrastive.num_masked(frames_B.numpy(), prob, length, least).tolist()
    assert all(n == 0 or max(2, least * length) <= n <= f - length for n, f in zip(num_B, frames_B, strict=True))
    hidden_BF = contrastive.draw_mask(frames_B, num_B, length, torch.Generator().manual_seed(seed))
    assert hidden_BF.shape == (len(frames_B), int(frames_B.max()))
    assert hidden_BF.sum(1).tolist() == num_B.tolist()
    for row, own in zip(hidden_BF, frames_B.tolist(), strict=True):
        assert not row[own:].any()
        edges = torch.diff(row.int(), prepend=torch.zeros(1), append=torch.zeros(1)).nonzero()[:, 0]
        assert (edges.diff()[::2] < length).sum() <= 1  # the last span is cut short, all others are whole


def test_about_as_many_frames_are_masked_as_in_the_paper() -> None:
    assert contrastive.num_masked(499, 0.65, 10, 2) / 499 == pytest.approx(0.49, abs=0.005)
    frames_B = torch.full((400,), 200)
    num_B = contrastive.num_masked(frames_B, 0.65, 10, 2)
    hidden_BF = contrastive.draw_mask(frames_B, num_B, 10, torch.Generator().manual_seed(0))
    share_F = hidden_BF.float().mean(0)
    assert share_F[20:-20].std() < 0.04  # no place is preferred
    assert share_F[20:-20].mean() == pytest.approx(0.49, abs=0.03)


def test_negatives_are_other_masked_frames_each_as_likely() -> None:
    num_B = torch.tensor([7, 2, 5])
    negative_BMK = contrastive.negatives(num_B, 6000, torch.Generator().manual_seed(0))
    for negative_MK, num in zip(negative_BMK, num_B.tolist(), strict=True):
        for place, negative_K in enumerate(negative_MK[:num]):
            count_N = torch.bincount(negative_K, minlength=num)
            assert len(count_N) == num
            assert count_N[place] == 0
            others_N = torch.cat([count_N[:place], count_N[place + 1 :]]).float()
            assert (others_N / 6000).sub(1 / (num - 1)).abs().max() < 0.04


@pytest.mark.parametrize("training", [True, False])
def test_loss_and_gradients_are_those_of_transformers(training: bool) -> None:
    model = self_supervised.wav2vec2(PLAIN, seed=0).train(training)
    reference = peer_of(model).train(training)
    step = draw_step(model, random_audio([4.0, 3.0, 2.0]), PLAIN, noisy=training)
    expected = peer_loss(reference, step)
    loss = gathered(model, step)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-4)
    expected.backward()  # type: ignore[no-untyped-call]
    loss.backward()  # type: ignore[no-untyped-call]
    same_gradients(reference, model)


def same_gradients(reference: Any, model: Any) -> None:
    """Equal to a thousandth of each weight's gradient, or to rounding noise."""
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    expected = {name: weight.grad for name, weight in reference.named_parameters() if weight.grad is not None}
    assert gradients.keys() == expected.keys()
    noise = 1e-6 * max(
        float(gradient.norm()) for gradient in expected.values()
    )  # a bias of keys has no gradient but rounding
    for name, gradient in expected.items():
        assert float((gradients[name] - gradient).norm()) <= 1e-3 * float(gradient.norm()) + noise, name


def test_a_negative_of_the_same_code_does_not_count_and_is_no_success() -> None:
    predicted_BMD = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
    code_BM = torch.tensor([[3, 3, 5]])
    negative_BMK = torch.tensor([[[1, 1], [0, 2], [0, 1]]])
    loss_BM, right_BM, chance_BM = contrastive.info_nce(predicted_BMD, predicted_BMD, code_BM, negative_BMK, 0.1)
    assert loss_BM[0, 0] == 0  # nothing to tell it from
    assert loss_BM[0, 1] == pytest.approx(np.log1p(np.exp(-10)), abs=1e-6)
    assert right_BM.tolist() == [[False, True, True]]
    assert chance_BM.tolist() == [[1.0, 0.5, 0.5]]


def test_codes_are_not_rounded_in_half_precision() -> None:
    codebook_GVD = torch.randn(2, 8, 5)
    with torch.autocast("cpu", torch.bfloat16):
        vectors_BMD, code_BM, _ = contrastive.quantized(torch.randn(1, 6, 2, 8), codebook_GVD, None, 2.0)
    for vector_D, code in zip(vectors_BMD[0], code_BM[0].tolist(), strict=True):
        assert torch.equal(vector_D, torch.cat([codebook_GVD[0, code % 8], codebook_GVD[1, code // 8]]))


def test_perplexity_is_the_number_of_codes_in_use() -> None:
    probs_BMGV = torch.nn.functional.one_hot(torch.tensor([[[0, 0], [1, 0], [2, 0], [3, 0], [9, 9]]]), 10).float()
    weight_BM = torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0]])
    assert float(contrastive.perplexity(probs_BMGV, weight_BM)) == pytest.approx(4 + 1)


def test_layers_are_left_out_in_training_and_their_gradients_are_zero() -> None:
    cfg = PLAIN.model_copy(update={"layer_drop": 0.99})
    model = self_supervised.wav2vec2(cfg, seed=0)
    torch.manual_seed(0)
    gathered(model, draw_step(model, random_audio([2.0]), cfg, noisy=True)).backward()  # type: ignore[no-untyped-call]
    norms = [sum(float(weight.grad.norm()) for weight in layer.parameters()) for layer in model.wav2vec2.encoder.layers]
    assert norms == [0.0] * 4
    assert all(weight.grad is not None for weight in model.parameters())


def test_the_gradient_of_the_convolutions_is_scaled_and_no_other() -> None:
    gradients = []
    for factor in (1.0, 0.25):
        model = self_supervised.wav2vec2(PLAIN.model_copy(update={"feature_gradient": factor}), seed=0)
        step = draw_step(model, random_audio([2.0]), PLAIN, noisy=True)
        gathered(model, step).backward()  # type: ignore[no-untyped-call]
        gradients.append({name: weight.grad for name, weight in model.named_parameters()})
    for name, gradient in gradients[0].items():
        factor = 0.25 if "feature_extractor" in name else 1.0
        assert torch.allclose(gradients[1][name], gradient * factor, rtol=1e-4, atol=1e-6), name


def test_a_checkpoint_goes_on_and_one_of_another_kind_is_refused(tmp_path: Any) -> None:
    folder = write_waveform_checkpoint(tmp_path / "w", "Wav2Vec2", head="ForPreTraining")
    cfg = PLAIN.model_copy(update={"checkpoint": str(folder)})
    model = self_supervised.wav2vec2(cfg, seed=0)
    assert model.config.hidden_size == 48
    step = draw_step(model, random_audio([2.0, 1.0]), cfg, noisy=False)
    alone = draw_step(model, random_audio([1.0]), cfg, noisy=False)
    assert gathered(model.eval(), step).isfinite()
    assert gathered(model, alone).isfinite()
    other = write_waveform_checkpoint(tmp_path / "h", "Hubert")
    with pytest.raises(ConfigError, match="hubert"):
        self_supervised.wav2vec2(PLAIN.model_copy(update={"checkpoint": str(other)}), seed=0)
