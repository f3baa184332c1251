"""CTC models and transducers as recognisers, and the decoding of one batch.

Decoding is greedy, or a beam search with a language model and phrases.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from voxstill.core.config import Augment, Decode
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.monitor import log
from voxstill.core.records import RATE_HZ, Hypothesis, Word
from voxstill.decoding import ctc, seq2seq, spikes, transducer
from voxstill.decoding.loaded import dtype_of
from voxstill.decoding.options import GENERATION, RecognizerOptions
from voxstill.decoding.word_times import AlignedText, word_times
from voxstill.nn import checkpoints, students
from voxstill.nn.frontends import Frontend
from voxstill.storage.redaction import redact_uri
from voxstill.text.pretrained import CheckpointVocabulary, WhisperTokenizer
from voxstill.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from voxstill.decoding.fusion import Fusion
    from voxstill.decoding.grammar_search import TokenGraph

PieceTokenizer = Vocabulary | CheckpointVocabulary
"""Tokenizers of CTC students and of transducers."""
_CACHED_WORDS = 1 << 16
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


def decode_batch(
    model: PreTrainedModel,
    frontend: Frontend,
    tokenizer: PieceTokenizer | WhisperTokenizer,
    audio_BT: Tensor,
    audio_len_B: Tensor,
    ids: Sequence[str],
    search: BeamSearch | GrammarSearch | None = None,
    blank_penalty: float = 0.0,
) -> list[Hypothesis]:
    """Transcribe one batch; return one Hypothesis per utterance, in order.

    `audio_BT` is int16 at 16 kHz. Decoding is greedy, or the search of `beam_search` or `grammar_search`.
    `blank_penalty` is for CTC.
    """
    inputs, len_B = frontend.extract(audio_BT, audio_len_B)
    inputs = inputs.to(model.dtype)
    if isinstance(tokenizer, WhisperTokenizer):
        return _decode_seq2seq(model, tokenizer, inputs, ids)
    common: dict[str, Any] = {
        "ids": ids,
        "pieces": tokenizer.pieces,
        "blank_id": tokenizer.blank_id,
        "frame_ms": frontend.frame_ms,
        "pauses": [
            spikes.pauses(samples_T[:num]) for samples_T, num in zip(audio_BT.cpu().numpy(), audio_len_B, strict=True)
        ],
    }
    if students.student_kind(model) == "ctc":
        logits_BFV, out_B = students.logits(model, inputs, len_B)
        log_probs_BFV = ctc.log_probs(logits_BFV, tokenizer.blank_id, blank_penalty)
        if isinstance(search, BeamSearch):
            return ctc.beam(log_probs_BFV, out_B.tolist(), width=search.width, fusion=search.fusion, **common)
        if search is not None:
            return ctc.grammar(log_probs_BFV, out_B.tolist(), graph=search.graph, **common)
        return ctc.greedy(log_probs_BFV, out_B.tolist(), **common)
    no_tokens_B0 = torch.zeros(len(ids), 0, dtype=torch.long, device=audio_BT.device)
    encoded_BFP, out_B, *_ = students.encode_and_predict(model, inputs, len_B, no_tokens_B0)
    frame_logits_BFV = students.frame_logits(model, encoded_BFP, tokenizer.blank_id).float()
    common |= {
        "frame_log_probs": frame_logits_BFV.log_softmax(-1).cpu().numpy(),
        "predict": functools.partial(students.predict, model),
        "joint": functools.partial(students.joint, model),
        "durations": students.durations(model),
    }
    if isinstance(search, BeamSearch):
        return transducer.beam(encoded_BFP, out_B, width=search.width, fusion=search.fusion, **common)
    return transducer.greedy(encoded_BFP, out_B, **common)


def _decode_seq2seq(
    model: PreTrainedModel, tokenizer: WhisperTokenizer, inputs: Tensor, ids: Sequence[str]
) -> list[Hypothesis]:
    texts = seq2seq.greedy(
        students.decoder_step(model, inputs),
        len(ids),
        prefix=tokenizer.prefix,
        end_id=tokenizer.end_id,
        longest=model.config.max_target_positions - len(tokenizer.prefix),
        device=inputs.device,
    )
    return [
        Hypothesis(id=id_, text=tokenizer.decode(tokens), score=score, token_ids=tuple(tokens))
        for id_, (tokens, score) in zip(ids, texts, strict=True)
    ]


def beam_search(decoding: Decode, pieces: Sequence[str]) -> BeamSearch | None:
    """Read what a beam search needs beside the audio: width, language model and phrases. None where decoding is greedy.

    DataError where the file of the language model is none.
    """
    if decoding.beam == 1:
        return None
    from voxstill.decoding.fusion import fusion
    from voxstill.text import lm

    model = lm.read(decoding.lm) if decoding.lm else None
    word_bonus = decoding.word_bonus if model else 0.0
    fused = fusion(pieces, model, decoding.lm_weight, word_bonus, decoding.boost, decoding.boost_weight)
    return BeamSearch(width=decoding.beam, fusion=fused)


def grammar_search(uri: str, vocabulary: CheckpointVocabulary) -> GrammarSearch:
    """Read a JSGF grammar, and compile it to the tokens of a CTC model.

    Sentences with words that the vocabulary cannot write are left out, with a warning. DataError where none are left,
    or where it is no grammar.
    """
    from voxstill.decoding.grammar_search import has_sentence, token_graph
    from voxstill.text import jsgf

    words = jsgf.read(uri).graph()
    spellings = {word: next(iter(vocabulary.encodings(word)), ()) for _, _, word in words.arcs}
    graph = token_graph(words, spellings.__getitem__, vocabulary.delimiter_id)
    if unknown := sorted(word for word, tokens in spellings.items() if not tokens):
        some = ", ".join(f"`{word}`" for word in unknown[:_WORDS_SHOWN]) + (", ..." if unknown[_WORDS_SHOWN:] else "")
        if not has_sentence(graph):
            raise DataError(
                f"the student can write no sentence of the grammar `{redact_uri(uri)}`",
                why=f"its vocabulary lacks {some}",
                fix="check that the grammar is of this student's language, or train it with `student.units: character`",
            )
        log.warning(
            "decode.grammar: the student's vocabulary lacks %s: sentences with %s are left out",
            some,
            "this word" if len(unknown) == 1 else f"these {len(unknown)} words",
        )
    return GrammarSearch(graph=graph)


class FrameModel:
    """A CTC model or a transducer; a `LoadedModel`. ConfigError where options are set that only `generate` knows."""

    max_duration_ms: int | None = None
    takes_batches = True
    languages: Collection[str] = ()

    def __init__(
        self, folder: Path, options: RecognizerOptions, decoding: Decode, device: torch.device, section: str
    ) -> None:
        for name in (name for name in (*GENERATION, "language") if getattr(options, name) is not None):
            raise ConfigError(
                f"`{section}{name}` has no use",
                why=f"`{options.model}` says what each moment of the audio is and writes no text by itself",
                fix=f"take `{section}{name}` away",
            )
        self.model = checkpoints.load(folder).eval().to(device, dtype_of(options, device))
        self.vocabulary = CheckpointVocabulary(folder, students.blank_id(self.model), self.model.config.vocab_size)
        self._frontend = checkpoints.make_frontend(self.model.config, Augment(), checkpoint=str(folder))
        self._frontend.move(device)
        self._search: BeamSearch | GrammarSearch | None = beam_search(decoding, self.vocabulary.pieces)
        self._blank_penalty = decoding.blank_penalty
        for name in decoding.ctc_only:
            if students.student_kind(self.model) != "ctc":
                raise ConfigError(
                    f"`decode.{name}` has no use",
                    why=f"`{options.model}` is a transducer, and that is for CTC students",
                    fix="leave it out, or give a CTC student",
                )
        if decoding.grammar is not None:
            self._search = grammar_search(decoding.grammar, self.vocabulary)
        if self._search is not None:  # compiled now, and not while it is timed
            silence_BT = torch.zeros(1, RATE_HZ, dtype=torch.int16, device=device)
            with torch.inference_mode():
                self.transcribe(silence_BT, torch.tensor([RATE_HZ], device=device), [""], [None])

    def transcribe(
        self, audio_BT: torch.Tensor, audio_len_B: torch.Tensor, ids: Sequence[str], languages: Sequence[str | None]
    ) -> list[Hypothesis]:
        """Transcribe one batch; return one Hypothesis per utterance, in order. Languages make no difference."""
        return decode_batch(
            *(self.model, self._frontend, self.vocabulary, audio_BT, audio_len_B, ids),
            search=self._search,
            blank_penalty=self._blank_penalty,
        )


class CtcModel(FrameModel):
    """A CTC model, which can also score a text that is given: forced alignment, summed over all alignments."""

    @property
    def frame_ms(self) -> int:
        """From one frame of `log_probs` to the next."""
        return self._frontend.frame_ms

    def log_probs(
        self, audio_BT: torch.Tensor, audio_len_B: torch.Tensor, blank_penalty: float = 0.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the log-probabilities (B, F, V) of the tokens in each frame, and the frames of each utterance (B,)."""
        inputs, len_B = self._frontend.extract(audio_BT, audio_len_B)
        logits_BFV, frames_B = students.logits(self.model, inputs.to(self.model.dtype), len_B)
        return ctc.log_probs(logits_BFV, self.vocabulary.blank_id, blank_penalty), frames_B

    def align(
        self, audio_BT: torch.Tensor, audio_len_B: torch.Tensor, texts: Sequence[str], with_words: Sequence[bool]
    ) -> list[AlignedText]:
        """Align each text with its audio; its log-probability is that of the best of its spellings."""
        log_probs_BFV, frames_B = self.log_probs(audio_BT, audio_len_B)
        tokenized = [(b, ids) for b, text in enumerate(texts) for ids in self.vocabulary.encodings(text)]
        rows = [b for b, _ in tokenized]
        log_probs = ctc.mean_log_likelihoods(
            log_probs_BFV[rows],
            frames_B[rows],
            [ids for _, ids in tokenized],
            self.vocabulary.blank_id,
        )
        best: list[float | None] = [None] * len(texts)
        for b, log_prob in zip(rows, log_probs, strict=True):
            best[b] = max((value for value in (best[b], log_prob) if value is not None), default=None)
        words = [
            self._word_times(log_probs_FV[:frames], text) if wanted and log_prob is not None else ()
            for log_probs_FV, frames, text, wanted, log_prob in zip(
                log_probs_BFV, frames_B.tolist(), texts, with_words, best, strict=True
            )
        ]
        return list(map(AlignedText, best, words))

    def _word_times(self, log_probs_FV: torch.Tensor, text: str) -> tuple[Word, ...]:
        return word_times(
            log_probs_FV.cpu().numpy(),
            text,
            self._encode_word,
            self.vocabulary.blank_id,
            self.vocabulary.delimiter_id,
            self.frame_ms,
        )

    @functools.cached_property
    def _encode_word(self) -> Callable[[str], Sequence[int]]:
        return functools.lru_cache(_CACHED_WORDS)(lambda word: next(iter(self.vocabulary.encodings(word)), ()))
