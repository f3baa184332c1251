"""LocalAgreement: of a text that is transcribed again and again while it grows, the words that no longer change."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from voxstill.core.records import Word

HYPOTHESES = 3
"""So many in a row must agree on a word (LocalAgreement-n)."""


class Agreement:
    """The words of one utterance that three hypotheses in a row agree on (Liu et al. 2020; Machacek et al. 2023).

    What was agreed on stays, also where a later hypothesis differs.
    """

    def __init__(self) -> None:
        self._agreed: list[Word] = []
        self._last: deque[Sequence[Word]] = deque(maxlen=HYPOTHESES)

    @property
    def words(self) -> Sequence[Word]:
        """The words that were agreed on so far."""
        return self._agreed

    @property
    def interim(self) -> Sequence[Word]:
        """The words of the last hypothesis that follow and may still change."""
        return self._last[-1][len(self._agreed) :] if self._last else ()

    def add(self, words: Sequence[Word]) -> list[Word]:
        """Take the words of the next hypothesis; return those that are agreed on from now on."""
        self._last.append(words)
        if len(self._last) < HYPOTHESES:
            return []
        num_equal = 0
        for same in zip(*self._last, strict=False):
            if len({word.text for word in same}) > 1:
                break
            num_equal += 1
        return self._extend(words[:num_equal])

    def end(self, words: Sequence[Word]) -> list[Word]:
        """Take words that stay as a whole; return those that follow what was agreed on."""
        self._last.clear()
        return self._extend(words)

    def _extend(self, words: Sequence[Word]) -> list[Word]:
        added = list(words[len(self._agreed) :])
        self._agreed += added
        return added
