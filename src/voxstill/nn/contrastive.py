"""Learning without labels: what is hidden of an utterance, and how well it is told from other hidden parts of it.

As wav2vec 2.0 does it (Baevski et al. 2020, sections 3.2 and A.2), but only hidden frames are looked at, and the
likeness of each to each is one matrix product: gathering a hundred vectors for every frame costs fifty times as much.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional

_PARTS = 1 << 16  # in which the share of hidden frames is counted, so that hosts and devices agree on a number
_NEVER = 2.0  # later than any draw
_NO_LENGTH = 1e-8  # of transformers' cosine similarity


def num_hidden(frames: Any, prob: float, length: int, least: int) -> Any:
    """How many frames of so many are hidden: known from their number alone, so every rank knows it of all utterances.

    It is what spans of `length` frames hide in the mean, where each frame begins one with probability `prob / length`
    and spans may overlap, but no less than `least` spans that do not. 0 where less than a span would be left to hear.
    Whole numbers, arrays or tensors of any shape.
    """
    share = round((1 - (1 - prob / length) ** length) * _PARTS)
    few = max(least * length, 2)  # one alone has no negatives
    count = frames * share // _PARTS
    count = count + (few - count) * (count < few)
    return count * (count + length <= frames)


def hidden(frames_B: Tensor, num_B: Tensor, length: int, generator: Generator) -> Tensor:
    """(B, F) booleans, true for exactly `num_B` frames of each utterance, in spans of `length` that begin anywhere.

    Spans come in random order, over each other too, until so many frames are hidden; the last one is cut short.
    """
    num_frames = int(frames_B.max())
    starts = max(num_frames - length + 1, 1)
    turn_BS = torch.rand(len(frames_B), starts, generator=generator, device=generator.device)
    place_S = torch.arange(starts, device=generator.device)
    turn_BS = torch.where(place_S <= (frames_B - length)[:, None], turn_BS, _NEVER)
    # a frame is hidden by the first of the spans over it
    around_BS = functional.pad(-turn_BS, (length - 1, length - 1), value=-_NEVER)
    when_BF = -functional.max_pool1d(around_BS, length, stride=1)[:, :num_frames]
    order_BF = when_BF.argsort(dim=1, stable=True)
    first_BF = torch.arange(num_frames, device=num_B.device) < num_B[:, None]
    return torch.zeros_like(first_BF).scatter_(1, order_BF, first_BF)


def places(hidden_BF: Tensor, num_B: Tensor) -> tuple[Tensor, Tensor]:
    """Where the hidden frames are, in order (B, M), and which of these are an utterance's own: it may have fewer."""
    most = int(num_B.max())
    place_BM = (~hidden_BF).long().argsort(dim=1, stable=True)[:, :most]
    return place_BM, torch.arange(most, device=num_B.device) < num_B[:, None]


def negatives(num_B: Tensor, count: int, generator: Generator) -> Tensor:
    """(B, M, count) hidden frames of the same utterance, by their number among them, each as likely, never itself."""
    own_M = torch.arange(int(num_B.max()), device=generator.device)[:, None]
    others_B11 = (num_B - 1).clamp(min=1)[:, None, None]
    drawn_BMK = torch.rand(len(num_B), len(own_M), count, generator=generator, device=generator.device)
    other_BMK = torch.minimum((drawn_BMK * others_B11).long(), others_B11 - 1)
    return other_BMK + (other_BMK >= own_M)


def gumbel(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Noise that makes of the largest logit a draw (Jang et al. 2017)."""
    return -torch.empty(shape, device=generator.device).exponential_(generator=generator).log()


def quantized(
    logits_BMGV: Tensor, codebook_GVD: Tensor, noise_BMGV: Tensor | None, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Vectors of the codes that each frame has, one of each group (B, M, G * D), these codes (B, M) and the
    probabilities of all (B, M, G, V), in fp32.

    With noise it is a hard Gumbel softmax: one code forward, and backward the gradient of the softmax at that
    temperature. Without, the likeliest code, for which there is no gradient, and its probability is one.
    """
    logits_BMGV, (groups, size) = logits_BMGV.float(), codebook_GVD.shape[:2]
    if noise_BMGV is None:
        code_BMG = logits_BMGV.argmax(-1)
        probs_BMGV = chosen_BMGV = functional.one_hot(code_BMG, size).float()
    else:
        soft_BMGV = ((logits_BMGV + noise_BMGV) / temperature).softmax(-1)
        code_BMG = soft_BMGV.argmax(-1)
        chosen_BMGV = functional.one_hot(code_BMG, size) - soft_BMGV.detach() + soft_BMGV
        probs_BMGV = logits_BMGV.softmax(-1)
    with torch.autocast(logits_BMGV.device.type, enabled=False):  # else codes would be rounded
        vectors_BMGD = torch.einsum("bmgv,gvd->bmgd", chosen_BMGV, codebook_GVD.float())
    digit_G = size ** torch.arange(groups, device=code_BMG.device)
    return vectors_BMGD.flatten(2), (code_BMG * digit_G).sum(-1), probs_BMGV


def contrastive(
    predicted_BMD: Tensor,
    targets_BMD: Tensor,
    code_BM: Tensor,
    negative_BMK: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy of telling a frame's own target from its negatives, in fp32, where that was right, and the
    probability that it is by chance; all (B, M).

    Likeness is the cosine by `temperature`. A negative of the same code is the target itself and does not count; a
    frame that has no other is not right, whatever its loss. Negatives of one code are one to guess by chance.
    """
    predicted_BMD = functional.normalize(predicted_BMD.float(), dim=-1, eps=_NO_LENGTH)
    targets_BMD = functional.normalize(targets_BMD.float(), dim=-1, eps=_NO_LENGTH)
    like_BMM = predicted_BMD @ targets_BMD.transpose(1, 2) / temperature
    same_BMM = code_BM[:, :, None] == code_BM[:, None]
    others_BMK = like_BMM.masked_fill(same_BMM, -torch.inf).gather(2, negative_BMK)
    own_BM1 = like_BMM.diagonal(dim1=1, dim2=2)[..., None]
    loss_BM = torch.cat([own_BM1, others_BMK], dim=-1).logsumexp(-1) - own_BM1[..., 0]
    nearest_BM = others_BMK.detach().amax(-1)
    right_BM = (own_BM1.detach()[..., 0] > nearest_BM) & nearest_BM.isfinite()
    told_BMK = code_BM[:, None].expand_as(same_BMM).gather(2, negative_BMK)
    sorted_BMK = torch.cat([code_BM[..., None], told_BMK], dim=-1).sort(-1).values
    return loss_BM, right_BM, 1 / (1 + (sorted_BMK.diff(dim=-1) > 0).sum(-1))


def perplexity(probs_BMGV: Tensor, weight_BM: Tensor) -> Tensor:
    """How many codes are in use, of all groups together: the exponential of the entropy of their mean, weighted."""
    mean_GV = torch.einsum("bmgv,bm->gv", probs_BMGV, weight_BM / weight_BM.sum().clamp(min=1e-9))
    return (-torch.xlogy(mean_GV, mean_GV).sum(-1)).exp().sum()
