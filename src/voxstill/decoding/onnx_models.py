"""Exported students as recognisers on onnxruntime and numpy, without torch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from voxstill.core import pcm
from voxstill.core.config import Decode
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.records import RATE_HZ, Hypothesis
from voxstill.decoding import ctc, exported, spikes, transducer
from voxstill.decoding.aligner import TextAligner
from voxstill.decoding.exported import ExportedModel
from voxstill.decoding.loaded import Samples
from voxstill.decoding.options import RecognizerOptions
from voxstill.decoding.search import Searches, decode_ctc, decode_transducer
from voxstill.decoding.streams import Cache, StreamDecoder
from voxstill.decoding.tokens import log_softmax
from voxstill.decoding.word_times import AlignedText
from voxstill.nn import mel

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

_FRAME_OF_MELS_MS = 10


class OnnxCtcModel:
    """An exported CTC student; a `LoadedCtc`. Each utterance goes alone where the model takes a waveform."""

    max_duration_ms: int | None = None
    languages: Collection[str] = ()

    def __init__(
        self, folder: Path, file: str, model: ExportedModel, options: RecognizerOptions, decoding: Decode, section: str
    ) -> None:
        self._exported, self.frame_ms, self.num_parameters = model, model.frame_ms, model.num_parameters
        self.takes_batches = model.input == "log_mels"
        self.vocabulary = exported.vocabulary(folder, model)
        self._graph = graph(folder, file, model, options.threads)
        self._searches = Searches(decoding, self.vocabulary, options, is_ctc=True, section=section)
        self.takes_phrases = self._searches.takes_phrases
        self._blank_penalty = decoding.blank_penalty
        self._aligner = TextAligner(self.vocabulary, self.frame_ms)

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
        log_probs_BFV, frames_B = self._run(samples)
        return decode_ctc(
            ctc.penalised(log_probs_BFV, self.vocabulary.blank_id, self._blank_penalty),
            frames_B,
            self._searches.of(phrases),
            ids=ids,
            pieces=self.vocabulary.pieces,
            blank_id=self.vocabulary.blank_id,
            frame_ms=self.frame_ms,
            pauses=[spikes.pauses(samples_T) for samples_T in samples],
        )

    def log_probs(self, samples: Sequence[Samples], blank_penalty: float = 0.0) -> list[NDArray[np.float32]]:
        """Return the log-probabilities (F, V) of the tokens in each frame of each utterance, of all in one batch."""
        if not self.takes_batches:
            rows = [self._run([samples_T]) for samples_T in samples]
            log_probs = [log_probs_BFV[0] for log_probs_BFV, _ in rows]
        else:
            log_probs_BFV, frames_B = self._run(samples)
            log_probs = [log_probs_FV[:num] for log_probs_FV, num in zip(log_probs_BFV, frames_B, strict=True)]
        blank_id = self.vocabulary.blank_id
        return [ctc.penalised(log_probs_FV, blank_id, blank_penalty) for log_probs_FV in log_probs]

    def align(self, samples: Sequence[Samples], texts: Sequence[str], with_words: Sequence[bool]) -> list[AlignedText]:
        """Align each text with its audio; its log-probability is that of the best of its spellings."""
        return self._aligner.align(self.log_probs(samples), texts, with_words)

    def _run(self, samples: Sequence[Samples]) -> tuple[NDArray[np.float32], list[int]]:
        """Log-probabilities (B, F, V) and the frames of each utterance, of one alone where it is a waveform."""
        if self._exported.input == "samples":
            [samples_T] = samples
            if len(samples_T) < self._exported.min_samples:
                return np.zeros((1, 0, len(self.vocabulary.pieces)), np.float32), [0]
            log_probs_BFV = self._graph(pcm.to_float(samples_T)[None])[0]
            return log_probs_BFV, [log_probs_BFV.shape[1]]
        mel_BDF, frames_B = log_mels(samples, self._exported)
        log_probs_BFV = self._graph(mel_BDF, frames_B)[0]
        per_frame = self.frame_ms // _FRAME_OF_MELS_MS
        return log_probs_BFV, (-(-frames_B // per_frame)).tolist()


class OnnxTransducerModel:
    """An exported RNN-T or TDT student; a `LoadedModel`."""

    max_duration_ms: int | None = None
    takes_batches = True
    languages: Collection[str] = ()

    def __init__(
        self, folder: Path, file: str, model: ExportedModel, options: RecognizerOptions, decoding: Decode, section: str
    ) -> None:
        self._exported, self.num_parameters = model, model.num_parameters
        self.vocabulary = exported.vocabulary(folder, model)
        self._encoder, self._decoder, self._joiner = (
            graph(folder, name, model, options.threads) for name in (file, exported.DECODER, exported.JOINER)
        )
        self._model = transducer.TransducerModel(
            predict=self._predict,
            joint=self._joint,
            pieces=self.vocabulary.pieces,
            blank_id=self.vocabulary.blank_id,
            frame_ms=model.frame_ms,
            durations=model.durations,
        )
        self._searches = Searches(decoding, self.vocabulary, options, is_ctc=False, section=section)
        self.takes_phrases = self._searches.takes_phrases

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
        encoded_BPF, frames_B = self._encode(samples)
        no_state_BP1 = np.zeros_like(encoded_BPF[:, :, :1])
        frame_logits_BFV = self._joiner(encoded_BPF, no_state_BP1)[0][:, :, 0, : self._model.blank_id + 1]
        batch = transducer.EncodedBatch(
            encoded_BFE=encoded_BPF.transpose(0, 2, 1),
            frames_B=frames_B,
            ids=ids,
            pauses=[spikes.pauses(samples_T) for samples_T in samples],
            frame_log_probs=log_softmax(frame_logits_BFV),
        )
        return decode_transducer(self._model, batch, self._searches.of(phrases))

    def _encode(self, samples: Sequence[Samples]) -> tuple[NDArray[np.float32], Sequence[int]]:
        """Encoder states (B, P, F) and the frames of each utterance."""
        encoded_BPF, frames_B = self._encoder(*log_mels(samples, self._exported))
        return encoded_BPF, frames_B.tolist()

    def _predict(
        self, tokens_BU: NDArray[np.int64], memory: transducer.Memory | None
    ) -> tuple[NDArray[np.float32], transducer.Memory]:
        num = len(tokens_BU)
        if memory is None:
            layers, _, width = self._decoder.input_shape(2)
            memory = np.zeros((layers, num, width), np.float32), np.zeros((layers, num, width), np.float32)
        predicted_BPU, _, hidden, cell = self._decoder(tokens_BU.astype(np.int32), np.ones(num, np.int32), *memory)
        return predicted_BPU.transpose(0, 2, 1), (hidden, cell)

    def _joint(self, encoded_NE: NDArray[np.float32], predicted_NP: NDArray[np.float32]) -> NDArray[np.float32]:
        logits_NV: NDArray[np.float32] = self._joiner(encoded_NE[..., None], predicted_NP[..., None])[0][:, 0, 0]
        return logits_NV


class OnnxStreamingModel(OnnxTransducerModel):
    """An exported streaming student, on utterances and on streams; a `LoadedStreaming`."""

    def __init__(
        self, folder: Path, file: str, model: ExportedModel, options: RecognizerOptions, decoding: Decode, section: str
    ) -> None:
        super().__init__(folder, file, model, options, decoding, section)
        assert model.num_mels is not None
        self.chunk_ms = model.chunk_ms(file)
        self._decoder_of_streams = StreamDecoder(
            self._encode_chunks,
            tuple(map(self._encoder.empty, (2, 3, 4))),
            self._model,
            chunk_ms=self.chunk_ms,
            num_mels=model.num_mels,
        )
        self.open_stream, self.advance = self._decoder_of_streams.open, self._decoder_of_streams.advance

    def _encode(self, samples: Sequence[Samples]) -> tuple[NDArray[np.float32], Sequence[int]]:
        streams = [self.open_stream() for _ in samples]
        self._decoder_of_streams.encode(streams, samples, [True] * len(samples))
        encoded = [np.concatenate(stream.encoded) for stream in streams]
        frames_B = list(map(len, encoded))
        encoded_BPF = np.zeros((len(encoded), encoded[0].shape[1], max(frames_B)), np.float32)
        for row_PF, encoded_FP in zip(encoded_BPF, encoded, strict=True):
            row_PF[:, : len(encoded_FP)] = encoded_FP.T
        return encoded_BPF, frames_B

    def _encode_chunks(
        self, mel_BDW: NDArray[np.float32], frames_B: NDArray[np.int64], cache: Cache
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], Cache]:
        encoded_BPC, num_B, *after = self._encoder(mel_BDW, frames_B, *cache)
        return encoded_BPC, num_B, tuple(after)


class Graph:
    """A loaded ONNX file: arrays in the order of its inputs to all of its outputs."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._names = [member.name for member in session.get_inputs()]

    def __call__(self, *inputs: NDArray[Any]) -> list[Any]:
        """Run the graph."""
        outputs: list[Any] = self._session.run(None, dict(zip(self._names, inputs, strict=True)))
        return outputs

    def input_shape(self, number: int) -> Sequence[Any]:
        """The shape of an input, with names for what it leaves open."""
        shape: Sequence[Any] = self._session.get_inputs()[number].shape
        return shape

    def empty(self, number: int) -> NDArray[Any]:
        """Zeros for an input (1, ...) whose other axes are fixed."""
        dtype = {"tensor(float)": np.float32, "tensor(int64)": np.int64}[self._session.get_inputs()[number].type]
        return np.zeros((1, *self.input_shape(number)[1:]), dtype)


