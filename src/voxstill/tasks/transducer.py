"""Recognition by a transducer: each token is said knowing those before it."""

from __future__ import annotations

import functools

import torch
from torch import nn

from voxstill.nn import losses, students
from voxstill.tasks.ctc import CtcTask
from voxstill.training.task import Loss, ModelInput, StepContext


class TransducerTask(CtcTask):
    """A `Task`: the augmentation of CTC, and the loss of RNN-T, or of TDT where the student has durations."""

    num_views = 1

    def loss(self, model: nn.Module, model_input: ModelInput, context: StepContext) -> Loss:
        """The transducer's loss per token, and as much of what a CTC student learns as `auxiliary_ctc` says."""
        batch = model_input.batch
        encoded_BFP, out_B, predicted_BUP = students.encode_and_predict(
            model, model_input.inputs, model_input.len_B, batch.tokens_BU
        )
        blank_id, durations = self.vocabulary.blank_id, students.durations(model)
        joint = functools.partial(students.joint, model)
        transducer = (
            functools.partial(losses.duration_transducer, durations=durations) if durations else losses.transducer
        )
        loss_B = transducer(
            joint,
            encoded_BFP,
            predicted_BUP,
            out_B,
            batch.tokens_BU,
            token_len_B=batch.token_len_B,
            blank_id=blank_id,
        )
        rnnt = (loss_B * batch.weight_B).sum() / context.num_tokens
        if not self.train_cfg.auxiliary_ctc:
            return Loss(rnnt)
        # left alone, the predictor learns the texts by heart before the encoder hears anything
        unspoken_B1P = torch.zeros_like(encoded_BFP[:, :1])
        logits_BFV = joint(encoded_BFP, unspoken_B1P)[..., : blank_id + 1]
        alone = self.alone(logits_BFV, out_B, batch, model_input.frame_ms_B, context)
        return Loss(rnnt + self.train_cfg.auxiliary_ctc * alone.value, {"rnnt": rnnt.detach(), **alone.figures})
