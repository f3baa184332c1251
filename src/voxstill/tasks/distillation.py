"""Distillation: a finished model whose outputs and hidden layers a student learns beside the labels."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from voxstill.core.config import Augment, Config, Distill
from voxstill.core.errors import ConfigError
from voxstill.core.records import Batch
from voxstill.decoding.checkpoint_files import model_folder
from voxstill.nn import checkpoints, distillation, losses, students
from voxstill.nn.frontends import Frontend
from voxstill.nn.losses import Lattice
from voxstill.text import tokenizer
from voxstill.text.pretrained import WhisperTokenizer
from voxstill.text.tokenizer import Tokenizer
from voxstill.training.task import Loss, StepContext

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_COMPARABLE: dict[students.Kind, tuple[students.Kind, ...]] = {
    "ctc": ("ctc",),
    "rnnt": ("ctc", "rnnt"),
    "tdt": ("ctc", "tdt"),
    "seq2seq": ("seq2seq",),
}
"""The kinds of teachers whose outputs a student of each kind learns."""


class DistillationTeacher:
    """A frozen model with a frontend of its own, which takes the audio without augmentation.

    So the student, which is shown noise and masks, learns what the teacher says of clean audio.
    """

    def __init__(self, model: PreTrainedModel, frontend: Frontend, cfg: Distill) -> None:
        self.model, self._frontend, self.cfg = model.eval().requires_grad_(False), frontend, cfg

    @property
    def student_layers(self) -> tuple[int, ...]:
        """The layers of the student's encoder that are compared with those of the teacher."""
        return tuple(self.cfg.layers)

    @torch.no_grad()
    def outputs(self, batch: Batch, decoder_input_BU: Tensor | None = None) -> TeacherOutputs:
        """One forward pass of the teacher; an encoder-decoder needs the tokens that its decoder is given."""
        layers = tuple(self.cfg.layers.values())
        with _autocast(batch):
            inputs, len_B = self._frontend.extract(batch.audio_BT, batch.audio_len_B)
            of_batch = functools.partial(TeacherOutputs, self.model, self.cfg, batch)
            if not self.cfg.weight:
                return of_batch(*students.encoder_states(self.model, inputs, len_B, layers))
            kind = students.student_kind(self.model)
            if kind == "ctc":
                logits_BFV, frames_B, states = students.logits_and_states(self.model, inputs, len_B, layers)
                return of_batch(frames_B, states, frame_logits_BFV=logits_BFV)
            if kind == "seq2seq":
                assert decoder_input_BU is not None
                logits_BUV, states = students.teacher_forced(self.model, inputs, decoder_input_BU, layers)
                return of_batch(students.whisper_frames(len_B), states, token_logits_BUV=logits_BUV)
            encoded_BFP, frames_B, predicted_BUP, states = students.encode_and_predict(
                self.model, inputs, len_B, batch.tokens_BU, layers
            )
            return of_batch(frames_B, states, encoded_and_predicted=(encoded_BFP, predicted_BUP))

    def move(self, device: torch.device) -> None:
        """Move the teacher to the device."""
        self.model.to(device)
        self._frontend.move(device)


