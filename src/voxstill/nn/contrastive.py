"""Contrastive pre-training of wav2vec 2.0: masks, negatives, Gumbel quantisation and the loss.

After Baevski et al. 2020, sections 3.2 and A.2, but only masked frames are projected, and all similarities of an
utterance are one matrix product: gathering a hundred negative vectors for every frame costs fifty times as much.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn import functional

from voxstill.nn.mel import Counts

_SHARE_STEPS = 1 << 16  # a share is a whole number of these, so that hosts and devices compute equal counts
_AFTER_ALL_DRAWS = 2.0  # draws are below 1
_MIN_NORM = 1e-8  # as in transformers' cosine similarity


def num_masked(frames: Counts, prob: float, length: int, least: int) -> Counts:
    """Number of masked frames in an utterance of `frames`; without chance, so every rank can compute it for all ranks.

    The mean number that spans of `length` mask, where each frame begins one with probability `prob / length` and spans
    may overlap, but at least that of `least` spans without overlap; 0 where less than a span would stay unmasked.
    Takes whole numbers, arrays or tensors of any shape.
    """
    share = round((1 - (1 - prob / length) ** length) * _SHARE_STEPS)
    fewest = max(least * length, 2)  # a single one has no negatives
    count = frames * share // _SHARE_STEPS
    count = count + (fewest - count) * (count < fewest)
    return count * (count + length <= frames)


def draw_mask(frames_B: Tensor, num_B: Tensor, length: int, generator: Generator) -> Tensor:
    """Draw masks (B, F), true for exactly `num_B` frames of each utterance, in spans of `length` that may overlap.

    Spans come in random order until enough frames are masked; the last one is truncated.
    """
    num_frames = int(frames_B.max())
    starts = max(num_frames - length + 1, 1)
    draw_BS = torch.rand(len(frames_B), starts, generator=generator, device=generator.device)
    start_S = torch.arange(starts, device=generator.device)
    draw_BS = torch.where(start_S <= (frames_B - length)[:, None], draw_BS, _AFTER_ALL_DRAWS)
    # a frame is masked by the earliest of the spans over it
    padded_BS = functional.pad(-draw_BS, (length - 1, length - 1), value=-_AFTER_ALL_DRAWS)
    draw_BF = -functional.max_pool1d(padded_BS, length, stride=1)[:, :num_frames]
    order_BF = draw_BF.argsort(dim=1, stable=True)
    first_BF = torch.arange(num_frames, device=num_B.device) < num_B[:, None]
    return torch.zeros_like(first_BF).scatter_(1, order_BF, first_BF)


def masked_positions(hidden_BF: Tensor, num_B: Tensor) -> tuple[Tensor, Tensor]:
    """Indexes of the masked frames in order (B, M), and which of them are not padding (B, M)."""
    largest = int(num_B.max())
    index_BM = (~hidden_BF).long().argsort(dim=1, stable=True)[:, :largest]
    return index_BM, torch.arange(largest, device=num_B.device) < num_B[:, None]


def negatives(num_B: Tensor, count: int, generator: Generator) -> Tensor:
    """Draw negatives (B, M, count) for each masked frame: other masked frames of its utterance, by position in M."""
    index_M = torch.arange(int(num_B.max()), device=generator.device)[:, None]
    num_others_B11 = (num_B - 1).clamp(min=1)[:, None, None]
    draw_BMK = torch.rand(len(num_B), len(index_M), count, generator=generator, device=generator.device)
    negative_BMK = torch.minimum((draw_BMK * num_others_B11).long(), num_others_B11 - 1)
    return negative_BMK + (negative_BMK >= index_M)


def gumbel(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Gumbel noise: the argmax of logits with it is a sample of their softmax (Jang et al. 2017)."""
    return -torch.empty(shape, device=generator.device).exponential_(generator=generator).log()


def quantized(
    logits_BMGV: Tensor, codebook_GVD: Tensor, noise_BMGV: Tensor | None, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Product quantisation: code vectors (B, M, G * D), codes (B, M) and probabilities of all (B, M, G, V), in fp32.

    With noise it is a hard Gumbel softmax: one code of each group forward, and backward the gradient of the softmax at
    that temperature. Without noise it is the most likely code, without a gradient and with probability one.
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
    with torch.autocast(logits_BMGV.device.type, enabled=False):  # half precision would round the vectors
        vectors_BMGD = torch.einsum("bmgv,gvd->bmgd", chosen_BMGV, codebook_GVD.float())
    place_value_G = size ** torch.arange(groups, device=code_BMG.device)
    return vectors_BMGD.flatten(2), (code_BMG * place_value_G).sum(-1), probs_BMGV


def info_nce(
    predicted_BMD: Tensor,
    targets_BMD: Tensor,
    code_BM: Tensor,
    negative_BMK: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """InfoNCE loss of each masked frame, whether its target won, and the chance of a random guess; all (B, M), in fp32.

    Similarity is the cosine divided by `temperature`. A negative with the target's code does not count; a frame without
    any other negative is not correct, whatever its loss. For the chance, negatives of equal code count once.
    """
    predicted_BMD = functional.normalize(predicted_BMD.float(), dim=-1, eps=_MIN_NORM)
    targets_BMD = functional.normalize(targets_BMD.float(), dim=-1, eps=_MIN_NORM)
    similarity_BMM = predicted_BMD @ targets_BMD.transpose(1, 2) / temperature
    same_code_BMM = code_BM[:, :, None] == code_BM[:, None]
    negative_similarity_BMK = similarity_BMM.masked_fill(same_code_BMM, -torch.inf).gather(2, negative_BMK)
    target_BM1 = similarity_BMM.diagonal(dim1=1, dim2=2)[..., None]
    loss_BM = torch.cat([target_BM1, negative_similarity_BMK], dim=-1).logsumexp(-1) - target_BM1[..., 0]
    hardest_BM = negative_similarity_BMK.detach().amax(-1)
    correct_BM = (target_BM1.detach()[..., 0] > hardest_BM) & hardest_BM.isfinite()
    negative_code_BMK = code_BM[:, None].expand_as(same_code_BMM).gather(2, negative_BMK)
    sorted_BMK = torch.cat([code_BM[..., None], negative_code_BMK], dim=-1).sort(-1).values
    return loss_BM, correct_BM, 1 / (1 + (sorted_BMK.diff(dim=-1) > 0).sum(-1))


def perplexity(probs_BMGV: Tensor, weight_BM: Tensor) -> Tensor:
    """Code book perplexity: the exponential of the entropy of the weighted mean probabilities, summed over groups."""
    mean_GV = torch.einsum("bmgv,bm->gv", probs_BMGV, weight_BM / weight_BM.sum().clamp(min=1e-9))
    return (-torch.xlogy(mean_GV, mean_GV).sum(-1)).exp().sum()
