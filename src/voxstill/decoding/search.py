"""What decodes beside the audio: a beam with a language model and phrases, or a grammar; and decoding with it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from voxstill.core.config import Decode
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.monitor import log
from voxstill.core.records import Hypothesis
from voxstill.decoding import ctc, transducer
from voxstill.decoding.options import GENERATION, RecognizerOptions
from voxstill.decoding.spikes import Pauses
from voxstill.storage.redaction import redact_uri
from voxstill.text.pieces import PieceVocabulary

if TYPE_CHECKING:
    import torch

    from voxstill.decoding.fusion import Fusion
    from voxstill.decoding.grammar_search import TokenGraph

PHRASE_BEAM = 16
"""Texts followed side by side for phrases of a call, where decoding is greedy otherwise."""
_CACHED_SEARCHES = 16
_WORDS_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearch:
    """How many texts are kept, and the scores of a language model and of phrases."""

    width: int
    fusion: Fusion


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarSearch:
    """The tokens of all sentences of a grammar."""

    graph: TokenGraph


Search = BeamSearch | GrammarSearch


class Searches:
    """The search that `decode` asks for, as `search_of` reads it, and the same with phrases of a call."""

    def __init__(
        self, decoding: Decode, vocabulary: PieceVocabulary, options: RecognizerOptions, *, is_ctc: bool, section: str
    ) -> None:
        self._decoding, self._pieces = decoding, vocabulary.pieces
        self._own = search_of(decoding, vocabulary, options, is_ctc=is_ctc, section=section)
        self.takes_phrases = not isinstance(self._own, GrammarSearch)
        """Whether there can be phrases: along a grammar there is no choice of texts."""
        self._with_phrases = functools.lru_cache(_CACHED_SEARCHES)(self._phrase_search)

    def of(self, phrases: Sequence[str] = ()) -> Search | None:
        """The search for these phrases and those of `decode.boost`; None if decoding is greedy."""
        return self._with_phrases(tuple(phrases)) if phrases else self._own

    def _phrase_search(self, phrases: tuple[str, ...]) -> BeamSearch:
        from voxstill.decoding.fusion import fusion, with_phrases

        own = self._own if isinstance(self._own, BeamSearch) else None
        plain = BeamSearch(width=PHRASE_BEAM, fusion=fusion(self._pieces)) if own is None else own
        all_phrases = [*self._decoding.boost, *phrases]
        boosted = with_phrases(plain.fusion, self._pieces, all_phrases, self._decoding.boost_weight)
        return BeamSearch(width=plain.width, fusion=boosted)


def search_of(
    decoding: Decode, vocabulary: PieceVocabulary, options: RecognizerOptions, *, is_ctc: bool, section: str
) -> Search | None:
    """Read the search that `decode` asks for; None if decoding is greedy.

    ConfigError if options are set that this kind of model has no use for, DataError if the file of a language
    model or a grammar is none.
    """
    for name in (name for name in (*GENERATION, "language") if getattr(options, name) is not None):
        raise ConfigError(
            f"`{section}{name}` has no effect",
            code="option-unused",
            why=f"`{options.model}` predicts each frame by itself and does not generate text",
            fix=f"remove `{section}{name}`",
        )
    for name in () if is_ctc else decoding.ctc_only:
        raise ConfigError(
            f"`decode.{name}` has no effect",
            code="option-unused",
            why=f"`{options.model}` is a transducer, and this option is for CTC students",
            fix="leave it out, or give a CTC student",
        )
    if decoding.grammar is not None:
        return grammar_search(decoding.grammar, vocabulary)
    return beam_search(decoding, vocabulary.pieces)


def beam_search(decoding: Decode, pieces: Sequence[str]) -> BeamSearch | None:
    """Read what a beam search needs beside the audio: width, language model and phrases. None if decoding is greedy.

    DataError if the file of the language model is none.
    """
    if decoding.beam == 1:
        return None
    from voxstill.decoding.fusion import fusion
    from voxstill.text import lm

    model = lm.read(decoding.lm) if decoding.lm else None
    word_bonus = decoding.word_bonus if model else 0.0
    fused = fusion(pieces, model, decoding.lm_weight, word_bonus, decoding.boost, decoding.boost_weight)
    return BeamSearch(width=decoding.beam, fusion=fused)


def grammar_search(uri: str, vocabulary: PieceVocabulary) -> GrammarSearch:
    """Read a JSGF grammar, and compile it to the tokens of a CTC model.

    Sentences with words that the vocabulary cannot write are left out, with a warning. DataError if none are left,
    or if it is not a grammar.
    """
    from voxstill.decoding.grammar_search import has_sentence, token_graph
    from voxstill.text import jsgf

    words = jsgf.read(uri).graph()
    spellings = {word: next(iter(vocabulary.encodings(word)), ()) for _, _, word in words.arcs}
    graph = token_graph(words, spellings.__getitem__, vocabulary.delimiter_id)
    if unknown := sorted(word for word, tokens in spellings.items() if not tokens):
        shown = ", ".join(f"`{word}`" for word in unknown[:_WORDS_SHOWN]) + (", ..." if unknown[_WORDS_SHOWN:] else "")
        if not has_sentence(graph):
            raise DataError(
                f"the student cannot output any sentence of the grammar `{redact_uri(uri)}`",
                code="grammar-broken",
                why=f"its vocabulary lacks {shown}",
                fix="check that the grammar is in this student's language, or train it with `student.units: character`",
            )
        log.warning(
            "decode.grammar: the student's vocabulary lacks %s: sentences with %s are left out",
            shown,
            "this word" if len(unknown) == 1 else f"these {len(unknown)} words",
        )
    return GrammarSearch(graph=graph)


def decode_ctc(
    log_probs_BFV: torch.Tensor | NDArray[np.floating],
    frames_B: Iterable[int],
    search: Search | None,
    *,
    ids: Sequence[str],
    pieces: Sequence[str],
    blank_id: int,
    frame_ms: int,
    pauses: Sequence[Pauses | None],
) -> list[Hypothesis]:
    """Decode log-probabilities of a CTC model; one hypothesis for each id. Without a search decoding is greedy."""
    common: dict[str, Any] = {
        "ids": ids,
        "pieces": pieces,
        "blank_id": blank_id,
        "frame_ms": frame_ms,
        "pauses": pauses,
    }
    if isinstance(search, BeamSearch):
        return ctc.beam(log_probs_BFV, frames_B, width=search.width, fusion=search.fusion, **common)
    if search is not None:
        return ctc.grammar(log_probs_BFV, frames_B, graph=search.graph, **common)
    return ctc.greedy(log_probs_BFV, frames_B, **common)


def decode_transducer(
    model: transducer.TransducerModel, batch: transducer.EncodedBatch, search: Search | None
) -> list[Hypothesis]:
    """Decode encoder states of a transducer; one hypothesis for each id. Without a search decoding is greedy."""
    if isinstance(search, BeamSearch):
        from voxstill.decoding import transducer_beam  # compiled code, which greedy decoding does not need

        return transducer_beam.beam(model, batch, width=search.width, fusion=search.fusion)
    return transducer.greedy(model, batch)
