"""What was tuned on the dev split before a student was judged, and what that gained on the split that was judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from voxstill.core.result import Result
from voxstill.scoring.stats import PairedTest

DEV = "dev"
"""The split on which weights are tuned."""
References = Literal["human", "labels"]
"""Human texts, or the labels of the teacher that the filter kept."""
_WORDS: dict[References, str] = {"human": "human texts", "labels": "the teacher's labels"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain(PairedTest):
    """A paired test on the split that was judged: first the weights of the configuration, second the tuned ones."""

    wer_before: float
    """With the weights of the configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning(Result):
    """The weights of a language model that were found on the dev split, and their gain."""

    split: str
    references: References
    utterances: int
    words: int
    """In the references."""
    lm_weight: float
    word_bonus: float
    wer_before: float
    """On the dev split, with the weights of the configuration."""
    wer_after: float
    """On the dev split, with the tuned weights."""
    gain: Gain | None = None
    """On the split that was judged; None if it contains no words."""

    def to_text(self) -> str:
        """One line."""
        text = (
            f"lm_weight {self.lm_weight:g} and word_bonus {self.word_bonus:g}, by {_WORDS[self.references]} of"
            f" {self.utterances:,} utterances of {self.split}: WER {self.wer_before:.1%} to {self.wer_after:.1%} there"
        )
        if self.gain is None:
            return text
        points, low, high = (100 * rate for rate in (self.gain.difference, *self.gain.interval))
        sure = f"(95 %: {low:+.2f} to {high:+.2f}), p = {self.gain.p:.2g}"
        return f"{text}, {points:+.2f} points here {sure}"
