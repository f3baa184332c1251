"""LocalAgreement-2: of a text that is transcribed again and again while it grows, the words that no longer change."""

from __future__ import annotations

from collections.abc import Sequence

from voxstill.core.records import Word


class Agreement:
    """The words of one utterance that two hypotheses in a row agree on (Liu et al. 2020; Machacek et al. 2023).

    What was agreed on stays, also where a later hypothesis differs.
    """

    def __init__(self) -> None:
        self._agreed: list[Word] = []
        self._previous: Sequence[Word] = ()

    @property
    def words(self) -> Sequence[Word]:
        """The words that were agreed on so far."""
        return self._agreed

    def add(self, words: Sequence[Word]) -> list[Word]:
        """Take the words of the next hypothesis; return those that are agreed on from now on."""
        num_equal = 0
        for word, before in zip(words, self._previous, strict=False):
            if word.text != before.text:
                break
            num_equal += 1
        self._previous = words
        return self._extend(words[:num_equal])

    def end(self, words: Sequence[Word]) -> list[Word]:
        """Take the words of the whole utterance; return those that follow what was agreed on."""
        return self._extend(words)

    def _extend(self, words: Sequence[Word]) -> list[Word]:
        added = list(words[len(self._agreed) :])
        self._agreed += added
        return added
