"""Distillation of distributions: a finished model whose outputs a student learns beside the labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from voxstill.core.config import Augment, Config, Distill
from voxstill.core.errors import ConfigError
from voxstill.core.records import Batch
from voxstill.decoding.checkpoint_files import model_folder
from voxstill.nn import checkpoints, losses, students
from voxstill.nn.frontends import Frontend
from voxstill.text import tokenizer
from voxstill.text.pretrained import WhisperTokenizer
from voxstill.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class DistillationTeacher:
    """A frozen model with a frontend of its own, which takes the audio without augmentation.

    So the student, which is shown noise and masks, learns what the teacher says of clean audio.
    """

    def __init__(self, model: PreTrainedModel, frontend: Frontend, cfg: Distill) -> None:
        self._model, self._frontend, self._temperature = model.eval().requires_grad_(False), frontend, cfg.temperature
        self.weight = cfg.weight

    def frame_divergence(self, logits_BFV: Tensor, frames_B: Tensor, batch: Batch) -> Tensor:
        """Divergence of the frames of a CTC student from those of the teacher, summed over each utterance (B,)."""
        with torch.no_grad(), _autocast(batch):
            teacher_BFV, teacher_frames_B = students.logits(self._model, *self._inputs(batch))
        return losses.frame_distillation(logits_BFV, frames_B, teacher_BFV, teacher_frames_B, self._temperature)

    def token_divergence(
        self, logits_BUV: Tensor, decoder_input_BU: Tensor, is_target_BU: Tensor, batch: Batch
    ) -> Tensor:
        """Divergence of the next tokens of an encoder-decoder from those of the teacher, which is given the same tokens
        before, summed over the targets of each utterance (B,)."""
        with torch.no_grad(), _autocast(batch):
            inputs, _ = self._inputs(batch)
            teacher_BUV = students.teacher_forced_logits(self._model, inputs, decoder_input_BU)
        divergence_BU = losses.divergence(logits_BUV, teacher_BUV, self._temperature)
        return torch.where(is_target_BU, divergence_BU, 0).sum(1)

    def move(self, device: torch.device) -> None:
        """Move the teacher to the device."""
        self._model.to(device)
        self._frontend.move(device)

    def _inputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self._frontend.extract(batch.audio_BT, batch.audio_len_B)


def _autocast(batch: Batch) -> torch.autocast:
    """Half precision on a GPU."""
    device = batch.audio_BT.device.type
    is_bf16 = device != "cuda" or torch.cuda.is_bf16_supported()
    return torch.autocast(device, torch.bfloat16 if is_bf16 else torch.float16, enabled=device == "cuda")


def load(cfg: Config, vocabulary: Tokenizer) -> DistillationTeacher | None:
    """Load the teacher of `train.distill`; None where there is none.

    ConfigError where its kind or its tokenizer is not that of the student, DataError where it cannot be read.
    """
    checkpoint = cfg.train.distill.checkpoint
    if checkpoint is None:
        return None
    folder = model_folder(checkpoint)
    config = checkpoints.read_config(str(folder))
    kind = students.KINDS[config.model_type]
    if kind != ("seq2seq" if cfg.student.kind == "seq2seq" else "ctc"):
        raise ConfigError(
            f"`train.distill.checkpoint` is a `{config.model_type}`, and the student is of kind `{cfg.student.kind}`",
            why="students of kind `ctc`, `rnnt` and `tdt` learn the frames of a CTC model, and a `seq2seq` a Whisper",
            fix="name such a model, or leave `train.distill` out",
        )
    teacher_tokenizer: Tokenizer
    if kind == "seq2seq":
        teacher_tokenizer = WhisperTokenizer(str(folder), cfg.student.language, config.vocab_size)
        num_outputs = checkpoints.read_config(cfg.student.checkpoint or "").vocab_size
    else:
        teacher_tokenizer = tokenizer.from_checkpoint(str(folder))
        num_outputs = len(vocabulary.pieces) + 1  # and the blank
    if teacher_tokenizer.key != vocabulary.key or config.vocab_size != num_outputs:
        raise ConfigError(
            f"`{checkpoint}` has another tokenizer than the student",
            why="distributions over other tokens cannot be compared",
            fix="leave `student.units` at `auto`, which takes that of the teacher; a Whisper needs a "
            "`student.checkpoint` with that tokenizer",
        )
    frontend = checkpoints.make_frontend(config, Augment(), checkpoint=str(folder))
    return DistillationTeacher(checkpoints.load(folder), frontend, cfg.train.distill)
