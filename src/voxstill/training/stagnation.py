"""The loss falls and the error on the dev split does not: a warning that says where to look."""

from __future__ import annotations

from collections.abc import Sequence

from voxstill.core.monitor import log
from voxstill.training.state import State, Validation

NUM_VALIDATIONS = 5
"""So many in a row are compared."""
LOSS_FALLS = 0.1
"""The loss falls where it loses this share."""
ERROR_FALLS = 0.01
"""The error falls where it loses this share."""
SMALL_ERROR = 0.1
"""Below it an error that stays has most likely reached what the data allow."""
_WORDS = "wer"


def watch(state: State, metric: str) -> None:
    """After a validation: warn, once in a training, where the error `metric` does not follow the loss."""
    if state.loss is None or state.error is None:
        return
    state.validations = (*state.validations, (state.loss, state.error))[-NUM_VALIDATIONS:]
    if not state.is_stagnation_told and (advice := advice_on(state.validations, metric)):
        log.warning("train: %s", advice)
        state.is_stagnation_told = True


def advice_on(validations: Sequence[Validation], metric: str) -> str | None:
    """What is wrong and what to look at, the most likely first; None if the error falls with the loss, or is small."""
    if len(validations) < NUM_VALIDATIONS:
        return None
    losses, errors = zip(*validations, strict=True)
    if losses[0] - losses[-1] < LOSS_FALLS * abs(losses[0]) or min(errors) < SMALL_ERROR:
        return None
    if min(errors[1:]) < errors[0] * (1 - ERROR_FALLS):
        return None
    reasons = ["overfitting: use more audio, more augmentation, a smaller student, or `train.patience`"]
    if metric == _WORDS:
        reasons += [
            "the labels of the dev split: another teacher, language or spelling than those of the train split",
            "the tokenizer: the vocabulary lacks characters or words of the dev split (`student.units`)",
            "decoding: early in training a CTC student outputs only blanks, for thousands of steps without word times",
        ]
        if errors[-1] > 1 - SMALL_ERROR:  # hardly a word is right: that was never learnt
            reasons.reverse()
    return (
        f"over {len(validations)} validations the loss fell from {losses[0]:.3g} to {losses[-1]:.3g}, and the "
        f"{metric} on the dev split went from {errors[0]:.3f} to {errors[-1]:.3f}. Check {'; '.join(reasons)}"
    )
