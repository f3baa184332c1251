"""Self-supervised models, as `transformers` has them; a saved one runs with `transformers` alone.

wav2vec 2.0 with its quantizer (Baevski et al. 2020), from whose weights a student that takes a waveform starts; and
BEST-RQ, a FastConformer with a head for the codes of a random projection (Chiu et al. 2022, "Self-supervised learning
with random-projection quantizer"). It has the class of a CTC student, so any Parakeet student starts from its encoder.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor, nn

from voxstill.core.config import Normalization, Pretrain
from voxstill.core.errors import ConfigError
from voxstill.nn import checkpoints, contrastive, students
from voxstill.nn.conv_cpu import padding_ignored, time_first
from voxstill.nn.loading import load_model, loading_weights
from voxstill.nn.mel import SUBSAMPLING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SMALL = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "conv_dim": (64,) * 7,
    "num_conv_pos_embeddings": 64,
    "num_conv_pos_embedding_groups": 8,
    "num_codevectors_per_group": 64,
    "codevector_dim": 64,
    "proj_codevector_dim": 64,
}
_LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "conv_bias": True,
    "codevector_dim": 768,
    "proj_codevector_dim": 768,
}
SHAPES: dict[str, dict[str, Any]] = {"tiny": _SMALL, "base": {}, "large": _LARGE}
"""What differs from the base model of the paper. All sizes have pre-norm layers, which are stable in fp16 too."""


def wav2vec2(cfg: Pretrain, seed: int) -> PreTrainedModel:
    """Build a Wav2Vec2ForPreTraining, new or with the weights of `cfg.checkpoint`; equal arguments give equal weights.

    Its forward pass is `contrastive_outputs`. ConfigError or DataError if the checkpoint is not a wav2vec 2.0.
    """
    from transformers import Wav2Vec2Config

    changes: dict[str, Any] = {
        **dict.fromkeys(("hidden_dropout", "attention_dropout", "activation_dropout"), cfg.dropout),
        "layerdrop": 0.0,  # `_layer_drop` does it
        "mask_time_prob": cfg.mask_prob or WAV2VEC2_MASKS[0],
        "num_negatives": cfg.negatives,
        "diversity_loss_weight": cfg.diversity_weight,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if cfg.checkpoint is None:
            config = Wav2Vec2Config(**SHAPES[cfg.size], **changes, do_stable_layer_norm=True, feat_extract_norm="layer")
            model = _wav2vec2_class()(config)
        else:
            config = checkpoints.read_config(cfg.checkpoint)
            if config.model_type != "wav2vec2":
                raise ConfigError(
                    f"`pretrain.checkpoint: {cfg.checkpoint}` cannot be trained further by `wav2vec2`",
                    code="start-checkpoint",
                    why=f"it is a `{config.model_type}`",
                    fix="use a wav2vec 2.0 checkpoint, or set `pretrain.method: best_rq` for a Parakeet",
                )
            new_head = "Wav2Vec2ForPreTraining" not in (config.architectures or ())  # an encoder has no quantizer
            with loading_weights(cfg.checkpoint):
                model = load_model(_wav2vec2_class(), cfg.checkpoint, new_head=new_head, dtype=torch.float32, **changes)
    model.train()
    for layer in model.wav2vec2.encoder.layers:
        _layer_drop(layer, cfg.layer_drop)
    time_first(model.wav2vec2.feature_extractor)
    _scale_gradient(model.wav2vec2.feature_extractor, cfg.feature_gradient)
    return padding_ignored(model)


WAV2VEC2_MASKS, BEST_RQ_MASKS = (0.65, 200), (0.4, 400)
"""Default probability and length in milliseconds of masks; those of the papers."""


@functools.cache
def _wav2vec2_class() -> Any:
    import transformers

    def forward(
        self: PreTrainedModel,
        input_values: Tensor,
        attention_mask: Tensor,
        hidden_BF: Tensor,
        place_BM: Tensor,
        noise_BMGV: Tensor | None,
        temperature: float,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        encoded = self.wav2vec2(input_values, attention_mask=attention_mask, mask_time_indices=hidden_BF)
        predicted_BMD = self.project_hid(_gather(encoded.last_hidden_state, place_BM))
        features_BMD = self.dropout_features(_gather(encoded.extract_features, place_BM))
        quantizer = self.quantizer
        logits_BMGV = quantizer.weight_proj(features_BMD).unflatten(-1, (quantizer.num_groups, quantizer.num_vars))
        codebook_GVD = quantizer.codevectors[0].unflatten(0, (quantizer.num_groups, quantizer.num_vars))
        vectors_BMD, code_BM, probs_BMGV = contrastive.quantized(logits_BMGV, codebook_GVD, noise_BMGV, temperature)
        return predicted_BMD, self.project_q(vectors_BMD.to(predicted_BMD.dtype)), code_BM, probs_BMGV

    return type("Wav2Vec2ForPreTraining", (transformers.Wav2Vec2ForPreTraining,), {"forward": forward})


def contrastive_outputs(
    model: nn.Module,
    samples_BT: Tensor,
    len_B: Tensor,
    hidden_BF: Tensor,
    place_BM: Tensor,
    noise_BMGV: Tensor | None,
    temperature: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run wav2vec 2.0 on masked samples (B, T); nothing is projected or quantized outside of masked frames.

    Returns, for the masked frames at `place_BM`, predictions and targets (B, M, D), codes of the targets (B, M) and
    probabilities of all codes (B, M, G, V).
    """
    own_BT = torch.arange(samples_BT.shape[1], device=len_B.device) < len_B[:, None]
    arguments = {"attention_mask": own_BT.long(), "hidden_BF": hidden_BF, "place_BM": place_BM}
    outputs: tuple[Tensor, Tensor, Tensor, Tensor] = model(
        input_values=samples_BT, **arguments, noise_BMGV=noise_BMGV, temperature=temperature
    )
    return outputs


