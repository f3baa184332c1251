"""Figures of the dev split that several tasks share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from voxstill.core.records import Batch, Hypothesis
from voxstill.scoring import words
from voxstill.training.task import DevBatch


def word_error_rate(
    decode: Callable[[Batch], Sequence[Hypothesis]], batches: Iterable[DevBatch]
) -> dict[str, float] | None:
    """Count word errors against the references; return WER, words and errors, or None without reference words."""

    def pairs() -> Iterator[tuple[str, str]]:
        for dev in batches:
            texts = (hypothesis.text for hypothesis in decode(dev.batch))
            yield from zip(dev.references, texts, strict=True)

    total = words.wer(pairs())
    return None if total.rate is None else {"wer": total.rate, "words": total.reference, "errors": total.errors}