def log_mels(samples: Sequence[Samples], model: ExportedModel) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Log-mels (B, D, F) of a batch, padded with zeros, and the frames of each utterance (B,)."""
    assert model.num_mels is not None
    rows = [mel.log_mels(samples_T, model.num_mels) for samples_T in samples]
    frames_B = np.array([len(mel_FD) for mel_FD in rows], np.int64)
    mel_BDF = np.zeros((len(rows), model.num_mels, int(frames_B.max())), np.float32)
    for row_DF, mel_FD in zip(mel_BDF, rows, strict=True):
        row_DF[:, : len(mel_FD)] = mel_FD.T
    return mel_BDF, frames_B


def graph(folder: Path, file: str, model: ExportedModel, threads: int) -> Graph:
    """Load an ONNX file of an exported student on so many threads; DataError if it is not what was written."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    reason = exported.faults(folder, model, [file]).get(file)
    try:
        if reason is None:
            session = onnxruntime.InferenceSession(str(folder / file), options, providers=["CPUExecutionProvider"])
            return Graph(session)
    except Exception as error:  # of a dozen classes of its own
        reason = str(error).partition("\n")[0]
    raise DataError(
        f"`{folder / file}` cannot be loaded",
        code="export-broken",
        why=reason,
        fix="export the student again into another folder",
    )