def contrastive_temperature(model: PreTrainedModel) -> float:
    """The temperature of the contrastive loss, by which cosines are divided."""
    return float(model.config.contrastive_logits_temperature)


def codebook(model: PreTrainedModel) -> tuple[int, int]:
    """Number of code books of a wav2vec 2.0, and the codes in each."""
    return int(model.quantizer.num_groups), int(model.quantizer.num_vars)


def _gather(hidden_BFD: Tensor, place_BM: Tensor) -> Tensor:
    return hidden_BFD.gather(1, place_BM[..., None].expand(-1, -1, hidden_BFD.shape[-1]))


def _scale_gradient(layer: nn.Module, factor: float) -> None:
    """Multiply the gradient that reaches a layer: convolutions learn more slowly than the layers above them."""

    def scale(_: nn.Module, __: tuple[Tensor, ...], out: Tensor) -> None:
        if out.requires_grad and factor != 1:
            out.register_hook(lambda gradient: gradient * factor)  # type: ignore[no-untyped-call]

    layer.register_forward_hook(scale)


def _layer_drop(layer: nn.Module, drop: float) -> None:
    """Skip a layer in training with probability `drop` (Fan et al. 2019, "LayerDrop").

    The weights of a skipped layer get a gradient of zero: without one, ranks that skip different layers would deadlock.
    """

    def call_or_skip(self: nn.Module, hidden_BFD: Tensor, *args: object, **kwargs: object) -> Tensor:
        if self.training and drop and float(torch.rand(())) < drop:
            return hidden_BFD + 0 * sum(weight.sum() for weight in self.parameters())
        out: Tensor = layer_class.__call__(self, hidden_BFD, *args, **kwargs)
        return out

    layer_class: Any = type(layer)
    layer.__class__ = type(layer_class.__name__, (layer_class,), {"__call__": call_or_skip})


