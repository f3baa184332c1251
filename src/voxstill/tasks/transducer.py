"""Recognition by a transducer: each token is said knowing those before it."""

from __future__ import annotations

import functools

import torch
from torch import Generator, nn

from voxstill.decode import transducer as decoding
from voxstill.nn import losses, students
from voxstill.nn.frontend import FRAME_MS
from voxstill.records import Batch, Hypothesis
from voxstill.tasks.ctc import CtcTask
from voxstill.tasks.task import Loss, Share


class TransducerTask(CtcTask):
    """A `Task`: the features and augmentation of CTC, and the loss and greedy decoding of RNN-T."""

    def loss(self, model: nn.Module, batch: Batch, share: Share, generator: Generator) -> Loss:
        """RNN-T per token, and as much of what a CTC student learns as `auxiliary_ctc` says."""
        batch, features_BFD, frames_B, frame_ms_B = self.heard(batch, share.progress, generator)
        encoded_BFP, out_B, predicted_BUP = students.transduced(model, features_BFD, frames_B, batch.tokens_BU)
        loss_B = losses.transducer(
            functools.partial(students.joint, model),
            *(encoded_BFP, predicted_BUP, out_B, batch.tokens_BU, batch.token_len_B),
            self.vocabulary.blank_id,
        )
        rnnt = (loss_B * batch.weight_B).sum() / share.num_tokens
        if not self.train_cfg.auxiliary_ctc:
            return Loss(rnnt)
        # left alone, the predictor learns the texts by heart before the encoder hears anything
        unspoken_B1P = torch.zeros_like(encoded_BFP[:, :1])
        alone = self.alone(students.joint(model, encoded_BFP, unspoken_B1P), out_B, batch, frame_ms_B, share)
        return Loss(rnnt + self.train_cfg.auxiliary_ctc * alone.value, {"rnnt": rnnt.detach(), **alone.figures})

    @torch.no_grad()
    def decode(self, model: nn.Module, batch: Batch) -> list[Hypothesis]:
        """Greedy hypotheses, in the order of the batch."""
        features_BFD, frames_B = self.frontend(batch.audio_BT, batch.audio_len_B)
        encoded_BFP, out_B, _ = students.transduced(model, features_BFD, frames_B, batch.tokens_BU[:, :0])
        return decoding.greedy(
            encoded_BFP,
            out_B,
            predict=functools.partial(students.predict, model),
            joint=functools.partial(students.joint, model),
            ids=batch.ids,
            pieces=self.vocabulary.pieces,
            frame_ms=FRAME_MS,
        )