def load(
    folder: Path, file: str | None, options: RecognizerOptions, decoding: Decode, section: str
) -> OnnxCtcModel | OnnxTransducerModel:
    """Load an exported student, or a file in its folder such as `model.int8.onnx`.

    ConfigError if options do not go with it, DataError if it is not what was written.
    """
    model = exported.read(folder)
    if options.dtype not in ("auto", "float32"):
        raise ConfigError(
            f"`{section}dtype: {options.dtype}` has no effect",
            code="option-unused",
            why=f"`{options.model}` is an exported model, whose number type is fixed",
            fix="leave it out, or give another file in the folder",
        )
    if model.chunks_ms and decoding.chunk_ms is not None:
        file = file or exported.chunk_encoder(decoding.chunk_ms)
        if file in model.mains and model.chunk_ms(file) != decoding.chunk_ms:
            raise ConfigError(
                f"`decode.chunk_ms: {decoding.chunk_ms}` cannot be used with `{options.model}`",
                code="option-conflict",
                why=f"its chunks have {model.chunk_ms(file)} ms",
                fix="leave it out, or give the folder",
            )
    file = file or model.main
    if file not in model.mains:
        raise ConfigError(
            f"`{file}` is not a model that can be loaded",
            code="no-model",
            why=f"of `{folder}` these are: {', '.join(model.mains)}",
            fix="give the folder, or one of them",
        )
    loaded_class: type[OnnxCtcModel | OnnxTransducerModel] = (
        OnnxCtcModel if model.kind == "ctc" else OnnxTransducerModel
    )
    if model.chunks_ms:
        loaded_class = OnnxStreamingModel
    loaded = loaded_class(folder, file, model, options, decoding, section)
    if decoding.beam > 1 or decoding.grammar is not None:  # compiled now, and not while it is timed
        loaded.transcribe([np.zeros(RATE_HZ, np.int16)], [""], [None])
    return loaded
