"""Self-supervised learning: a part of each utterance is masked, and the model is to predict it.

How much is hidden of an utterance depends on its length alone (`contrastive.num_masked`). So the plan knows it of every
step, and all ranks divide by the same count without asking each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from voxstill.core.config import Pretrain
from voxstill.core.monitor import log
from voxstill.core.records import Batch
from voxstill.data.transfer import to_device
from voxstill.nn import contrastive, self_supervised, students
from voxstill.nn.frontends import Frontend, LogMelFrontend
from voxstill.nn.log_mel import centred, frame_mask, normalise
from voxstill.nn.mel import SUBSAMPLING, Counts
from voxstill.training.task import DevBatch, Loss, ModelInput, StepContext, Task, Unit, make_generator

_MEMORY = 1 / 50
"""What is watched is a running mean over so many steps."""
_PATIENCE = 100
"""Steps that something may look wrong before it is said."""
_AGAIN = 1000
"""Steps until it is said again."""
_NOISE = 0.1
"""Deviation of what stands where features are hidden."""
_COLLAPSED = "raise `pretrain.diversity_weight`, lower `train.lr` or raise `train.warmup`, and start again"
_MONOTONE = "all audio is the same, such as silence; listen to it"


@dataclass(frozen=True, slots=True)
class MaskedInput(ModelInput):
    """What is hidden of a batch: `place_BM` says where, `weight_BM` what it counts, 0 where there is nothing."""

    hidden_BF: Tensor
    place_BM: Tensor
    weight_BM: Tensor
    drawn: tuple[Tensor, ...]
    """What else was drawn, as the task knows."""


class Masks:
    """How much is hidden of an utterance, and where."""

    def __init__(self, cfg: Pretrain, frontend: Frontend, otherwise: tuple[float, int]) -> None:
        self._frontend, self._least = frontend, cfg.min_masks
        self._prob = otherwise[0] if cfg.mask_prob is None else cfg.mask_prob
        mask_ms = otherwise[1] if cfg.mask_ms is None else cfg.mask_ms
        self._length = max(round(mask_ms / frontend.frame_ms), 1)

    def num_masked(self, num_samples: Counts) -> Counts:
        """Frames that are hidden of so many samples; 0 where there are too few to learn from."""
        frames = self._frontend.num_frames(num_samples)
        return contrastive.num_masked(frames, self._prob, self._length, self._least)

    def drawn(self, batch: Batch, generator: Generator) -> tuple[Tensor, ...]:
        """Hidden frames of a batch (B, F), their places (B, M), what each counts (B, M) and their number (B,)."""
        frames_B, num_B = self._frontend.num_frames(batch.audio_len_B), self.num_masked(batch.audio_len_B)
        hidden_BF = contrastive.draw_mask(frames_B, num_B, self._length, generator)
        place_BM, own_BM = contrastive.masked_positions(hidden_BF, num_B)
        return hidden_BF, place_BM, own_BM * batch.weight_B[:, None], num_B


class ContrastiveTask:
    """A `Task`: wav2vec 2.0, which distinguishes the code of a masked frame from those of others (Baevski et al.
    2020)."""

    unit: Unit = "masked frames"

    def __init__(self, cfg: Pretrain, frontend: Frontend, codebook: tuple[int, int], seed: int = 0) -> None:
        self.cfg, self.frontend, self._codebook, self._seed = cfg, frontend, codebook, seed
        self.masks = Masks(cfg, frontend, self_supervised.WAV2VEC2_MASKS)
        self._watch = Watch(codebook[0], _COLLAPSED)

    def prepare(self, batch: Batch, progress: float, generator: Generator) -> ModelInput:
        """Plain samples; drawn are the negatives and the noise that chooses codes."""
        inputs, len_B = self.frontend.extract(batch.audio_BT, batch.audio_len_B)
        hidden_BF, place_BM, weight_BM, num_B = self.masks.drawn(batch, generator)
        negative_BMK = contrastive.negatives(num_B, self.cfg.negatives, generator)
        noise_BMGV = contrastive.gumbel((*place_BM.shape, *self._codebook), generator)
        frame_ms_B = torch.full_like(batch.tempo_B, self.frontend.frame_ms)
        return MaskedInput(
            batch=batch,
            inputs=inputs,
            len_B=len_B,
            frame_ms_B=frame_ms_B,
            hidden_BF=hidden_BF,
            place_BM=place_BM,
            weight_BM=weight_BM,
            drawn=(negative_BMK, noise_BMGV),
        )

    def loss(self, model: nn.Module, model_input: ModelInput, context: StepContext) -> Loss:
        """Contrastive and diversity loss per hidden frame of the step. A model that is judged draws no codes."""
        assert isinstance(model_input, MaskedInput)
        cfg, weight_BM, (negative_BMK, noise_BMGV) = self.cfg, model_input.weight_BM, model_input.drawn
        temperature = max(cfg.max_temperature * cfg.temperature_decay**context.step, cfg.min_temperature)
        predicted_BMD, targets_BMD, code_BM, probs_BMGV = self_supervised.contrastive_outputs(
            model,
            samples_BT=model_input.inputs,
            len_B=model_input.len_B,
            hidden_BF=model_input.hidden_BF,
            place_BM=model_input.place_BM,
            noise_BMGV=noise_BMGV if model.training else None,
            temperature=temperature,
        )
        loss_BM, right_BM, chance_BM = contrastive.info_nce(
            predicted_BMD,
            targets_BMD,
            code_BM=code_BM,
            negative_BMK=negative_BMK,
            temperature=self_supervised.contrastive_temperature(model),
        )
        part = weight_BM.sum() / context.num_tokens
        perplexity = contrastive.perplexity(probs_BMGV, weight_BM)
        main = (loss_BM * weight_BM).sum() / context.num_tokens
        diversity = (1 - perplexity / probs_BMGV[0, 0].numel()) * part
        figures = {
            "contrastive": main.detach(),
            "diversity": diversity.detach(),
            "masked": weight_BM.sum() / context.num_frames,
            "perplexity": perplexity.detach() * part,
            "temperature": temperature * part,
            "accuracy": (right_BM * weight_BM).sum() / context.num_tokens,
            "chance": (chance_BM * weight_BM).sum() / context.num_tokens,
        }
        return Loss(main + cfg.diversity_weight * diversity, figures)

    def validate(self, model: nn.Module, batches: Iterable[DevBatch]) -> dict[str, float] | None:
        """Return the contrastive loss, diversity, accuracy and perplexity of the dev split."""
        return _dev_figures(self, model, batches, ("contrastive", "diversity", "accuracy", "perplexity"), self._seed)

    def watch(self, step: int, figures: Mapping[str, float]) -> None:
        """Tell when the code book has shrunk to a code, or when hidden frames are found by chance alone."""
        self._watch.see(step, figures)

    def move(self, device: torch.device) -> None:
        """Move the frontend to the device."""
        self.frontend.move(device)


class RandomCodesTask:
    """A `Task`: BEST-RQ, which says the codes of hidden frames in a random code book (Chiu et al. 2022, section 3)."""

    unit: Unit = "masked frames"

    def __init__(self, cfg: Pretrain, frontend: LogMelFrontend, seed: int) -> None:
        self.cfg, self.frontend, self._seed = cfg, frontend, seed
        self.masks = Masks(cfg, frontend, self_supervised.BEST_RQ_MASKS)
        self.quantizer = self_supervised.quantizer(cfg, frontend.log_mel.num_mels, seed)
        self._watch = Watch(1, _MONOTONE)

    def prepare(self, batch: Batch, progress: float, generator: Generator) -> ModelInput:
        """Features, noise where they are hidden; drawn are the codes of what was there."""
        mel_BFD, frames_B = self.frontend.log_mel.unnormalised(batch.audio_BT, batch.audio_len_B)
        mel_BFD = mel_BFD[:, : int(frames_B.max())]
        features_BFD = self.frontend.log_mel.normalise(mel_BFD, frames_B)
        there_BFD = centred(mel_BFD, frames_B) if self.cfg.targets == "cepstra" else normalise(mel_BFD, frames_B)
        hidden_BF, place_BM, weight_BM, _ = self.masks.drawn(batch, generator)
        code_BM = self.quantizer.codes(there_BFD).gather(1, place_BM)
        over_BF = hidden_BF.repeat_interleave(SUBSAMPLING, dim=1)[:, : features_BFD.shape[1]]
        over_BF &= frame_mask(frames_B, features_BFD.shape[1])
        noise_BFD = _NOISE * torch.randn(features_BFD.shape, generator=generator, device=features_BFD.device)
        if self.frontend.log_mel.normalization != "utterance":  # where the bands are, instead of about zero
            centred_BFD = centred(features_BFD, frames_B)
            noise_BFD = features_BFD - centred_BFD + noise_BFD * centred_BFD.square().mean((1, 2), keepdim=True).sqrt()
        noisy_BFD = torch.where(over_BF[..., None], noise_BFD, features_BFD)
        frame_ms_B = torch.full_like(batch.tempo_B, self.frontend.frame_ms)
        return MaskedInput(
            batch=batch,
            inputs=noisy_BFD,
            len_B=frames_B,
            frame_ms_B=frame_ms_B,
            hidden_BF=hidden_BF,
            place_BM=place_BM,
            weight_BM=weight_BM,
            drawn=(code_BM,),
        )

    def loss(self, model: nn.Module, model_input: ModelInput, context: StepContext) -> Loss:
        """Cross-entropy per hidden frame of the step, in fp32."""
        assert isinstance(model_input, MaskedInput)
        weight_BM, (code_BM,) = model_input.weight_BM, model_input.drawn
        logits_BFV, _ = students.logits(model, model_input.inputs, model_input.len_B)
        wide = logits_BFV.shape[2]
        logits_BMV = logits_BFV.gather(1, model_input.place_BM[..., None].expand(-1, -1, wide)).float()
        loss_BM = functional.cross_entropy(logits_BMV.transpose(1, 2), code_BM, reduction="none")
        used_BM1V = functional.one_hot(code_BM, wide).float()[:, :, None]
        part = weight_BM.sum() / context.num_tokens
        figures = {
            "masked": weight_BM.sum() / context.num_frames,
            "perplexity": contrastive.perplexity(used_BM1V, weight_BM) * part,
            "accuracy": ((logits_BMV.detach().argmax(-1) == code_BM) * weight_BM).sum() / context.num_tokens,
            "chance": torch.einsum("bmgv,bm->v", used_BM1V, weight_BM).max() / context.num_tokens,
        }
        return Loss((loss_BM * weight_BM).sum() / context.num_tokens, figures)

    def validate(self, model: nn.Module, batches: Iterable[DevBatch]) -> dict[str, float] | None:
        """Return the loss, accuracy and perplexity of the dev split."""
        return _dev_figures(self, model, batches, ("loss", "accuracy", "perplexity"), self._seed)

    def watch(self, step: int, figures: Mapping[str, float]) -> None:
        """Tell when codes are said by chance alone."""
        self._watch.see(step, figures)

    def move(self, device: torch.device) -> None:
        """Move the frontend and the code book to the device."""
        self.frontend.move(device)
        self.quantizer.move(device)


def _dev_figures(
    task: Task, model: nn.Module, batches: Iterable[DevBatch], names: Sequence[str], seed: int
) -> dict[str, float] | None:
    """Sum figures of the loss over the dev split, masked in the same places each time; None if there is none."""
    device = next(model.parameters()).device
    sums, num = dict.fromkeys(names, 0.0), 0
    for k, dev in enumerate(batches):
        with torch.no_grad():
            generator = make_generator(device, seed, k, 0, 0)
            loss = task.loss(model, task.prepare(to_device(dev.batch, device), 1.0, generator), dev.context)
        num += 1
        for name, value in {"loss": loss.value, **loss.figures}.items():
            if name in sums:
                sums[name] += float(value)
    return sums if num else None


class Watch:
    """Says in the log that a pre-training learns nothing, before a night is lost; within 200 steps of its beginning."""

    def __init__(self, groups: int, advice: str) -> None:
        self._groups, self._advice = groups, advice
        self._mean: dict[str, float] = {}
        self._bad: dict[str, int] = {}

    def see(self, step: int, figures: Mapping[str, float]) -> None:
        """The figures of one more step."""
        for name in ("perplexity", "accuracy", "chance"):
            before = self._mean.get(name, figures[name])
            self._mean[name] = before + (figures[name] - before) * _MEMORY
        perplexity, accuracy, chance = (self._mean[name] for name in ("perplexity", "accuracy", "chance"))
        if self._says("perplexity", perplexity < 2 * self._groups):
            log.warning(
                "step %d: %.1f codes are in use in all %d codebooks together, where one per codebook is the "
                "minimum: %s",
                step,
                perplexity,
                self._groups,
                self._advice,
            )
        if self._says("accuracy", accuracy < 1.5 * chance):
            log.warning(
                "step %d: %.2f %% of the masked frames are identified, by chance it would be %.2f %%; this is "
                "temporary while"
                " the learning rate is still rising, else lower `train.lr` or use larger batches (`plan.budget_ms`)",
                step,
                100 * accuracy,
                100 * chance,
            )

    def _says(self, name: str, bad: bool) -> bool:
        """Whether it is bad for the hundredth step in a row, or for a thousand more."""
        self._bad[name] = self._bad.get(name, 0) + 1 if bad else 0
        return self._bad[name] >= _PATIENCE and (self._bad[name] - _PATIENCE) % _AGAIN == 0
