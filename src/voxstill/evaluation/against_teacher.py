"""The comparison of a student with its teacher: the difference of their word error rates, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass

from voxstill.core.result import Result
from voxstill.scoring.stats import Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstTeacher(Result):
    """The WER of the student less that of its teacher on the same utterances, with a paired test over speakers.

    It is over utterances where no speakers are known. Where all are of one speaker, there is no interval and no p.
    """

    difference: float
    interval: tuple[float, float] | None
    """95 % bootstrap interval of `difference`."""
    p: float | None
    """Two-sided p-value of the null hypothesis that both are equally good."""
    surely: bool
    """Whether p is small."""
    units: int
    """How many speakers or utterances were drawn from."""
    over: Unit

    def to_text(self) -> str:
        """One line."""
        difference = f"student - teacher: {100 * self.difference:+.1f} points of WER"
        if self.interval is None or self.p is None:
            return f"{difference}; there is no interval, as all utterances are of one speaker"
        low, high = (f"{100 * bound:+.1f}" for bound in self.interval)
        p = "p < 0.001" if self.p < 0.001 else f"p = {self.p:.2g}"
        unknown = " (no speakers are known)" if self.over == "utterances" else ""
        return f"{difference} ({low} to {high}), {p}, over {self.units:,} {self.over}{unknown}"
