"""The student that is exported, and the graphs of its files: which names, axes and metadata each runtime asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from voxstill.core.config import DEFAULT_CHUNK_MS, Augment, Normalization
from voxstill.core.errors import ConfigError
from voxstill.core.records import RATE_HZ
from voxstill.decoding import exported
from voxstill.decoding.exported import BLANK, Kind
from voxstill.exporting import graphs
from voxstill.exporting.onnx_files import Graph
from voxstill.nn import checkpoints, chunks, students
from voxstill.nn.chunk_encoder import ChunkEncoder
from voxstill.nn.frontends import Frontend, LogMelFrontend, WaveformFrontend
from voxstill.nn.mel import SUBSAMPLING
from voxstill.text.pretrained import CheckpointVocabulary

_EXAMPLE_FRAMES, _EXAMPLE_SAMPLES = (150, 120), (30_000, 20_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Student:
    """A loaded student with its frontend and vocabulary."""

    model: Any
    frontend: Frontend
    vocabulary: CheckpointVocabulary
    kind: Kind
    chunks_ms: Sequence[int] = ()
    """Chunk sizes of a streaming student; empty for other students."""

    @property
    def takes_samples(self) -> bool:
        """Whether its input is a waveform."""
        return isinstance(self.frontend, WaveformFrontend)

    @property
    def normalization(self) -> Normalization | None:
        """How its log-mels are normalised; None if it takes a waveform."""
        return self.frontend.log_mel.normalization if isinstance(self.frontend, LogMelFrontend) else None

    @property
    def symbols(self) -> list[str]:
        """The symbols of `tokens.txt`, by the ids of the exported model: special tokens have their names."""
        blank_id, names = self.vocabulary.blank_id, self.vocabulary.names
        symbols = [
            piece or (names[i] if i < len(names) else "") or f"<unused{i}>"
            for i, piece in enumerate(self.vocabulary.pieces)
        ]
        symbols[blank_id] = BLANK
        if self.takes_samples:  # the blank is first
            symbols.insert(0, symbols.pop(blank_id))
        return symbols

    @property
    def blank_id(self) -> int:
        """The blank in the exported model."""
        return 0 if self.takes_samples else self.vocabulary.blank_id


def load(folder: Path, chunks_ms: Sequence[int] = ()) -> Student:
    """Load the student of a model folder; a streaming one is exported for `chunks_ms`, by default for 560 ms.

    ConfigError if its kind cannot be exported, or where it does not stream, DataError if there is none.
    """
    model = checkpoints.load(folder).eval()
    kind = students.student_kind(model)
    if kind == "seq2seq":
        raise ConfigError(
            f"`{folder}` cannot be exported",
            code="wrong-model",
            why=f"it is a `{model.config.model_type}`, an encoder-decoder",
            fix="Optimum exports those: `optimum-cli export onnx --model FOLDER DIR`",
        )
    if students.is_streaming(model):
        chunks_ms = chunks_ms or (DEFAULT_CHUNK_MS,)
    elif chunks_ms:
        raise ConfigError(
            f"`{folder}` is not a streaming student",
            code="wrong-model",
            why=f"it is a `{model.config.model_type}`, which processes whole utterances",
            fix="leave `--streaming` out, or train a student with `student.streaming`",
        )
    blank_id, durations = students.blank_id(model), students.durations(model)
    if durations != tuple(range(len(durations))):
        raise ConfigError(
            f"`{folder}` cannot be exported",
            code="wrong-model",
            why=f"its durations are {', '.join(map(str, durations))}, and other runtimes count them from 0",
            fix="use it in torch",
        )
    return Student(
        model=model,
        frontend=checkpoints.make_frontend(model.config, Augment(), checkpoint=str(folder)),
        vocabulary=CheckpointVocabulary(folder, blank_id, model.config.vocab_size),
        kind=kind,
        chunks_ms=tuple(chunks_ms),
    )


def graphs_of(student: Student) -> Mapping[str, Graph]:
    """The graph of each file."""
    if isinstance(student.frontend, WaveformFrontend):
        return {exported.CTC: _ctc_from_waveform(student, student.frontend)}
    assert isinstance(student.frontend, LogMelFrontend)
    if student.kind == "ctc":
        return _ctc(student, student.frontend)
    return _transducer(student, student.frontend)


def _ctc(student: Student, frontend: LogMelFrontend) -> Mapping[str, Graph]:
    """A file on log-mels and one on samples."""
    module = graphs.CtcFromMels(student.model, frontend)
    metadata = {
        **_common(student),
        "vocab_size": len(student.symbols),  # with the blank
        "model_type": "EncDecCTCModelBPE",
    }
    output = "logprobs" if student.normalization == "utterance" else "log_probs"
    return {
        exported.CTC: _from_mels(student, module, [output], metadata),
        exported.CTC_SAMPLES: _from_samples(module, [output, "frames"], metadata),
    }


def _transducer(student: Student, frontend: LogMelFrontend) -> Mapping[str, Graph]:
    """Encoder, predictor and joint as NeMo exports them: sherpa-onnx takes three files, onnx-asr two."""
    config = student.model.config
    metadata = {
        **_common(student),
        "vocab_size": student.vocabulary.blank_id,  # without the blank
        "pred_rnn_layers": config.num_decoder_layers,
        "pred_hidden": config.decoder_hidden_size,
        "model_type": "EncDecRNNTBPEModel",
        **({"url": "voxstill-tdt"} if student.kind == "tdt" else {}),  # sherpa-onnx looks for `tdt` there
    }
    width = config.decoder_hidden_size
    memory_LBH = torch.zeros(config.num_decoder_layers, 2, width)
    one_token = torch.zeros(2, 1, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
    encoded_BPF, predicted_BPU = torch.zeros(2, width, 3), torch.zeros(2, width, 1)
    batch = {0: "B"}
    states = {"targets": {0: "B", 1: "U"}, "target_length": batch, "prednet_lengths": batch}
    joined = {"encoder_outputs": {0: "B", 2: "F"}, "outputs": {0: "B", 1: "F", 2: "U"}}
    files = {
        **_encoders(student, frontend, metadata),
        exported.DECODER: Graph(
            module=graphs.Predictor(student.model),
            examples=(*one_token, memory_LBH, memory_LBH),
            inputs=["targets", "target_length", "states.1", "onnx::Slice_3"],
            outputs=["outputs", "prednet_lengths", "states", "cells"],
            axes={
                **states,
                "outputs": {0: "B", 2: "U"},
                **{name: {1: "B"} for name in ("states.1", "onnx::Slice_3", "states", "cells")},
            },
            metadata={},
        ),
        exported.JOINER: Graph(
            module=graphs.Joiner(student.model),
            examples=(encoded_BPF, predicted_BPU),
            inputs=["encoder_outputs", "decoder_outputs"],
            outputs=["outputs"],
            axes={**joined, "decoder_outputs": {0: "B", 2: "U"}},
            metadata={},
        ),
    }
    if student.normalization != "utterance" or student.chunks_ms:
        return files
    memories = ("input_states_1", "input_states_2", "output_states_1", "output_states_2")
    return files | {
        DECODER_JOINT: Graph(
            module=graphs.PredictorAndJoiner(student.model),
            examples=(encoded_BPF, *one_token, memory_LBH, memory_LBH),
            inputs=["encoder_outputs", "targets", "target_length", *memories[:2]],
            outputs=["outputs", "prednet_lengths", *memories[2:]],
            axes={**states, **joined, **{name: {1: "B"} for name in memories}},
            metadata={},
        )
    }


def _encoders(student: Student, frontend: LogMelFrontend, metadata: dict[str, object]) -> Mapping[str, Graph]:
    """The encoder on log-mels and on samples; of a streaming student, those for its chunks."""
    if student.chunks_ms:
        return {
            exported.chunk_encoder(chunk_ms): _chunk_encoder(student, frontend, chunk_ms, metadata)
            for chunk_ms in student.chunks_ms
        }
    module, outputs = graphs.EncoderFromMels(student.model, frontend), ["outputs", "encoded_lengths"]
    return {
        exported.ENCODER: _from_mels(student, module, outputs, metadata),
        exported.ENCODER_SAMPLES: _from_samples(module, outputs, metadata),
    }


def _chunk_encoder(student: Student, frontend: LogMelFrontend, chunk_ms: int, metadata: dict[str, object]) -> Graph:
    """As `OnlineRecognizer` of sherpa-onnx takes it."""
    module, window = ChunkEncoder(student.model, chunk_ms), chunks.window_frames(chunk_ms)
    kv_BLCE, conv_BLEK, cached_B = module.start(2)
    caches = ["cache_last_channel", "cache_last_time", "cache_last_channel_len"]
    inputs = ["audio_signal", "length", *caches]
    outputs = ["outputs", "encoded_lengths", f"{caches[0]}_next", f"{caches[1]}_next", f"{caches[0]}_next_len"]
    return Graph(
        module=module,
        examples=(
            torch.randn(2, frontend.log_mel.num_mels, window),
            torch.tensor([window] * 2),
            *(kv_BLCE, conv_BLEK, cached_B),
        ),
        inputs=inputs,
        outputs=outputs,
        axes={name: {0: "B"} for name in (*inputs, *outputs)},
        metadata={
            **metadata,
            "model_type": "EncDecHybridRNNTCTCBPEModel",
            "window_size": window,
            "chunk_shift": chunks.num_output_frames(chunk_ms) * SUBSAMPLING,
            "chunk_size_ms": chunk_ms,
            **{f"cache_last_channel_dim{i}": size for i, size in enumerate(kv_BLCE.shape[1:], 1)},
            **{f"cache_last_time_dim{i}": size for i, size in enumerate(conv_BLEK.shape[1:], 1)},
        },
    )


DECODER_JOINT, ENCODER_MODEL = "decoder_joint-model.onnx", "encoder-model.onnx"
"""The files of a transducer as onnx-asr calls them; the second is the same as `encoder.onnx`."""


def _from_mels(student: Student, module: torch.nn.Module, outputs: list[str], metadata: dict[str, object]) -> Graph:
    """A graph on log-mels; one that onnx-asr would feed with the wrong features has none of the names it asks for."""
    assert isinstance(student.frontend, LogMelFrontend)
    name = "audio_signal" if student.normalization == "utterance" else "log_mels"
    num_mels = student.frontend.log_mel.num_mels
    return Graph(
        module=module,
        examples=(torch.randn(2, num_mels, _EXAMPLE_FRAMES[0]), torch.tensor(_EXAMPLE_FRAMES)),
        inputs=[name, "length"],
        outputs=outputs,
        axes={name: {0: "B", 2: "F"}, "length": {0: "B"}, **_output_axes(outputs)},
        metadata=metadata,
    )


def _from_samples(module: graphs.CtcFromMels | graphs.EncoderFromMels, outputs: list[str], metadata: object) -> Graph:
    assert isinstance(metadata, dict)
    return Graph(
        module=graphs.FromSamples(module),
        examples=(torch.randn(2, _EXAMPLE_SAMPLES[0]) * 0.1, torch.tensor(_EXAMPLE_SAMPLES)),
        inputs=["samples", "length"],
        outputs=outputs,
        axes={"samples": {0: "B", 1: "T"}, "length": {0: "B"}, **_output_axes(outputs)},
        metadata={**metadata, "sample_rate": RATE_HZ},
    )


def _output_axes(outputs: list[str]) -> dict[str, dict[int, str]]:
    """The axes of frames of an encoder's output and of its lengths; those of CTC have frames second."""
    main, *lengths = outputs
    return {main: {0: "B", 2 if main == "outputs" else 1: "F"}, **{name: {0: "B"} for name in lengths}}


def _ctc_from_waveform(student: Student, frontend: WaveformFrontend) -> Graph:
    """As `from_omnilingual_asr_ctc` of sherpa-onnx takes it."""
    return Graph(
        module=graphs.CtcFromWaveform(student.model, frontend),
        examples=(torch.randn(1, RATE_HZ),),
        inputs=["x"],
        outputs=["logits"],
        axes={"x": {0: "B", 1: "T"}, "logits": {0: "B", 1: "F"}},
        metadata={"vocab_size": len(student.symbols), "sample_rate": RATE_HZ},
    )


def _common(student: Student) -> dict[str, object]:
    """Metadata by which sherpa-onnx knows a NeMo model: it ends the process where one of them is missing."""
    assert isinstance(student.frontend, LogMelFrontend)
    return {
        "subsampling_factor": SUBSAMPLING,
        "normalize_type": "per_feature" if student.normalization == "utterance" else "",
        "feat_dim": student.frontend.log_mel.num_mels,
        "version": "1",
        "model_author": "voxstill",
    }
