"""The encoder of a streaming student on one chunk of log-mels, with what it remembers of those before as tensors.

It computes what `NemotronAsrStreamingEncoder` of `transformers` computes of the whole utterance with its chunked mask,
and what that class computes chunk by chunk with caches of its own, but in a batch of streams at any place, and as one
graph that can be exported (Noroozi et al. 2024, "Stateful Conformer with cache-based inference for streaming automatic
speech recognition"). Inputs and outputs are those of NeMo's export, which sherpa-onnx knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from voxstill.nn import chunks
from voxstill.nn.mel import SUBSAMPLING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Cache = tuple[Tensor, Tensor, Tensor]
"""Keys and values (B, layers, left, 2 E), inputs of the convolutions (B, layers, E, K - 1), and how many output frames
of the former are of the stream (B,)."""
_LEAD = chunks.LEAD // SUBSAMPLING
"""Output frames of the window before those of the chunk."""
_MASKED = -1e30


class ChunkEncoder(nn.Module):
    """The encoder and the projection of a streaming student, for chunks of `chunk_ms`."""

    def __init__(self, model: PreTrainedModel, chunk_ms: int) -> None:
        super().__init__()
        self.encoder, self.projector = model.encoder, model.encoder_projector
        self.num_out = chunks.num_output_frames(chunk_ms)
        self.left = self.encoder.config.sliding_window - 1

    def start(self, num: int) -> Cache:
        """The cache of so many streams before their first chunk."""
        config = self.encoder.config
        layers, width = config.num_hidden_layers, config.hidden_size
        like = self.projector.weight
        return (
            like.new_zeros(num, layers, self.left, 2 * width),
            like.new_zeros(num, layers, width, config.conv_kernel_size - 1),
            torch.zeros(num, dtype=torch.long, device=like.device),
        )

    def forward(
        self, mel_BDF: Tensor, frames_B: Tensor, kv_BLCE: Tensor, conv_BLEK: Tensor, cached_B: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Encode the next window of each stream.

        `mel_BDF` begins 16 frames before the chunk, of which those before the audio are not read. `frames_B` are those
        of the audio, these 16 among them: fewer than the window only at the end. Returns states (B, P, C), how many of
        them are of the audio (B,), and the cache for the next window.
        """
        hidden_BCE, valid_B = self._subsample(mel_BDF, frames_B, cached_B)
        place_T = torch.arange(self.left + self.num_out, device=mel_BDF.device) - self.left
        readable_BT = (place_T >= -cached_B[:, None]) & (place_T < valid_B[:, None])
        positions = self.encoder.encode_positions(hidden_BCE[:1], cached_frames=self.left)
        next_kv, next_conv = [], []
        for i, layer in enumerate(self.encoder.layers):
            hidden_BCE = hidden_BCE + 0.5 * layer.feed_forward1(layer.norm_feed_forward1(hidden_BCE))
            attended_BCE, kv = self._attend(layer, hidden_BCE, kv_BLCE[:, i], readable_BT, positions)
            hidden_BCE = hidden_BCE + attended_BCE
            convolved_BCE, conv = _convolve(layer.conv, layer.norm_conv(hidden_BCE), conv_BLEK[:, i])
            hidden_BCE = hidden_BCE + convolved_BCE
            hidden_BCE = hidden_BCE + 0.5 * layer.feed_forward2(layer.norm_feed_forward2(hidden_BCE))
            hidden_BCE = layer.norm_out(hidden_BCE)
            next_kv.append(kv)
            next_conv.append(conv)
        encoded_BPC = self.projector(hidden_BCE).transpose(1, 2)
        cached_B = torch.clamp(cached_B + self.num_out, max=self.left)
        return encoded_BPC, valid_B, torch.stack(next_kv, 1), torch.stack(next_conv, 1), cached_B

    def _subsample(self, mel_BDF: Tensor, frames_B: Tensor, cached_B: Tensor) -> tuple[Tensor, Tensor]:
        """Output frames of the chunk before the first layer (B, C, E), and how many are of the audio (B,).

        What comes before the audio and after it is zero for each convolution, as where it is padded.
        """
        stem, len_B = self.encoder.subsampling, frames_B
        start_B = torch.clamp(_LEAD - cached_B, min=0) * SUBSAMPLING
        hidden = mel_BDF.transpose(1, 2)[:, None]
        for layer in (stem.conv_in, *stem.layers):
            place_F = torch.arange(hidden.shape[2], device=hidden.device)
            own_BF = (place_F < len_B[:, None]) & (place_F >= start_B[:, None])
            hidden = hidden * own_BF.to(hidden.dtype)[:, None, :, None]
            hidden = layer(hidden) if layer is stem.conv_in else layer.pointwise_conv(layer.depthwise_conv(hidden))
            hidden = stem.act_fn(hidden)
            start_B, len_B = start_B // 2, len_B // 2 + 1
        hidden_BFE = stem.linear(hidden.transpose(1, 2).flatten(2))
        valid_B = torch.clamp(len_B - _LEAD, min=0, max=self.num_out)
        return hidden_BFE[:, _LEAD : _LEAD + self.num_out] * self.encoder.input_scale, valid_B

    def _attend(
        self, layer: Any, hidden_BCE: Tensor, kv_BTE: Tensor, readable_BT: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Attention over the cached frames and the chunk; and the keys and values for the next one."""
        attention, width = layer.self_attn, hidden_BCE.shape[2]
        normed_BCE = layer.norm_self_att(hidden_BCE)
        chunk_kv = torch.cat([attention.k_proj(normed_BCE), attention.v_proj(normed_BCE)], dim=2)
        kv_BTE = torch.cat([kv_BTE, chunk_kv], dim=1)
        query, key, value, distance = (
            tensor.reshape(tensor.shape[0], tensor.shape[1], -1, attention.head_dim).transpose(1, 2)
            for tensor in (
                attention.q_proj(normed_BCE),
                kv_BTE[..., :width],
                kv_BTE[..., width:],
                attention.relative_k_proj(positions),
            )
        )
        content_BHCT = (query + attention.bias_u[None, :, None]) @ key.transpose(2, 3)
        by_distance_BHCR = (query + attention.bias_v[None, :, None]) @ distance.transpose(2, 3)
        place_BHCT = attention._rel_shift(by_distance_BHCR)[..., : kv_BTE.shape[1]]
        score_BHCT = ((content_BHCT + place_BHCT) * attention.scaling).masked_fill(~readable_BT[:, None, None], _MASKED)
        mixed_BCE = (score_BHCT.softmax(-1) @ value).transpose(1, 2).flatten(2)
        return attention.o_proj(mixed_BCE), kv_BTE[:, self.num_out :]


def _convolve(conv: Any, hidden_BCE: Tensor, before_BEK: Tensor) -> tuple[Tensor, Tensor]:
    """The convolution module on a chunk and the frames before it; and those before the next one."""
    gated_BEC = functional.glu(conv.pointwise_conv1(hidden_BCE.transpose(1, 2)), dim=1)
    gated_BEC = torch.cat([before_BEK, gated_BEC], dim=2)
    weight = conv.depthwise_conv
    mixed_BEC = functional.conv1d(gated_BEC, weight.weight, weight.bias, groups=gated_BEC.shape[1])
    normed_BCE = conv.norm(mixed_BEC.transpose(1, 2))
    convolved_BEC = conv.pointwise_conv2(conv.activation(normed_BCE.transpose(1, 2)))
    return convolved_BEC.transpose(1, 2), gated_BEC[:, :, gated_BEC.shape[2] - before_BEK.shape[2] :]
