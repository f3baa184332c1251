"""Recognition by a transducer: each token is said knowing those before it."""

from __future__ import annotations

import functools

from torch import nn

from voxstill.nn import losses, students
from voxstill.tasks.ctc import CtcTask
from voxstill.training.task import Loss, ModelInput, StepContext


class TransducerTask(CtcTask):
    """A `Task`: the augmentation of CTC, and the loss of RNN-T, or of TDT where the student has durations."""

    num_views = 1

    def loss(self, model: nn.Module, model_input: ModelInput, context: StepContext) -> Loss:
        """The transducer's loss per token, as much of what a CTC student learns as `auxiliary_ctc` says, and what the
        teacher adds where there is one."""
        batch, blank_id, durations = model_input.batch, self.vocabulary.blank_id, students.durations(model)
        encoded_BFP, out_B, predicted_BUP, states = students.encode_and_predict(
            model, model_input.inputs, model_input.len_B, batch.tokens_BU, self.distilled_layers
        )
        taught = self.taught(batch)
        joint = functools.partial(students.joint, model)
        lattice = losses.lattice(
            joint,
            encoded_BFP,
            predicted_BUP,
            batch.tokens_BU,
            blank_id,
            len(durations),
            with_rest=taught is not None and taught.has_lattice,
        )
        if durations:
            loss_B = losses.duration_transducer(lattice, out_B, batch.token_len_B, durations)
        else:
            loss_B = losses.transducer(lattice, out_B, batch.token_len_B)
        rnnt = (loss_B * batch.weight_B).sum() / context.num_tokens
        loss = Loss(rnnt)
        if self.train_cfg.auxiliary_ctc:
            # left alone, the predictor memorises the texts before the encoder learns anything
            logits_BFV = students.frame_logits(model, encoded_BFP, blank_id)
            alone = self.alone(logits_BFV, out_B, batch, model_input.frame_ms_B, context, taught)
            loss = Loss(rnnt + self.train_cfg.auxiliary_ctc * alone.value, {"rnnt": rnnt.detach(), **alone.figures})
        if taught is not None:
            loss = loss.plus(taught.lattice_loss(lattice, out_B, context))
            loss = loss.plus(taught.layer_loss(model, states, out_B, context))
        return loss
