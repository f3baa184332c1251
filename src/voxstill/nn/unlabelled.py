"""Models that learn without labels, as `transformers` has them; a saved one needs nothing of ours to run.

wav2vec 2.0 with its quantizer (Baevski et al. 2020), whose weights a student that hears samples starts from; and a
FastConformer with a head for the codes of a random projection (Chiu et al. 2022, "Self-supervised learning with
random-projection quantizer"), which is a student of CTC to look at, so any student starts from its encoder.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from voxstill.config import Pretrain
from voxstill.errors import ConfigError
from voxstill.nn import contrastive, students
from voxstill.nn.convolutions import time_first
from voxstill.nn.frontend import SUBSAMPLING

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
"""What differs from the base of the paper. All have layer norms before what they norm, which also fp16 survives."""


def wav2vec2(cfg: Pretrain, seed: int) -> Any:
    """A Wav2Vec2ForPreTraining, new or with the weights of `cfg.checkpoint`; equal arguments give equal weights.

    Its forward pass gives what `found` says. ConfigError or DataError where the checkpoint is none of wav2vec 2.0.
    """
    from transformers import Wav2Vec2Config

    changes = {
        **dict.fromkeys(("hidden_dropout", "attention_dropout", "activation_dropout"), cfg.dropout),
        "layerdrop": 0.0,  # `_sometimes` does it
        "mask_time_prob": cfg.mask_prob or WAV2VEC2_MASKS[0],
        "num_negatives": cfg.negatives,
        "diversity_loss_weight": cfg.diversity_weight,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if cfg.checkpoint is None:
            config = Wav2Vec2Config(**SHAPES[cfg.size], **changes, do_stable_layer_norm=True, feat_extract_norm="layer")
            model = _class()(config)
        else:
            found = students.described(cfg.checkpoint)
            if found.model_type != "wav2vec2":
                raise ConfigError(
                    f"`pretrain.checkpoint: {cfg.checkpoint}` cannot be trained on by `wav2vec2`",
                    why=f"it is a `{found.model_type}`",
                    fix="give one of wav2vec 2.0, or set `pretrain.method: best_rq` for a Parakeet",
                )
            with students.loading(cfg.checkpoint):
                model = _class().from_pretrained(
                    cfg.checkpoint, **changes, local_files_only=Path(cfg.checkpoint).is_dir(), dtype=torch.float32
                )
    model.train()
    for layer in model.wav2vec2.encoder.layers:
        _sometimes(layer, cfg.layer_drop)
    time_first(model.wav2vec2.feature_extractor)
    _slowed(model.wav2vec2.feature_extractor, cfg.feature_gradient)
    return students.padding_ignored(model)


WAV2VEC2_MASKS, BEST_RQ_MASKS = (0.65, 200), (0.4, 400)
"""Probability and length in milliseconds, where the configuration does not say; those of the papers."""


@functools.cache
def _class() -> Any:
    import transformers

    def forward(
        self: Any,
        input_values: Tensor,
        attention_mask: Tensor,
        hidden_BF: Tensor,
        place_BM: Tensor,
        noise_BMGV: Tensor | None,
        temperature: float,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        heard = self.wav2vec2(input_values, attention_mask=attention_mask, mask_time_indices=hidden_BF)
        predicted_BMD = self.project_hid(_at(heard.last_hidden_state, place_BM))
        features_BMD = self.dropout_features(_at(heard.extract_features, place_BM))
        book = self.quantizer
        logits_BMGV = book.weight_proj(features_BMD).unflatten(-1, (book.num_groups, book.num_vars))
        codebook_GVD = book.codevectors[0].unflatten(0, (book.num_groups, book.num_vars))
        vectors_BMD, code_BM, probs_BMGV = contrastive.quantized(logits_BMGV, codebook_GVD, noise_BMGV, temperature)
        return predicted_BMD, self.project_q(vectors_BMD.to(predicted_BMD.dtype)), code_BM, probs_BMGV

    return type("Wav2Vec2ForPreTraining", (transformers.Wav2Vec2ForPreTraining,), {"forward": forward})


def found(
    model: nn.Module,
    samples_BT: Tensor,
    len_B: Tensor,
    hidden_BF: Tensor,
    place_BM: Tensor,
    noise_BMGV: Tensor | None,
    temperature: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """At the hidden places: what is predicted and what is to be (B, M, D), its code (B, M), and the probabilities of
    all codes (B, M, G, V). Nothing is projected or quantized elsewhere."""
    own_BT = torch.arange(samples_BT.shape[1], device=len_B.device) < len_B[:, None]
    given = {"attention_mask": own_BT.long(), "hidden_BF": hidden_BF, "place_BM": place_BM}
    told: tuple[Tensor, Tensor, Tensor, Tensor] = model(
        input_values=samples_BT, **given, noise_BMGV=noise_BMGV, temperature=temperature
    )
    return told


def likeness_temperature(model: Any) -> float:
    """What cosines are divided by."""
    return float(model.config.contrastive_logits_temperature)


def codebook(model: Any) -> tuple[int, int]:
    """Groups of codes, and codes of each."""
    return int(model.quantizer.num_groups), int(model.quantizer.num_vars)


def _at(heard_BFD: Tensor, place_BM: Tensor) -> Tensor:
    return heard_BFD.gather(1, place_BM[..., None].expand(-1, -1, heard_BFD.shape[-1]))


def _slowed(layer: nn.Module, factor: float) -> None:
    """The gradient that reaches the layer is multiplied: convolutions learn more slowly than what hears them."""

    def scale(_: nn.Module, __: Any, out: Any) -> None:
        if out.requires_grad and factor != 1:
            out.register_hook(lambda gradient: gradient * factor)

    layer.register_forward_hook(scale)


def _sometimes(layer: Any, drop: float) -> None:
    """In training the layer is left out with probability `drop` (Fan et al. 2019, "LayerDrop").

    Its weights then have a gradient of zero: ranks that leave out different layers would else wait for each other.
    """

    def call(self: Any, heard_BFD: Tensor, *given: Any, **named: Any) -> Tensor:
        if self.training and drop and float(torch.rand(())) < drop:
            unused: Tensor = sum(weight.sum() for weight in self.parameters())
            return heard_BFD + 0 * unused
        out: Tensor = kind.__call__(self, heard_BFD, *given, **named)
        return out

    kind: Any = type(layer)
    layer.__class__ = type(kind.__name__, (kind,), {"__call__": call})


def fast_conformer(cfg: Pretrain, size: students.Size, seed: int) -> Any:
    """A ParakeetForCTC that says codes: new, or with the encoder of `cfg.checkpoint`."""
    if cfg.checkpoint is None:
        return students.build(size, num_codes(cfg), dropout=cfg.dropout, seed=seed)
    wanted: dict[str, Any] = {"dropout": cfg.dropout, "seed": seed, "kind": "ctc", "frozen": False}
    model = students.from_checkpoint(cfg.checkpoint, num_codes(cfg), same_pieces=False, **wanted)
    if model.config.model_type not in students.PARAKEET_TYPES:
        raise ConfigError(
            f"`pretrain.checkpoint: {cfg.checkpoint}` cannot be trained on by `best_rq`",
            why=f"it is a `{model.config.model_type}`",
            fix="give a Parakeet, such as a student of ours, or set `pretrain.method: wav2vec2`",
        )
    return model


_CODES, _DIMS = 8192, 16
_FEW_CODES, _CEPSTRA = 128, 8
"""Codes and their dimensions, where the configuration does not say: as in the paper, and of cepstra."""


def num_codes(cfg: Pretrain) -> int:
    """Codes that BEST-RQ tells apart."""
    return cfg.codes or (_FEW_CODES if cfg.targets == "cepstra" else _CODES)


def quantizer(cfg: Pretrain, num_mels: int, seed: int) -> RandomQuantizer:
    """What makes codes of log-mels, of their cepstra or of all they hold; equal arguments give equal codes."""
    generator = torch.Generator().manual_seed(seed)
    if cfg.targets == "cepstra":
        projection_WD = cepstra(num_mels, cfg.code_dims or _CEPSTRA)
    else:
        projection_WD = random_projection(num_mels, cfg.code_dims or _DIMS, generator)
    return RandomQuantizer(projection_WD, num_codes(cfg), generator)


class RandomQuantizer:
    """Log-mels to codes, by a projection and a code book that is drawn once; neither is ever learnt.

    The eight feature frames of an output frame are projected; the code is that of the nearest vector by angle.
    """

    def __init__(self, projection_WD: Tensor, codes: int, generator: Generator) -> None:
        drawn_DV = torch.randn(projection_WD.shape[1], codes, generator=generator)
        self.projection_WD, self.book_DV = projection_WD, nn.functional.normalize(drawn_DV, dim=0)

    def move(self, device: torch.device) -> None:
        """Both to a device."""
        self.projection_WD, self.book_DV = self.projection_WD.to(device), self.book_DV.to(device)

    def codes(self, features_BFD: Tensor) -> Tensor:
        """(B, F') codes of features (B, F, D) without their mean, one for eight frames, padded with zeros."""
        short = -features_BFD.shape[1] % SUBSAMPLING
        padded_BFD = nn.functional.pad(features_BFD, (0, 0, 0, short))
        stacked_BFW = padded_BFD.reshape(len(padded_BFD), -1, SUBSAMPLING * padded_BFD.shape[2])
        code_BF: Tensor = (stacked_BFW @ self.projection_WD @ self.book_DV).argmax(-1)
        return code_BF


def random_projection(num_mels: int, dims: int, generator: Generator) -> Tensor:
    """(W, D) of all that eight frames hold, as Chiu et al. draw it (after Glorot and Bengio 2010)."""
    wide = num_mels * SUBSAMPLING
    bound = (6 / (wide + dims)) ** 0.5
    drawn_WD: Tensor = (torch.rand(wide, dims, generator=generator) * 2 - 1) * bound
    return drawn_WD


def cepstra(num_mels: int, dims: int) -> Tensor:
    """(W, D) of the mean of eight frames to its lowest cepstral coefficients: a spectrum's shape, and not its detail.

    Coefficient k counts k + 1 times: deviations fall about so with the order, and all are to have a say (Paliwal 1982,
    "On the performance of the quefrency-weighted cepstral coefficients in vowel recognition").
    """
    place_D, order_C = torch.arange(num_mels) + 0.5, torch.arange(dims)
    waves_DC: Tensor = torch.cos(torch.pi / num_mels * place_D[:, None] * order_C) * (order_C + 1)
    return waves_DC.repeat(SUBSAMPLING, 1) / SUBSAMPLING
