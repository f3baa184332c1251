"""A streaming student on streams of audio: chunk by chunk, in batches, with what it remembers of each stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from voxstill.core.records import NO_AUDIO, Hypothesis
from voxstill.decoding import spikes, transducer
from voxstill.decoding.loaded import LoadedModel, Samples
from voxstill.decoding.tokens import WORD_START, Token, hypothesis, log_softmax
from voxstill.decoding.transducer import Floats, PredictorState, TransducerModel
from voxstill.nn import chunks

Cache = tuple[NDArray[np.generic], ...]
"""What the encoder remembers, arrays (B, ...)."""
EncodeChunk = Callable[[Floats, NDArray[np.int64], Cache], tuple[Floats, NDArray[np.int64], Cache]]
"""Windows of log-mels (B, D, W), their frames (B,) and the cache, to encoder states (B, P, C), how many are of audio
(B,), and the next cache: `nn/chunk_encoder.py:ChunkEncoder`."""


@dataclass(slots=True)
class Stream:
    """What is known of one stream."""

    cache: Cache
    chunk: int = 0
    """The next one."""
    num_samples: int = 0
    """Samples that it had when it was last advanced."""
    encoded: list[Floats] = field(default_factory=list)
    """Encoder states (F, P) of the chunks so far."""
    num_decoded: int = 0
    """Frames that were decoded."""
    tokens: list[Token] = field(default_factory=list)
    state: PredictorState | None = None

    @property
    def num_encoded(self) -> int:
        """Frames that were encoded."""
        return sum(map(len, self.encoded))


class StreamDecoder:
    """Encodes and decodes streams of a streaming student, greedily."""

    def __init__(
        self,
        encode: EncodeChunk,
        start: Cache,
        model: TransducerModel,
        *,
        chunk_ms: int,
        num_mels: int,
    ) -> None:
        """`start` is the cache of one stream before its first chunk."""
        self._encode, self._start, self._model = encode, start, model
        self.chunk_ms, self._num_mels = chunk_ms, num_mels
        self._has_whole_words = all(piece.startswith(WORD_START) for piece in model.pieces if piece)

    def open(self) -> Stream:
        """A stream before its first chunk."""
        return Stream(self._start)

    def encode(self, streams: Sequence[Stream], samples: Sequence[Samples], is_last: Sequence[bool]) -> None:
        """Encode all chunks that are complete; at its end (`is_last`) all of a stream.

        `samples` are all of each stream so far.
        """
        rows = list(zip(streams, samples, is_last, strict=True))
        while ready := [
            (stream, samples_T)
            for stream, samples_T, last in rows
            if chunks.is_ready(len(samples_T), stream.chunk, self.chunk_ms, is_last=last)
        ]:
            windows = [
                chunks.window(samples_T, stream.chunk, self.chunk_ms, self._num_mels) for stream, samples_T in ready
            ]
            mel_BDW, frames_B = np.stack([mel_DW for mel_DW, _ in windows]), np.array([num for _, num in windows])
            cache = tuple(np.concatenate(arrays) for arrays in zip(*(stream.cache for stream, _ in ready), strict=True))
            encoded_BPC, num_B, cache = self._encode(mel_BDW, frames_B, cache)
            for b, (stream, _) in enumerate(ready):
                stream.encoded.append(encoded_BPC[b, :, : num_B[b]].T)
                stream.cache = tuple(array[b : b + 1] for array in cache)
                stream.chunk += 1

    def advance(
        self, streams: Sequence[Stream], samples: Sequence[Samples], is_last: Sequence[bool]
    ) -> list[Hypothesis]:
        """Encode and decode what is new of each stream; return one Hypothesis for each, of all of it so far.

        Its words stay: a last word of which there may be more is left out until the end. At the end words have the
        times and confidences of a whole utterance, before they begin when they were written.
        """
        self.encode(streams, samples, is_last)
        for stream, samples_T in zip(streams, samples, strict=True):
            stream.num_samples = len(samples_T)
        rows = [stream for stream in streams if stream.num_encoded > stream.num_decoded]
        if rows:
            self._decode(rows)
        return [
            self._final(stream, samples_T) if last else self._so_far(stream)
            for stream, samples_T, last in zip(streams, samples, is_last, strict=True)
        ]

    def _decode(self, streams: Sequence[Stream]) -> None:
        new = [np.concatenate(stream.encoded)[stream.num_decoded :] for stream in streams]
        encoded_BFP = np.zeros((len(new), max(map(len, new)), new[0].shape[1]), np.float32)
        for row_FP, encoded_FP in zip(encoded_BFP, new, strict=True):
            row_FP[: len(encoded_FP)] = encoded_FP
        begun = [stream.state or self._predictor_start() for stream in streams]
        state = PredictorState(
            np.concatenate([one.predicted_BP for one in begun]),
            np.concatenate([one.hidden_LBH for one in begun], 1),
            np.concatenate([one.cell_LBH for one in begun], 1),
        )
        tokens, after = transducer.greedy_tokens(self._model, encoded_BFP, list(map(len, new)), state)
        for b, stream in enumerate(streams):
            place = stream.num_decoded
            stream.tokens += [token._replace(start=token.start + place, end=token.end + place) for token in tokens[b]]
            stream.state = PredictorState(
                after.predicted_BP[b : b + 1], after.hidden_LBH[:, b : b + 1], after.cell_LBH[:, b : b + 1]
            )
            stream.num_decoded += len(new[b])

    def _predictor_start(self) -> PredictorState:
        predicted_BUP, memory = self._model.predict(np.full((1, 1), self._model.blank_id), None)
        return PredictorState(predicted_BUP[:, 0], *memory)

    def _so_far(self, stream: Stream) -> Hypothesis:
        num = len(stream.tokens)
        if not self._has_whole_words:
            starts = [i for i, token in enumerate(stream.tokens) if self._model.pieces[token.id].startswith(WORD_START)]
            num = starts[-1] if starts else 0
        return hypothesis("", stream.tokens[:num], self._model.pieces, self._model.frame_ms)

    def _final(self, stream: Stream, samples_T: Samples) -> Hypothesis:
        if not stream.encoded:
            return Hypothesis(id="", text="", error=NO_AUDIO, finish="failed")
        log_probs_FV = self.frame_log_probs(np.concatenate(stream.encoded))
        [tokens] = transducer.timed([stream.tokens], [len(log_probs_FV)], log_probs_FV[None], self._model.blank_id)
        return hypothesis("", tokens, self._model.pieces, self._model.frame_ms, spikes.pauses(samples_T))

    def frame_log_probs(self, encoded_FP: Floats) -> Floats:
        """Log-probabilities (F, V) of frames without the predictor: a CTC model, learned beside."""
        logits_FV = self._model.joint(encoded_FP, np.zeros_like(encoded_FP))[:, : self._model.blank_id + 1]
        return log_softmax(logits_FV)


@runtime_checkable
class LoadedStreaming(LoadedModel, Protocol):
    """A streaming student, which can also write while it listens."""

    chunk_ms: int
    """The chunk size."""
    open_stream: Callable[[], Stream]
    """Returns a stream before its first chunk."""
    advance: Callable[[Sequence[Stream], Sequence[Samples], Sequence[bool]], list[Hypothesis]]
    """Takes all samples of each stream so far, and whether it has ended: `StreamDecoder.advance`."""
