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
from voxstill.decoding.loaded import Samples, padded
from voxstill.decoding.options import BATCH_MS, GPU_MS
from voxstill.decoding.recognizer import batches_by_length
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

    @property
    def batch_ms(self) -> int:
        """Most audio that the model is given at once, padding included."""
        return BATCH_MS if self.device.type == "cpu" else GPU_MS

    def predict_batch(self, samples: Sequence[Samples]) -> list[NDArray[np.float32] | None]:
        """For each utterance probabilities of the classes (C,), or the embedding of a speaker student (E,), in order;
        None if it is too short."""
        usable = [i for i, samples_T in enumerate(samples) if self.frontend.num_frames(len(samples_T))]
        outputs: list[NDArray[np.float32] | None] = [None] * len(samples)
        for members in batches_by_length([len(samples[i]) for i in usable], self.batch_ms):
            rows = [usable[member] for member in members]
            audio_BT, len_B = padded([samples[row] for row in rows], self.device)
            with torch.inference_mode():
                score_BC, embedding_BE = classifiers.scores(self.model, *self.frontend.extract(audio_BT, len_B))
                output_BD = score_BC.float().softmax(1) if embedding_BE is None else embedding_BE.float()
            for row, output_D in zip(rows, output_BD.cpu().numpy(), strict=True):
                outputs[row] = output_D
        return outputs


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