@dataclass(frozen=True, slots=True)
class TeacherOutputs:
    """What a teacher says of one batch, and what a student has to lose by it: 0 where the teacher says no such thing.

    Each loss is summed over the batch, by the weights of its utterances, and divided by a count of the step.
    """

    model: PreTrainedModel
    cfg: Distill
    batch: Batch
    frames_B: Tensor
    states: students.States
    frame_logits_BFV: Tensor | None = None
    token_logits_BUV: Tensor | None = None
    encoded_and_predicted: tuple[Tensor, Tensor] | None = None

    @property
    def has_lattice(self) -> bool:
        """Whether the teacher is a transducer whose lattice is compared."""
        return self.encoded_and_predicted is not None

    def frame_loss(self, logits_BFV: Tensor, frames_B: Tensor, context: StepContext) -> Loss:
        """Divergence of the frames of CTC, per frame."""
        if self.frame_logits_BFV is None:
            return _NOTHING
        divergence_B = distillation.of_frames(
            logits_BFV, frames_B, self.frame_logits_BFV, self.frames_B, self.cfg.temperature
        )
        return self._divergence(divergence_B, context.num_frames)

    def token_loss(self, logits_BUV: Tensor, is_target_BU: Tensor, context: StepContext) -> Loss:
        """Divergence of the next tokens of an encoder-decoder, given the same tokens before, per token."""
        if self.token_logits_BUV is None:
            return _NOTHING
        divergence_BU = distillation.divergence(logits_BUV, self.token_logits_BUV, self.cfg.temperature)
        return self._divergence(torch.where(is_target_BU, divergence_BU, 0).sum(1), context.num_tokens)

    def lattice_loss(self, lattice: Lattice, frames_B: Tensor, context: StepContext) -> Loss:
        """Divergence of the nodes of a transducer's lattice, per frame."""
        if self.encoded_and_predicted is None:
            return _NOTHING
        encoded_BFP, predicted_BUP = self.encoded_and_predicted
        num_frames = lattice.moves_2BFU.shape[2]
        with torch.no_grad(), _autocast(self.batch):
            teacher = losses.lattice(
                functools.partial(students.joint, self.model),
                distillation.at_frames(encoded_BFP, self.frames_B, num_frames, frames_B),
                predicted_BUP,
                self.batch.tokens_BU,
                students.blank_id(self.model),
                len(students.durations(self.model)),
                with_rest=True,
            )
        divergence_B = distillation.of_lattice(lattice, teacher, frames_B, self.batch.token_len_B, self.cfg.temperature)
        return self._divergence(divergence_B, context.num_frames)

    def layer_loss(self, student: nn.Module, states: students.States, frames_B: Tensor, context: StepContext) -> Loss:
        """Distance of the hidden states of the student's layers from those of the teacher's, per frame and layer."""
        if not states:
            return _NOTHING
        projections = getattr(student, students.TRAINING_ONLY, {})
        distance = torch.zeros((), device=frames_B.device)
        for layer, state_BFE, teacher_BFE in zip(self.cfg.layers, states, self.states, strict=True):
            projected_BFE = projections[str(layer)](state_BFE) if str(layer) in projections else state_BFE
            distance_B = distillation.of_layer(projected_BFE, frames_B, teacher_BFE, self.frames_B)
            distance = distance + (distance_B * self.batch.weight_B).sum()
        distance = distance / (len(states) * context.num_frames)
        return Loss(self.cfg.layer_weight * distance, {"distill_layers": distance.detach()})

    def _divergence(self, divergence_B: Tensor, count: int) -> Loss:
        divergence = (divergence_B * self.batch.weight_B).sum() / count
        return Loss(self.cfg.weight * divergence, {"distill": divergence.detach()})


_NOTHING = Loss(torch.zeros(()))


def _autocast(batch: Batch) -> torch.autocast:
    """Half precision on a GPU."""
    device = batch.audio_BT.device.type
    is_bf16 = device != "cuda" or torch.cuda.is_bf16_supported()
    return torch.autocast(device, torch.bfloat16 if is_bf16 else torch.float16, enabled=device == "cuda")


def load(cfg: Config, vocabulary: Tokenizer) -> DistillationTeacher | None:
    """Load the teacher of `train.distill`; None if there is none.

    ConfigError if its outputs cannot be compared with those of the student, DataError if it cannot be read.
    """
    distill = cfg.train.distill
    if distill.checkpoint is None:
        return None
    folder = model_folder(distill.checkpoint)
    config = checkpoints.read_config(str(folder))
    if distill.weight:
        _check_kind(cfg, students.KINDS[config.model_type], config.model_type)
        _check_tokenizer(cfg, vocabulary, str(folder), config.vocab_size)
    frontend = checkpoints.make_frontend(config, Augment(), checkpoint=str(folder))
    return DistillationTeacher(checkpoints.load(folder, new_head=not distill.weight), frontend, distill)


