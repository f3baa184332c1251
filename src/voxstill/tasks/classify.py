"""Classification of whole utterances, by class or by speaker: one class for each, as its one token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Generator, Tensor, nn

from voxstill.core.records import Batch, Hypothesis
from voxstill.decoding.classes import classify
from voxstill.nn import classifiers, losses
from voxstill.nn.frontends import Frontend
from voxstill.scoring import verification
from voxstill.training.task import DevBatch, Loss, ModelInput, StepContext, Unit


class ClassifyTask:
    """A `Task`: cross-entropy of the class of each utterance; of speakers, with a margin.

    With `verifies`, the dev split is judged by comparing its utterances in pairs, drawn from `seed`: its speakers are
    new.
    """

    unit: Unit = "utterances"

    def __init__(
        self, names: Sequence[str], frontend: Frontend, *, speakers: bool, verifies: bool = False, seed: int = 0
    ) -> None:
        self.names, self.frontend, self.verifies, self._seed = names, frontend, verifies, seed
        self._loss = losses.additive_margin if speakers else losses.cross_entropy

    @property
    def dev_figure(self) -> str:
        """Name of the figure that the dev split is judged by."""
        return "eer" if self.verifies else "error"

    def prepare(self, batch: Batch, progress: float, generator: Generator) -> ModelInput:
        """Augment a batch and compute its features."""
        inputs, len_B, frame_ms_B = self.frontend.extract_augmented(
            batch.audio_BT, batch.audio_len_B, batch.tempo_B, progress, generator
        )
        return ModelInput(batch, inputs, len_B, frame_ms_B)

    def loss(self, model: nn.Module, model_input: ModelInput, context: StepContext) -> Loss:
        """Compute the loss per utterance of the step; `accuracy` is that of the training, augmented as it is."""
        batch, num = model_input.batch, context.count(self.unit)
        score_BC, _ = classifiers.scores(model, model_input.inputs, model_input.len_B)
        class_B = batch.tokens_BU[:, 0]
        loss_B = self._loss(score_BC, class_B) * batch.weight_B
        right_B = (score_BC.argmax(1) == class_B) & (batch.weight_B > 0)
        return Loss(loss_B.sum() / num, {"accuracy": right_B.sum() / num})

    def validate(self, model: nn.Module, batches: Iterable[DevBatch]) -> dict[str, float] | None:
        """Return the share of utterances taken for another class; of new speakers, the equal error rate of all pairs.

        None if there is nothing to judge by.
        """
        if self.verifies:
            return self._verify(model, batches)
        num = wrong = 0
        for dev in batches:
            for hypothesis, reference in zip(self.decode(model, dev.batch), dev.references, strict=True):
                num += 1
                wrong += hypothesis.text != reference
        return {"error": wrong / num, "utterances": num} if num else None

    def _verify(self, model: nn.Module, batches: Iterable[DevBatch]) -> dict[str, float] | None:
        embedded, speakers = [], []
        for dev in batches:
            embedded.append(self.embed(model, dev.batch).numpy())
            speakers += [speaker or None for speaker in dev.references]
        if not embedded:
            return None
        score_N, same_N = verification.compare(np.concatenate(embedded), speakers, self._seed)
        if same_N.all() or not same_N.any():
            return None
        return {"eer": verification.eer(score_N, same_N), "trials": len(same_N)}

    def move(self, device: torch.device) -> None:
        """Move what features are computed with to the device."""
        self.frontend.move(device)

    def watch(self, step: int, figures: Mapping[str, float]) -> None:
        """Warn of nothing: the accuracy and the dev split say enough."""

    @torch.no_grad()
    def decode(self, model: nn.Module, batch: Batch) -> list[Hypothesis]:
        """Return the most likely class of each utterance, in the order of the batch."""
        return classify(model, self.frontend, self.names, batch.audio_BT, batch.audio_len_B, batch.ids)[0]

    @torch.no_grad()
    def embed(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return an embedding of unit length for each utterance (B, E), on the CPU."""
        embedding_BE = classify(model, self.frontend, self.names, batch.audio_BT, batch.audio_len_B, batch.ids)[1]
        assert embedding_BE is not None
        return embedding_BE
