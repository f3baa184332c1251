"""Tiny random models of diarization engines, and a program that is one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from onnx import GraphProto

SEGMENTATION_WINDOW, FIELD_SIZE, FIELD_SHIFT, NUM_CLASSES = 160_000, 991, 270, 7
"""Of pyannote's segmentation: ten seconds, and three speakers of whom two speak at once as seven classes."""


_PROGRAM = """
import sys, wave
with wave.open(sys.argv[-1]) as wav:
    seconds = wav.getnframes() / 16000
if seconds < 1:
    sys.exit("too short for this program")
print(f"SPEAKER x 1 0.000 {seconds / 2:.3f} <NA> <NA> A <NA> <NA>")
print(f"SPEAKER x 1 {seconds / 2:.3f} {seconds / 2:.3f} <NA> <NA> B <NA> <NA>")
"""


def command_of_halves(folder: Path) -> str:
    """The setting of a program that gives each half of a recording to a speaker, and fails below a second."""
    path = folder / "program.py"
    path.write_text(_PROGRAM)
    return f"diarize={{name: command, command: ['{sys.executable}', '{path}']}}"


def write_sortformer(folder: Path) -> Path:
    """A streaming Sortformer of four speakers."""
    import torch
    from transformers import (
        Nemotron3DiarizationConfig,
        Nemotron3DiarizationForAudioFrameClassification,
        Nemotron3DiarizationProcessor,
        NemotronAsrStreamingFeatureExtractor,
    )

    torch.manual_seed(0)
    config = Nemotron3DiarizationConfig(
        audio_config={
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_mel_bins": 16,
        },
        head_config={"hidden_size": 8, "num_speakers": 4, "audio_hidden_size": 16},
        streaming_config={
            "fifo_length": 20,
            "speaker_cache_update_period": 20,
            "speaker_cache_length": 20,
            "num_speakers": 4,
        },
        chunk_length=20,
        chunk_right_context=4,
        fifo_length=20,
        speaker_cache_update_period=20,
    )
    Nemotron3DiarizationForAudioFrameClassification(config).save_pretrained(folder)
    Nemotron3DiarizationProcessor(NemotronAsrStreamingFeatureExtractor(feature_size=16)).save_pretrained(folder)
    return folder


def write_segmentation(path: Path) -> Path:
    """A segmentation model with the metadata that sherpa-onnx asks for: one convolution."""
    from onnx import TensorProto, helper, numpy_helper

    weight = np.random.default_rng(0).normal(0, 1, (NUM_CLASSES, 1, FIELD_SIZE)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "weight"], ["scores"], strides=[FIELD_SHIFT]),
        helper.make_node("Transpose", ["scores"], ["by_frame"], perm=[0, 2, 1]),
        helper.make_node("LogSoftmax", ["by_frame"], ["y"], axis=2),
    ]
    graph = helper.make_graph(
        nodes,
        "segmentation",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1, "T"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", "F", NUM_CLASSES])],
        [numpy_helper.from_array(weight, "weight")],
    )
    metadata = {
        "num_speakers": 3,
        "powerset_max_classes": 2,
        "num_classes": NUM_CLASSES,
        "sample_rate": 16_000,
        "window_size": SEGMENTATION_WINDOW,
        "receptive_field_size": FIELD_SIZE,
        "receptive_field_shift": FIELD_SHIFT,
        "model_type": "pyannote-segmentation-3.0",
    }
    return _save(path, graph, metadata)


def write_embedding(path: Path) -> Path:
    """An embedding model in the form of WeSpeaker: the mean of the features, projected."""
    from onnx import TensorProto, helper, numpy_helper

    weight = np.random.default_rng(1).normal(0, 1, (80, 16)).astype(np.float32)
    nodes = [
        helper.make_node("ReduceMean", ["feats"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["mean", "weight"], ["embs"]),
    ]
    graph = helper.make_graph(
        nodes,
        "embedding",
        [helper.make_tensor_value_info("feats", TensorProto.FLOAT, ["B", "T", 80])],
        [helper.make_tensor_value_info("embs", TensorProto.FLOAT, ["B", 16])],
        [numpy_helper.from_array(weight, "weight")],
    )
    metadata = {
        "framework": "wespeaker",
        "language": "English",
        "url": "",
        "comment": "",
        "sample_rate": 16_000,
        "output_dim": 16,
        "normalize_samples": 1,
        "feature_normalize_type": "global-mean",
    }
    return _save(path, graph, metadata)


def _save(path: Path, graph: GraphProto, metadata: dict[str, object]) -> Path:
    import onnx
    from onnx import helper

    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    helper.set_model_props(model, {name: str(value) for name, value in metadata.items()})
    onnx.save(model, str(path))
    return path
