"""Recognition by CTC: word times first, where the teacher gave them, then the labels alone.

A small student spends most of a short training saying nothing but blanks. Frame-level cross-entropy on the teacher's
word times takes it past that, and CTC then finds alignments of its own.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Generator, Tensor, nn

from voxstill.core import pcm
from voxstill.core.config import Augment, Train
from voxstill.core.records import Batch, Hypothesis
from voxstill.decoding.batch import decode_batch
from voxstill.nn import augment_features, losses, students
from voxstill.nn.frontends import Frontend, LogMelFrontend
from voxstill.tasks.distillation import DistillationTeacher, TeacherOutputs
from voxstill.tasks.validation import word_error_rate
from voxstill.text.tokenizer import START, Vocabulary
from voxstill.training.task import DevBatch, Loss, ModelInput, StepContext, Unit

_STEP_MS = 10  # where audio is cut


class CtcTask:
    """A `Task`: augmentation, loss and greedy decoding of a CTC student, from log-mels unless another is given."""

    unit: Unit = "tokens"

    def __init__(
        self,
        vocabulary: Vocabulary,
        train: Train,
        augmentation: Augment,
        frontend: Frontend | None = None,
        teacher: DistillationTeacher | None = None,
    ) -> None:
        self.teacher = teacher
        self.vocabulary, self.train_cfg, self.augment_cfg = vocabulary, train, augmentation
        self.frontend = frontend or LogMelFrontend(augmentation)
        self._starts_word_V = torch.tensor([piece.startswith(START) for piece in vocabulary.pieces])

    @property
    def num_views(self) -> int:
        """Augmented views of each utterance: two with consistency regularisation, else one."""
        return 2 if self.train_cfg.consistency else 1

    def loss(self, model: nn.Module, model_input: ModelInput, context: StepContext) -> Loss:
        """CTC per token, with cross-entropy per frame in the first `align_share` of the training, and what the teacher
        adds where there is one."""
        batch = model_input.batch
        logits_BFV, out_B, states = students.logits_and_states(
            model, model_input.inputs, model_input.len_B, self.distilled_layers
        )
        taught = self.taught(batch)
        loss = self.alone(logits_BFV, out_B, batch, model_input.frame_ms_B, context, taught)
        if taught is not None:
            loss = loss.plus(taught.layer_loss(model, states, out_B, context))
        if self.num_views == 1:
            return loss
        one_BFV, other_BFV = logits_BFV.chunk(2)
        divergence_B = losses.consistency(one_BFV, other_BFV, out_B[: len(one_BFV)]) * batch.weight_B[: len(one_BFV)]
        divergence = divergence_B.sum() / context.num_tokens
        figures = {name: value / 2 for name, value in loss.figures.items()} | {"apart": divergence.detach()}
        return Loss(loss.value / 2 + self.train_cfg.consistency * divergence, figures)

    def taught(self, batch: Batch) -> TeacherOutputs | None:
        """What the teacher says of a batch; None without a teacher."""
        return None if self.teacher is None else self.teacher.outputs(batch)

    @property
    def distilled_layers(self) -> tuple[int, ...]:
        """The layers of the encoder that are compared with those of the teacher."""
        return () if self.teacher is None else self.teacher.student_layers

    def alone(
        self,
        logits_BFV: Tensor,
        out_B: Tensor,
        batch: Batch,
        frame_ms_B: Tensor,
        context: StepContext,
        taught: TeacherOutputs | None,
    ) -> Loss:
        """The loss where each frame is said by itself: of the labels, and of the frames of a CTC teacher."""
        loss = self._of_labels(logits_BFV, out_B, batch, frame_ms_B, context)
        return loss if taught is None else loss.plus(taught.frame_loss(logits_BFV, out_B, context))

    def _of_labels(
        self, logits_BFV: Tensor, out_B: Tensor, batch: Batch, frame_ms_B: Tensor, context: StepContext
    ) -> Loss:
        blank_id = self.vocabulary.blank_id
        ctc_B = losses.ctc(
            logits_BFV,
            out_B,
            batch.tokens_BU,
            batch.token_len_B,
            blank_id=blank_id,
            smoothing=self.train_cfg.label_smoothing,
        )
        ctc_B = ctc_B * batch.weight_B
        ctc = ctc_B.sum() / context.num_tokens
        if context.progress >= self.train_cfg.align_share:
            return Loss(ctc)
        targets_BF = losses.alignment_targets(
            batch.times_BU2, batch.tokens_BU.clamp(min=0), frame_ms_B, logits_BFV.shape[1], blank_id
        )
        timed_B = is_timed(batch)
        align_B = losses.frame_cross_entropy(logits_BFV, out_B, targets_BF) * batch.weight_B
        align = (align_B * timed_B).sum() / context.num_frames
        # an utterance without word times learns from CTC alone, at full weight
        weight_B = torch.where(timed_B, self.train_cfg.align_ctc, 1.0)
        return Loss(
            align + (ctc_B * weight_B).sum() / context.num_tokens, {"ctc": ctc.detach(), "align": align.detach()}
        )

    def prepare(self, batch: Batch, progress: float, generator: Generator) -> ModelInput:
        """Augment a batch and compute its features; with two views, each utterance comes twice, with other noise,
        voices and masks, but the same frames."""
        if self.augment_cfg.run_prob:
            batch = self._shortened(batch, generator)
        if self.num_views > 1:
            tensors = (field.name for field in dataclasses.fields(Batch) if field.name != "ids")
            repeated: Any = {name: torch.cat([getattr(batch, name)] * self.num_views) for name in tensors}
            batch = dataclasses.replace(batch, ids=batch.ids * self.num_views, **repeated)
        inputs, len_B, frame_ms_B = self.frontend.extract_augmented(
            batch.audio_BT, batch.audio_len_B, batch.tempo_B, progress, generator
        )
        return ModelInput(batch, inputs, len_B, frame_ms_B)

    def move(self, device: torch.device) -> None:
        """Move the frontend and the teacher to the device."""
        self.frontend.move(device)
        if self.teacher is not None:
            self.teacher.move(device)

    def validate(self, model: nn.Module, batches: Iterable[DevBatch]) -> dict[str, float] | None:
        """Return the WER of greedy decoding, and what it counts."""
        return word_error_rate(functools.partial(self.decode, model), batches)

    def watch(self, step: int, figures: Mapping[str, float]) -> None:
        """The loss and the dev split say enough."""

    @torch.no_grad()
    def decode(self, model: nn.Module, batch: Batch) -> list[Hypothesis]:
        """Greedy hypotheses, in the order of the batch."""
        return decode_batch(model, self.frontend, self.vocabulary, batch.audio_BT, batch.audio_len_B, batch.ids)

    def _shortened(self, batch: Batch, generator: Generator) -> Batch:
        """Some utterances become a random run of their words, cut in the middle of the pauses around it."""
        first_BU = self._starts_word_V.to(batch.tokens_BU.device)[batch.tokens_BU.clamp(min=0)]
        begin_B, end_B = augment_features.word_runs(
            first_BU, batch.token_len_B, is_timed(batch), self.augment_cfg.run_prob, generator
        )
        tokens_BU, times_BU2, len_B = batch.tokens_BU, batch.times_BU2, batch.audio_len_B
        row_B, last = torch.arange(len(begin_B), device=begin_B.device), tokens_BU.shape[1] - 1
        step = pcm.ms_to_samples(_STEP_MS)
        before_ms_B = (
            times_BU2[row_B, (begin_B - 1).clamp(min=0), 1] + times_BU2[row_B, begin_B.clamp(max=last), 0]
        ) // 2
        after_ms_B = (times_BU2[row_B, end_B - 1, 1] + times_BU2[row_B, end_B.clamp(max=last), 0]) // 2
        start_B = torch.where(begin_B > 0, before_ms_B // _STEP_MS * step, 0)
        stop_B = torch.where(end_B < batch.token_len_B, torch.minimum(after_ms_B // _STEP_MS * step, len_B), len_B)
        # a run that CTC could not learn at its tempo stays a whole utterance: the plan let only that pass
        position_U = torch.arange(last + 1, device=begin_B.device)
        inside_BU = (position_U >= begin_B[:, None]) & (position_U < end_B[:, None])
        again_BU = inside_BU[:, 1:] & inside_BU[:, :-1] & (tokens_BU[:, 1:] == tokens_BU[:, :-1])
        frames_B = self.frontend.num_frames(stop_B - start_B, batch.tempo_B)
        learnable_B = frames_B >= end_B - begin_B + again_BU.sum(1)
        begin_B, end_B = torch.where(learnable_B, begin_B, 0), torch.where(learnable_B, end_B, batch.token_len_B)
        start_B, stop_B = torch.where(learnable_B, start_B, 0), torch.where(learnable_B, stop_B, len_B)
        position_BU = (position_U + begin_B[:, None]).clamp(max=last)
        kept_BU = position_U < (end_B - begin_B)[:, None]
        shift_B11 = (start_B // step * _STEP_MS)[:, None, None]
        times_BU2 = times_BU2.gather(1, position_BU[..., None].expand(-1, -1, 2)) - shift_B11
        timed_B11 = is_timed(batch)[:, None, None]
        place_T = torch.arange(int((stop_B - start_B).max()), device=begin_B.device)
        audio_BT = batch.audio_BT.gather(1, (place_T + start_B[:, None]).clamp(max=batch.audio_BT.shape[1] - 1))
        return dataclasses.replace(
            batch,
            audio_BT=audio_BT * (place_T < (stop_B - start_B)[:, None]),
            audio_len_B=stop_B - start_B,
            tokens_BU=torch.where(kept_BU, tokens_BU.gather(1, position_BU), -1),
            token_len_B=end_B - begin_B,
            times_BU2=torch.where(kept_BU[..., None] & timed_B11, times_BU2.clamp(min=0), -1),
        )


def is_timed(batch: Batch) -> Tensor:
    """(B,) whether every token of an utterance has times."""
    return ((batch.times_BU2[..., 0] >= 0).sum(1) == batch.token_len_B) & (batch.token_len_B > 0)
