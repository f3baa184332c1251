"""Telling classes apart, or speakers: one class for each utterance, as its one token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from voxstill.nn import classifiers, losses
from voxstill.nn.hearing import Hearing
from voxstill.records import Batch, Hypothesis
from voxstill.score import verification
from voxstill.tasks.task import Heard, Loss, Share

MOST_COMPARED = 3000
"""Of more utterances so many are drawn, all pairs of which are trials: four and a half million."""


class ClassifyTask:
    """A `Task`: cross-entropy of the class of each utterance; of speakers, with a margin."""

    def __init__(self, names: Sequence[str], hearing: Hearing, *, speakers: bool) -> None:
        self.names, self.hearing = names, hearing
        self._loss = losses.additive_margin if speakers else losses.cross_entropy

    def heard(self, batch: Batch, progress: float, generator: Generator) -> Heard:
        """What the augmentation leaves."""
        augmented = self.hearing.augmented(batch.audio_BT, batch.audio_len_B, batch.tempo_B, progress, generator)
        return Heard(batch, *augmented)

    def loss(self, model: nn.Module, heard: Heard, share: Share) -> Loss:
        """Per utterance of the step; `accuracy` is that of the training, augmented as it is."""
        batch = heard.batch
        score_BC, _ = classifiers.scores(model, heard.inputs, heard.len_B)
        class_B = batch.tokens_BU[:, 0]
        loss_B = self._loss(score_BC, class_B) * batch.weight_B
        right_B = (score_BC.argmax(1) == class_B) & (batch.weight_B > 0)
        return Loss(loss_B.sum() / share.num_tokens, {"accuracy": right_B.sum() / share.num_tokens})

    def move(self, device: torch.device) -> None:
        """What it hears with to the device."""
        self.hearing.move(device)

    def watch(self, step: int, figures: Mapping[str, float]) -> None:
        """The accuracy and the dev split say enough."""

    @torch.no_grad()
    def decode(self, model: nn.Module, batch: Batch) -> list[Hypothesis]:
        """The likeliest class of each utterance, in the order of the batch."""
        return named(model, self.hearing, self.names, batch.audio_BT, batch.audio_len_B, batch.ids)[0]

    @torch.no_grad()
    def embed(self, model: nn.Module, batch: Batch) -> Tensor:
        """(B, E) an embedding of unit length for each utterance, on the CPU."""
        embedding_BE = named(model, self.hearing, self.names, batch.audio_BT, batch.audio_len_B, batch.ids)[1]
        assert embedding_BE is not None
        return embedding_BE


def named(
    model: nn.Module, hearing: Hearing, names: Sequence[str], audio_BT: Tensor, audio_len_B: Tensor, ids: Sequence[str]
) -> tuple[list[Hypothesis], Tensor | None]:
    """The likeliest class of each utterance, and its embedding of unit length (B, E) where the model has one."""
    inputs, len_B = hearing.plain(audio_BT, audio_len_B)
    score_BC, embedding_BE = classifiers.scores(model, inputs, len_B)
    found = score_BC.argmax(1).tolist()
    said = [Hypothesis(id=id_, text=names[each], token_ids=(each,)) for id_, each in zip(ids, found, strict=True)]
    return said, None if embedding_BE is None else embedding_BE.float().cpu()


def compared(
    embedding_ND: NDArray[np.float32], speakers: Sequence[str | None], seed: int
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """The cosine of every pair of utterances whose speakers are known, and whether one speaker says both.

    Of more than `MOST_COMPARED` utterances so many are drawn from the seed.
    """
    known_K = np.flatnonzero([each is not None for each in speakers])
    if len(known_K) > MOST_COMPARED:
        known_K = np.sort(np.random.default_rng(seed).choice(known_K, MOST_COMPARED, replace=False))
    trials = verification.trials([speakers[each] for each in known_K.tolist()])
    cosine_KK = embedding_ND[known_K] @ embedding_ND[known_K].T
    return cosine_KK[trials.first_N, trials.second_N], trials.same_N
