"""CTC models and transducers in torch as recognisers, and the decoding of one batch.

Decoding is greedy, or a beam search with a language model and phrases.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxstill.core.config import DEFAULT_CHUNK_MS, Augment, Decode, lookahead
from voxstill.core.records import RATE_HZ, Hypothesis
from voxstill.decoding import ctc, seq2seq, spikes, transducer
from voxstill.decoding.aligner import TextAligner
from voxstill.decoding.loaded import Samples, dtype_of, padded
from voxstill.decoding.options import RecognizerOptions
from voxstill.decoding.search import Search, Searches, decode_ctc, decode_transducer
from voxstill.decoding.streams import Cache, StreamDecoder
from voxstill.decoding.word_times import AlignedText
from voxstill.nn import checkpoints, students
from voxstill.nn.chunk_encoder import ChunkEncoder
from voxstill.nn.frontends import Frontend, LogMelFrontend
from voxstill.text.pretrained import CheckpointVocabulary, WhisperTokenizer
from voxstill.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PieceTokenizer = Vocabulary | CheckpointVocabulary
"""Tokenizers of CTC students and of transducers."""


@torch.no_grad()
def decode_batch(
    model: PreTrainedModel,
    frontend: Frontend,
    tokenizer: PieceTokenizer | WhisperTokenizer,
    audio_BT: Tensor,
    audio_len_B: Tensor,
    ids: Sequence[str],
    search: Search | None = None,
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
    pauses = [
        spikes.pauses(samples_T[:num]) for samples_T, num in zip(audio_BT.cpu().numpy(), audio_len_B, strict=True)
    ]
    if students.student_kind(model) == "ctc":
        logits_BFV, out_B = students.logits(model, inputs, len_B)
        log_probs_BFV = ctc.log_probs(logits_BFV, tokenizer.blank_id, blank_penalty)
        return decode_ctc(
            log_probs_BFV,
            out_B.tolist(),
            search,
            ids=ids,
            pieces=tokenizer.pieces,
            blank_id=tokenizer.blank_id,
            frame_ms=frontend.frame_ms,
            pauses=pauses,
        )
    no_tokens_B0 = torch.zeros(len(ids), 0, dtype=torch.long, device=audio_BT.device)
    encoded_BFP, out_B, *_ = students.encode_and_predict(model, inputs, len_B, no_tokens_B0)
    frame_logits_BFV = students.frame_logits(model, encoded_BFP, tokenizer.blank_id).float()
    batch = transducer.EncodedBatch(
        encoded_BFE=encoded_BFP.float().cpu().numpy(),
        frames_B=out_B.tolist(),
        ids=ids,
        pauses=pauses,
        frame_log_probs=frame_logits_BFV.log_softmax(-1).cpu().numpy(),
    )
    return decode_transducer(_transducer(model, tokenizer, frontend), batch, search)


def _transducer(model: PreTrainedModel, tokenizer: PieceTokenizer, frontend: Frontend) -> transducer.TransducerModel:
    network = _ArrayTransducer(model)
    return transducer.TransducerModel(
        predict=network.predict,
        joint=network.joint,
        pieces=tokenizer.pieces,
        blank_id=tokenizer.blank_id,
        frame_ms=frontend.frame_ms,
        durations=students.durations(model),
    )


class _ArrayTransducer:
    """The predictor and the joint of a transducer in torch as decoding calls them: arrays in, arrays out."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model, self._device, self._dtype = model, model.device, model.dtype  # looked up among all weights

    def predict(
        self, tokens_BU: NDArray[np.int64], memory: transducer.Memory | None
    ) -> tuple[NDArray[np.float32], transducer.Memory]:
        before = None if memory is None else (self._tensor(memory[0]), self._tensor(memory[1]))
        tokens = torch.from_numpy(tokens_BU).to(self._device)
        states_BUP, (hidden, cell) = students.predict(self._model, tokens, before)
        return _as_numpy(states_BUP), (_as_numpy(hidden), _as_numpy(cell))

    def joint(self, encoded_NE: NDArray[np.float32], predicted_NP: NDArray[np.float32]) -> NDArray[np.float32]:
        return _as_numpy(students.joint(self._model, self._tensor(encoded_NE), self._tensor(predicted_NP)))

    def _tensor(self, array: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(array).to(self._device, self._dtype)


def _as_numpy(tensor: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.float().cpu().numpy()
    return array


def _as_cache(tensors: Sequence[Tensor]) -> Cache:
    kv, conv, cached_B = tensors
    return _as_numpy(kv), _as_numpy(conv), cached_B.cpu().numpy()


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


class FrameModel:
    """A CTC model or a transducer in torch; a `LoadedModel`. ConfigError if options do not go with it."""

    max_duration_ms: int | None = None
    takes_batches = True
    languages: Collection[str] = ()

    def __init__(
        self, folder: Path, options: RecognizerOptions, decoding: Decode, device: torch.device, section: str
    ) -> None:
        self.model = checkpoints.load(folder).eval().to(device, dtype_of(options, device))
        self.vocabulary = CheckpointVocabulary(folder, students.blank_id(self.model), self.model.config.vocab_size)
        self.num_parameters, self._device = students.num_parameters(self.model), device
        self._frontend = checkpoints.make_frontend(self.model.config, Augment(), checkpoint=str(folder))
        self._frontend.move(device)
        is_ctc = students.student_kind(self.model) == "ctc"
        self._searches = Searches(decoding, self.vocabulary, options, is_ctc=is_ctc, section=section)
        self.takes_phrases = self._searches.takes_phrases
        self._blank_penalty = decoding.blank_penalty
        if self._searches.of() is not None:  # compiled now, and not while it is timed
            self.transcribe([np.zeros(RATE_HZ, np.int16)], [""], [None])

    @torch.inference_mode()
    def transcribe(
        self,
        samples: Sequence[Samples],
        ids: Sequence[str],
        languages: Sequence[str | None],
        phrases: Sequence[str] = (),
    ) -> list[Hypothesis]:
        """Transcribe one batch; return one Hypothesis per utterance, in order. Languages make no difference.

        `phrases` are listened for besides those of `decode.boost`, by a beam search.
        """
        return decode_batch(
            *(self.model, self._frontend, self.vocabulary, *padded(samples, self._device), ids),
            search=self._searches.of(phrases),
            blank_penalty=self._blank_penalty,
        )


class StreamingModel(FrameModel):
    """A streaming student in torch, on utterances and on streams; a `LoadedStreaming`."""

    def __init__(
        self, folder: Path, options: RecognizerOptions, decoding: Decode, device: torch.device, section: str
    ) -> None:
        super().__init__(folder, options, decoding, device, section)
        self.chunk_ms = decoding.chunk_ms or DEFAULT_CHUNK_MS
        self.model.encoder.config.default_num_lookahead_tokens = lookahead(self.chunk_ms)
        self._encoder = ChunkEncoder(self.model, self.chunk_ms)
        assert isinstance(self._frontend, LogMelFrontend)
        decoder = StreamDecoder(
            self._encode,
            _as_cache(self._encoder.start(1)),
            _transducer(self.model, self.vocabulary, self._frontend),
            chunk_ms=self.chunk_ms,
            num_mels=self._frontend.log_mel.num_mels,
        )
        self.open_stream, self.advance = decoder.open, torch.inference_mode()(decoder.advance)

    def _encode(
        self, mel_BDW: NDArray[np.float32], frames_B: NDArray[np.int64], cache: Cache
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], Cache]:
        device, dtype = self.model.device, self.model.dtype
        kv, conv, cached_B = (torch.from_numpy(array).to(device) for array in cache)
        encoded_BPC, num_B, *after = self._encoder(
            torch.from_numpy(mel_BDW).to(device, dtype),
            torch.from_numpy(frames_B).to(device),
            kv.to(dtype),
            conv.to(dtype),
            cached_B,
        )
        return _as_numpy(encoded_BPC), num_B.cpu().numpy(), _as_cache(after)


class CtcModel(FrameModel):
    """A CTC model in torch, which can also score a text that is given; a `LoadedCtc`."""

    def __init__(
        self, folder: Path, options: RecognizerOptions, decoding: Decode, device: torch.device, section: str
    ) -> None:
        super().__init__(folder, options, decoding, device, section)
        self.frame_ms = self._frontend.frame_ms
        self._aligner = TextAligner(self.vocabulary, self.frame_ms)

    @torch.inference_mode()
    def log_probs(self, samples: Sequence[Samples], blank_penalty: float = 0.0) -> list[NDArray[np.float32]]:
        """Return the log-probabilities (F, V) of the tokens in each frame of each utterance, of all in one batch."""
        inputs, len_B = self._frontend.extract(*padded(samples, self._device))
        logits_BFV, frames_B = students.logits(self.model, inputs.to(self.model.dtype), len_B)
        log_probs_BFV = ctc.log_probs(logits_BFV, self.vocabulary.blank_id, blank_penalty).cpu().numpy()
        return [log_probs_FV[:num] for log_probs_FV, num in zip(log_probs_BFV, frames_B.tolist(), strict=True)]

    def align(self, samples: Sequence[Samples], texts: Sequence[str], with_words: Sequence[bool]) -> list[AlignedText]:
        """Align each text with its audio; its log-probability is that of the best of its spellings."""
        return self._aligner.align(self.log_probs(samples), texts, with_words)
