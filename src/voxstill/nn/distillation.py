"""Losses by which a student learns from a finished model: of its outputs and of its hidden layers, in fp32."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from voxstill.nn.losses import NEVER, Lattice, sum_own_frames


def of_frames(
    logits_BFV: Tensor, frames_B: Tensor, teacher_BFV: Tensor, teacher_frames_B: Tensor, temperature: float
) -> Tensor:
    """Divergence of the student's frames from those of a teacher (B,), in fp32, summed over the student's own frames.

    Frames are matched as `at_frames` does.
    """
    matched_BFV = at_frames(teacher_BFV, teacher_frames_B, logits_BFV.shape[1], frames_B)
    return sum_own_frames(divergence(logits_BFV, matched_BFV, temperature), frames_B)


def at_frames(teacher_BFX: Tensor, teacher_frames_B: Tensor, num_frames: int, frames_B: Tensor) -> Tensor:
    """What a teacher says at `num_frames` frames of a student (B, F, X): that of its frame in which their middle lies.

    Both have `frames_B` frames of their own for the same audio; what lies beyond those is padding.
    """
    middle_BF = torch.arange(num_frames, device=frames_B.device)[None] + 0.5
    frame_BF = (middle_BF * (teacher_frames_B / frames_B.clamp(min=1))[:, None]).long()
    last_B = (teacher_frames_B - 1).clamp(min=0, max=teacher_BFX.shape[1] - 1)
    frame_BF = torch.minimum(frame_BF, last_B[:, None])
    return teacher_BFX.gather(1, frame_BF[..., None].expand(-1, -1, teacher_BFX.shape[-1]))


def of_layer(state_BFE: Tensor, frames_B: Tensor, teacher_BFE: Tensor, teacher_frames_B: Tensor) -> Tensor:
    """Distance of the hidden states of a layer from those of a teacher's (B,), in fp32, summed over own frames.

    The mean square of the difference, where the values of each frame have first been brought to zero mean and unit
    deviation: 0 where they agree, 2 where they have nothing in common. Layers differ by orders of magnitude, so targets
    are normalised, as in data2vec (Baevski et al. 2022). Frames are matched as `at_frames` does; those beyond what a
    teacher takes, a Whisper 30 s, do not count. The teacher gets no gradient.
    """
    matched_BFE = at_frames(teacher_BFE.detach(), teacher_frames_B, state_BFE.shape[1], frames_B)
    one_BFE, other_BFE = (functional.layer_norm(x.float(), x.shape[-1:]) for x in (state_BFE, matched_BFE))
    known_B = torch.minimum(frames_B, frames_B * teacher_BFE.shape[1] // teacher_frames_B.clamp(min=1))
    return sum_own_frames((one_BFE - other_BFE).square().mean(-1), known_B)


def divergence(logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """KL(teacher || student) over the last axis, both at a `temperature`, times its square, in fp32.

    Hinton et al. 2015, "Distilling the knowledge in a neural network", section 2: the square keeps the size of the
    gradients. The teacher gets no gradient.
    """
    log_probs = functional.log_softmax(logits.float() / temperature, dim=-1)
    teacher_log_probs = functional.log_softmax(teacher_logits.detach().float() / temperature, dim=-1)
    return functional.kl_div(log_probs, teacher_log_probs, reduction="none", log_target=True).sum(-1) * temperature**2


def of_lattice(lattice: Lattice, teacher: Lattice, frames_B: Tensor, token_len_B: Tensor, temperature: float) -> Tensor:
    """Divergence of a transducer's lattice from that of a teacher (B,), in fp32; both have the same frames.

    At each node the distribution is collapsed to three: the blank, the next token of the text, and all others
    (Panchapagesan et al. 2021, "Efficient knowledge distillation for RNN-transducer models"). That of the
    durations of a TDT is added. It is the mean over u and the sum over own frames, so that it is one value a frame, as
    the divergence of CTC is.
    """
    node_BFU = divergence(_collapsed(lattice, token_len_B), _collapsed(teacher, token_len_B), temperature)
    if len(lattice.duration_DBFU):
        one_BFUD, other_BFUD = (values.duration_DBFU.movedim(0, -1) for values in (lattice, teacher))
        node_BFU = node_BFU + divergence(one_BFUD, other_BFUD, temperature)
    is_own_BU = torch.arange(node_BFU.shape[2], device=frames_B.device)[None] <= token_len_B[:, None]
    frame_BF = torch.where(is_own_BU[:, None], node_BFU, 0).sum(2) / (token_len_B + 1)[:, None]
    return sum_own_frames(frame_BF, frames_B)


def _collapsed(lattice: Lattice, token_len_B: Tensor) -> Tensor:
    """Log-probabilities of the blank, the next token and the rest (B, F, U, 3); after the last token there is no next
    one, and all but the blank are the rest."""
    blank_BFU, label_BFU = lattice.moves_2BFU
    assert lattice.rest_BFU is not None
    is_end_BU = torch.arange(blank_BFU.shape[2], device=token_len_B.device)[None] >= token_len_B[:, None]
    rest_BFU = torch.where(is_end_BU[:, None], torch.logaddexp(lattice.rest_BFU, label_BFU), lattice.rest_BFU)
    label_BFU = torch.where(is_end_BU[:, None], NEVER, label_BFU)
    return torch.stack([blank_BFU, label_BFU, rest_BFU], dim=-1)
