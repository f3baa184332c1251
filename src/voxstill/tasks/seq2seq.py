"""Recognition by an encoder-decoder such as Whisper: the next token, knowing all before it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from voxstill.core.config import Augment, Train
from voxstill.core.records import Batch, Hypothesis
from voxstill.decoding.batch import decode_batch
from voxstill.nn import students
from voxstill.nn.frontends import Frontend
from voxstill.tasks.distillation import DistillationTeacher
from voxstill.tasks.validation import word_error_rate
from voxstill.text.pretrained import WhisperTokenizer
from voxstill.training.task import DevBatch, Loss, ModelInput, StepContext, Unit


class Seq2SeqTask:
    """A `Task`: cross-entropy of each token and of the end, and greedy decoding."""

    unit: Unit = "tokens"

    def __init__(
        self,
        tokenizer: WhisperTokenizer,
        train: Train,
        augmentation: Augment,
        frontend: Frontend,
        teacher: DistillationTeacher | None = None,
    ) -> None:
        self.teacher = teacher
        self.tokenizer, self.train_cfg, self.frontend = tokenizer, train, frontend

    def prepare(self, batch: Batch, progress: float, generator: Generator) -> ModelInput:
        """Augment a batch and compute its features."""
        inputs, len_B, frame_ms_B = self.frontend.extract_augmented(
            batch.audio_BT, batch.audio_len_B, batch.tempo_B, progress, generator
        )
        return ModelInput(batch, inputs, len_B, frame_ms_B)

    def loss(self, model: nn.Module, model_input: ModelInput, context: StepContext) -> Loss:
        """Cross-entropy per token, in fp32, and what the teacher adds where there is one."""
        batch = model_input.batch
        decoder_input_BU, targets_BU = self.texts(batch)
        layers = () if self.teacher is None else self.teacher.student_layers
        logits_BUV, states = students.teacher_forced(model, model_input.inputs, decoder_input_BU, layers)
        loss_BU = functional.cross_entropy(
            logits_BUV.float().transpose(1, 2),
            targets_BU,
            ignore_index=-1,
            reduction="none",
            label_smoothing=self.train_cfg.label_smoothing,
        )
        loss = Loss((loss_BU.sum(1) * batch.weight_B).sum() / context.num_tokens)
        if self.teacher is None:
            return loss
        taught = self.teacher.outputs(batch, decoder_input_BU)
        loss = loss.plus(taught.token_loss(logits_BUV, targets_BU >= 0, context))
        return loss.plus(taught.layer_loss(model, states, students.whisper_frames(model_input.len_B), context))

    def texts(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """What the decoder is given (B, U), prefix and tokens, and what it is to say then, -1 where nothing."""
        num, prefix = len(batch.ids), batch.tokens_BU.new_tensor(self.tokenizer.prefix)
        decoder_input_BU = torch.cat([prefix.expand(num, -1), batch.tokens_BU], dim=1)
        silent_BU = decoder_input_BU.new_full((num, len(prefix) - 1), -1)
        targets_BU = torch.cat([silent_BU, functional.pad(batch.tokens_BU, (0, 1), value=-1)], dim=1)
        end_B = len(prefix) - 1 + batch.token_len_B
        targets_BU = targets_BU.scatter(1, end_B[:, None], self.tokenizer.end_id)
        return torch.where(decoder_input_BU < 0, self.tokenizer.end_id, decoder_input_BU), targets_BU

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
        return decode_batch(model, self.frontend, self.tokenizer, batch.audio_BT, batch.audio_len_B, batch.ids)
