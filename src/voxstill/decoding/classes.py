"""The class of each utterance, and the embedding by which voices are compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from voxstill.core.config import Augment
from voxstill.core.records import Hypothesis
from voxstill.nn import checkpoints, classifiers
from voxstill.nn.frontends import Frontend


class LoadedClassifier:
    """A class or speaker student with its frontend, on its device."""

    def __init__(self, folder: Path, augment: Augment) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = classifiers.load(folder)
        self.frontend = checkpoints.make_frontend(self.model.config, augment, None, str(folder))
        self.frontend.move(self.device)
        self.model.eval().to(self.device)
        self.names = classifiers.names_of(self.model)

    def predict(self, samples_T: NDArray[np.int16]) -> NDArray[np.float32] | None:
        """Probabilities of the classes (C,), or the embedding of a speaker student (E,); None if it is too short."""
        if not self.frontend.num_frames(len(samples_T)):
            return None
        with torch.inference_mode():
            audio_BT = torch.tensor(samples_T, device=self.device)[None]
            len_B = torch.tensor([len(samples_T)], device=self.device)
            score_BC, embedding_BE = classifiers.scores(self.model, *self.frontend.extract(audio_BT, len_B))
            output_BD = score_BC.float().softmax(1) if embedding_BE is None else embedding_BE.float()
        output_D: NDArray[np.float32] = output_BD[0].cpu().numpy()
        return output_D


def classify(
    model: nn.Module,
    frontend: Frontend,
    names: Sequence[str],
    audio_BT: Tensor,
    audio_len_B: Tensor,
    ids: Sequence[str],
) -> tuple[list[Hypothesis], Tensor | None]:
    """Classify one batch; return the most likely class of each utterance as its text, in order.

    And embeddings of unit length (B, E) on the CPU, where the model has them.
    """
    inputs, len_B = frontend.extract(audio_BT, audio_len_B)
    score_BC, embedding_BE = classifiers.scores(model, inputs, len_B)
    classes = score_BC.argmax(1).tolist()
    hypotheses = [Hypothesis(id=id_, text=names[i], token_ids=(i,)) for id_, i in zip(ids, classes, strict=True)]
    return hypotheses, None if embedding_BE is None else embedding_BE.float().cpu()
