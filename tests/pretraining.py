"""One step of pre-training in voxstill and in transformers' own model: the same masks, negatives and noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from voxstill.core.config import Pretrain
from voxstill.nn import contrastive, self_supervised
from voxstill.nn.log_mel import frame_mask

LENGTH, TEMPERATURE = 10, 2.0


@dataclass(frozen=True)
class StepInputs:
    samples_BT: Tensor
    len_B: Tensor
    num_B: Tensor
    hidden_BF: Tensor
    place_BM: Tensor
    own_BM: Tensor
    negative_BMK: Tensor
    noise_BFGV: Tensor | None


def random_audio(seconds: Sequence[float], seed: int = 0) -> tuple[Tensor, Tensor]:
    len_B = torch.tensor([int(duration_s * 16_000) for duration_s in seconds])
    samples_BT = torch.randn(len(len_B), int(len_B.max()), generator=torch.Generator().manual_seed(seed))
    return samples_BT * frame_mask(len_B, samples_BT.shape[1]), len_B


def draw_step(model: Any, audio: tuple[Tensor, Tensor], cfg: Pretrain, *, noisy: bool, seed: int = 0) -> StepInputs:
    """The random draws for a batch; noise for every frame, as the model of transformers wants it."""
    samples_BT, len_B = audio
    generator = torch.Generator().manual_seed(seed)
    frames_B = model._get_feat_extract_output_lengths(len_B)
    num_B = contrastive.num_masked(frames_B, 0.65, LENGTH, cfg.min_masks)
    hidden_BF = contrastive.draw_mask(frames_B, num_B, LENGTH, generator)
    place_BM, own_BM = contrastive.masked_positions(hidden_BF, num_B)
    negative_BMK = contrastive.negatives(num_B, cfg.negatives, generator)
    book = model.quantizer
    shape = (*hidden_BF.shape, book.num_groups, book.num_vars)
    noise_BFGV = contrastive.gumbel(shape, generator) if noisy else None
    return StepInputs(samples_BT, len_B, num_B, hidden_BF, place_BM, own_BM, negative_BMK, noise_BFGV)


def gathered(model: Any, step: StepInputs, divided_by: int = 1) -> Tensor:
    """The loss of voxstill: a sum, divided by `divided_by`."""
    noise_BMGV = None
    if step.noise_BFGV is not None:
        wide = step.noise_BFGV.shape[2:]
        noise_BMGV = step.noise_BFGV.gather(1, step.place_BM[:, :, None, None].expand(-1, -1, *wide))
    predicted_BMD, targets_BMD, code_BM, probs_BMGV = self_supervised.contrastive_outputs(
        model, step.samples_BT, step.len_B, step.hidden_BF, step.place_BM, noise_BMGV, TEMPERATURE
    )
    config, weight_BM = model.config, step.own_BM.float()
    likeness = config.contrastive_logits_temperature
    loss_BM, *_ = contrastive.info_nce(predicted_BMD, targets_BMD, code_BM, step.negative_BMK, likeness)
    unused = 1 - contrastive.perplexity(probs_BMGV, weight_BM) / probs_BMGV[0, 0].numel()
    loss: Tensor = (loss_BM * weight_BM).sum() + config.diversity_loss_weight * unused * weight_BM.sum()
    return loss / divided_by


def peer_of(model: Any) -> Any:
    """The model of transformers with the same weights."""
    from transformers import Wav2Vec2ForPreTraining

    reference: Any = Wav2Vec2ForPreTraining(model.config)
    reference.load_state_dict(model.state_dict())
    return reference


def peer_loss(model: Any, step: StepInputs) -> Tensor:
    """The loss of transformers' model, a sum, with the noise of `step`."""
    num, frames = step.hidden_BF.shape
    negative_BFK = torch.zeros(num, frames, step.negative_BMK.shape[2], dtype=torch.long)
    for b, count in enumerate(step.num_B.tolist()):
        place_M = step.place_BM[b, :count]
        negative_BFK[b, place_M] = place_M[step.negative_BMK[b, :count]] + b * frames
    drawn = torch.Tensor.exponential_
    if step.noise_BFGV is not None:
        noise = step.noise_BFGV

        def known(into: Tensor, *_: Any, **__: Any) -> Tensor:
            return into.copy_((-noise).exp().view_as(into))

        torch.Tensor.exponential_ = known  # type: ignore[method-assign, assignment]
    try:
        loss: Tensor = model(
            step.samples_BT,
            attention_mask=frame_mask(step.len_B, step.samples_BT.shape[1]).long(),
            mask_time_indices=step.hidden_BF,
            sampled_negative_indices=negative_BFK,
        ).loss
    finally:
        torch.Tensor.exponential_ = drawn  # type: ignore[method-assign]
    return loss
