"""How well texts that are given fit their audio, by the log-probabilities of a CTC model, and when words are said."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from voxstill.decoding.word_times import AlignedText, word_times
from voxstill.text.pieces import PieceVocabulary

_CACHED_WORDS = 1 << 16


class TextAligner:
    """Scores texts, summed over all alignments, and finds the times of their words on the most likely one."""

    def __init__(self, vocabulary: PieceVocabulary, frame_ms: int) -> None:
        self._vocabulary, self._frame_ms = vocabulary, frame_ms

    def align(
        self, log_probs: Sequence[NDArray[np.float32]], texts: Sequence[str], with_words: Sequence[bool]
    ) -> list[AlignedText]:
        """Align each text with its log-probabilities (F, V); its own is that of the best of its spellings."""
        return list(map(self._align_text, log_probs, texts, with_words))

    def _align_text(self, log_probs_FV: NDArray[np.float32], text: str, with_words: bool) -> AlignedText:
        from voxstill.decoding.ctc_likelihood import mean_log_likelihood  # compiled code

        blank_id = self._vocabulary.blank_id
        scores = [mean_log_likelihood(log_probs_FV, ids, blank_id) for ids in self._vocabulary.encodings(text)]
        best = max((score for score in scores if score is not None), default=None)
        if best is None or not with_words:
            return AlignedText(best)
        delimiter_id = self._vocabulary.delimiter_id
        words = word_times(log_probs_FV, text, self._encode_word, blank_id, delimiter_id, self._frame_ms)
        return AlignedText(best, words)

    @functools.cached_property
    def _encode_word(self) -> Callable[[str], Sequence[int]]:
        return functools.lru_cache(_CACHED_WORDS)(lambda word: next(iter(self._vocabulary.encodings(word)), ()))
