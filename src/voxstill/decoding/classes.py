"""The class of each utterance, and the embedding by which voices are compared."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from voxstill.core.records import Hypothesis
from voxstill.nn import classifiers
from voxstill.nn.frontends import Frontend


def classify(
    model: nn.Module,
    frontend: Frontend,
    names: Sequence[str],
    audio_BT: Tensor,
    audio_len_B: Tensor,
    ids: Sequence[str],
) -> tuple[list[Hypothesis], Tensor | None]:
    """Classify one batch; return the likeliest class of each utterance as its text, in order.

    And embeddings of unit length (B, E) on the CPU, where the model has them.
    """
    inputs, len_B = frontend.extract(audio_BT, audio_len_B)
    score_BC, embedding_BE = classifiers.scores(model, inputs, len_B)
    classes = score_BC.argmax(1).tolist()
    hypotheses = [Hypothesis(id=id_, text=names[i], token_ids=(i,)) for id_, i in zip(ids, classes, strict=True)]
    return hypotheses, None if embedding_BE is None else embedding_BE.float().cpu()