def _check_kind(cfg: Config, kind: students.Kind, model_type: str) -> None:
    student = cfg.student.kind
    if kind not in _COMPARABLE[student]:
        raise ConfigError(
            f"`train.distill.checkpoint` is a `{model_type}`, and the student is of kind `{student}`",
            code="distill-mismatch",
            why=f"such a student can only learn the outputs of a teacher of kind {' or '.join(_COMPARABLE[student])}",
            fix="use such a model; or set `train.distill.weight: 0` and `train.distill.layers`, for any encoder",
        )
    if kind == "ctc" and student != "ctc" and not cfg.train.auxiliary_ctc:
        raise ConfigError(
            "the outputs of `train.distill.checkpoint` have no effect",
            code="option-unused",
            why="a transducer learns the frames of a CTC teacher by its auxiliary CTC, and `train.auxiliary_ctc` is 0",
            fix=f"set it above 0, use a teacher of kind {student}, or set `train.distill.weight: 0`",
        )


def _check_tokenizer(cfg: Config, vocabulary: Tokenizer, folder: str, num_outputs: int) -> None:
    teacher_tokenizer: Tokenizer
    if cfg.student.kind == "seq2seq":
        teacher_tokenizer = WhisperTokenizer(folder, cfg.student.language, num_outputs)
        num_wanted = checkpoints.read_config(cfg.student.checkpoint or "").vocab_size
    else:
        teacher_tokenizer = tokenizer.from_checkpoint(folder)
        num_wanted = len(vocabulary.pieces) + 1  # and the blank
    if teacher_tokenizer.key != vocabulary.key or num_outputs != num_wanted:
        raise ConfigError(
            f"`{cfg.train.distill.checkpoint}` has another tokenizer than the student",
            code="distill-mismatch",
            why="distributions over other tokens cannot be compared",
            fix="leave `student.units` at `auto`, which uses that of the teacher; a Whisper needs a "
            "`student.checkpoint` with that tokenizer; or set `train.distill.weight: 0` and compare only layers",
        )


def attach(student: PreTrainedModel, teacher: DistillationTeacher, seed: int) -> None:
    """Make a student ready for its teacher: where the widths of two layers differ it gets a projection between them.

    ConfigError if there is no such layer, or both are TDT transducers with other durations.
    """
    durations = students.durations(teacher.model)
    if teacher.cfg.weight and durations and durations != students.durations(student):
        raise ConfigError(
            f"`{teacher.cfg.checkpoint}` has the durations {durations}, and the student {students.durations(student)}",
            code="distill-mismatch",
            why="distributions over other durations cannot be compared",
            fix="start the student from a checkpoint with those durations, or set `train.distill.weight: 0`",
        )
    stack, teacher_stack = (students.encoder_and_stack(model)[1] for model in (student, teacher.model))
    projections = nn.ModuleDict()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for layer, teacher_layer in teacher.cfg.layers.items():
            for who, number, num in (
                ("student", layer, len(stack.layers)),
                ("teacher", teacher_layer, len(teacher_stack.layers)),
            ):
                if not 1 <= number <= num:
                    raise ConfigError(
                        f"`train.distill.layers` contains layer {number} of the {who}",
                        code="distill-mismatch",
                        why=f"its encoder has the layers 1 to {num}",
                        fix="use one of them; the mapping goes from layers of the student to layers of the teacher",
                    )
            width, teacher_width = stack.config.hidden_size, teacher_stack.config.hidden_size
            if width != teacher_width:
                projections[str(layer)] = nn.Linear(width, teacher_width)
    if projections:
        setattr(student, students.TRAINING_ONLY, projections)