def best_rq(cfg: Pretrain, size: students.Size, seed: int, normalization: Normalization) -> PreTrainedModel:
    """Build the BEST-RQ model: a ParakeetForCTC that predicts codes, new or with the encoder of `cfg.checkpoint`."""
    if cfg.checkpoint is None:
        return students.build(size, num_codes(cfg), dropout=cfg.dropout, seed=seed, normalization=normalization)
    options: dict[str, Any] = {"dropout": cfg.dropout, "seed": seed, "kind": "ctc", "freeze_convolutions": False}
    model = checkpoints.from_checkpoint(cfg.checkpoint, num_codes(cfg), keep_vocabulary=False, **options)
    if model.config.model_type not in students.PARAKEET_TYPES:
        raise ConfigError(
            f"`pretrain.checkpoint: {cfg.checkpoint}` cannot be trained further by `best_rq`",
            code="start-checkpoint",
            why=f"it is a `{model.config.model_type}`",
            fix="use a Parakeet, such as a student of voxstill, or set `pretrain.method: wav2vec2`",
        )
    return model


_NUM_CODES, _CODE_DIMS = 8192, 16
_NUM_CEPSTRAL_CODES, _CEPSTRAL_DIMS = 128, 8
"""Default number and dimensions of codes: of log-mels, as in the paper, and of cepstra."""


def num_codes(cfg: Pretrain) -> int:
    """Size of the code book of BEST-RQ."""
    return cfg.codes or (_NUM_CEPSTRAL_CODES if cfg.targets == "cepstra" else _NUM_CODES)


def quantizer(cfg: Pretrain, num_mels: int, seed: int) -> RandomQuantizer:
    """The quantizer of BEST-RQ for log-mels or their cepstra; equal arguments give equal codes."""
    generator = torch.Generator().manual_seed(seed)
    if cfg.targets == "cepstra":
        projection_WD = cepstra(num_mels, cfg.code_dims or _CEPSTRAL_DIMS)
    else:
        projection_WD = random_projection(num_mels, cfg.code_dims or _CODE_DIMS, generator)
    return RandomQuantizer(projection_WD, num_codes(cfg), generator)


class RandomQuantizer:
    """Log-mels to codes, by a projection and a code book that are drawn once and never trained.

    The eight feature frames of an output frame are projected; the code is that of the nearest vector by cosine.
    """

    def __init__(self, projection_WD: Tensor, codes: int, generator: Generator) -> None:
        codes_DV = torch.randn(projection_WD.shape[1], codes, generator=generator)
        self.projection_WD, self.book_DV = projection_WD, nn.functional.normalize(codes_DV, dim=0)

    def move(self, device: torch.device) -> None:
        """Move projection and code book to a device."""
        self.projection_WD, self.book_DV = self.projection_WD.to(device), self.book_DV.to(device)

    def codes(self, features_BFD: Tensor) -> Tensor:
        """Codes (B, F') of features (B, F, D) of zero mean, one for eight frames; padding is zeros."""
        missing = -features_BFD.shape[1] % SUBSAMPLING
        padded_BFD = nn.functional.pad(features_BFD, (0, 0, 0, missing))
        stacked_BFW = padded_BFD.reshape(len(padded_BFD), -1, SUBSAMPLING * padded_BFD.shape[2])
        code_BF: Tensor = (stacked_BFW @ self.projection_WD @ self.book_DV).argmax(-1)
        return code_BF


def random_projection(num_mels: int, dims: int, generator: Generator) -> Tensor:
    """Draw a projection (W, D) of eight stacked frames by Xavier initialisation, as Chiu et al. do."""
    width = num_mels * SUBSAMPLING
    bound = (6 / (width + dims)) ** 0.5
    projection_WD: Tensor = (torch.rand(width, dims, generator=generator) * 2 - 1) * bound
    return projection_WD


def cepstra(num_mels: int, dims: int) -> Tensor:
    """Projection (W, D) of eight stacked frames to the lowest cepstral coefficients of their mean: the spectral shape.

    Coefficient k is weighted by k + 1: deviations fall about so with the order, and all are to count equally (Paliwal
    1982, "On the performance of the quefrency-weighted cepstral coefficients in vowel recognition").
    """
    position_D, order_C = torch.arange(num_mels) + 0.5, torch.arange(dims)
    basis_DC: Tensor = torch.cos(torch.pi / num_mels * position_D[:, None] * order_C) * (order_C + 1)
    return basis_DC.repeat(SUBSAMPLING, 1) / SUBSAMPLING
