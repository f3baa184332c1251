"""The vocabulary of a CTC model or a transducer as decoding needs it: pieces by id, and the tokens of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from voxstill.text.normalize import basic


class Encode(Protocol):
    """A tokenizer of text."""

    def __call__(self, text: str) -> Sequence[int]:
        """Return the token ids of the text, without special tokens; some may be unknown."""
        ...


class PieceVocabulary:
    """Vocabulary of a CTC model or a transducer: `pieces` by id of the logits, `▁` where a word begins.

    Blank and special tokens are empty strings. `delimiter_id` is the token between words, of models that have one.
    """

    def __init__(self, pieces: Sequence[str], blank_id: int, delimiter_id: int | None, encode: Encode) -> None:
        self.pieces, self.blank_id, self.delimiter_id = tuple(pieces), blank_id, delimiter_id
        self._encode = encode

    def encodings(self, text: str) -> list[list[int]]:
        """Token ids of the text as it is, normalized, or in capitals: the first that the vocabulary can write.

        Empty if it can write none of these. A model with a word delimiter may or may not emit it after the last
        word: then there are two.
        """
        normalized = basic(text)
        for candidate in (" ".join(text.split()), normalized, normalized.upper()):
            ids = list(self._encode(candidate))
            if ids and all(id_ < len(self.pieces) and self.pieces[id_] for id_ in ids):
                return [ids] if self.delimiter_id is None else [ids, [*ids, self.delimiter_id]]
        return []
