"""Files of an exported folder that other programs load: they must compute what those do that were compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voxstill.core import pcm
from voxstill.core.errors import DataError
from voxstill.decoding import exported, onnx_models
from voxstill.decoding.exported import ExportedModel
from voxstill.decoding.loaded import Samples
from voxstill.exporting.student import DECODER_JOINT

_SAMPLES = {exported.CTC_SAMPLES: exported.CTC, exported.ENCODER_SAMPLES: exported.ENCODER}
"""Models that take samples, and those of the same weights that take log-mels."""
_MOST_DIFFERENT = 1e-2
"""Of the largest value: the Fourier transform of a graph is a convolution, and rounds otherwise."""
_MOST_DIFFERENT_JOINT = 1e-5
Array = NDArray[np.float32]


def check(folder: Path, model: ExportedModel, samples: Sequence[Samples]) -> None:
    """Run each file on some utterances; DataError if one computes something else."""
    for name, base in _SAMPLES.items():
        if name in model.files:
            for ours, theirs in _from_samples(folder, model, name, base, samples):
                _compare(name, ours, theirs, _MOST_DIFFERENT)
    if DECODER_JOINT in model.files:
        for ours, theirs in _joints(folder, model):
            _compare(DECODER_JOINT, ours, theirs, _MOST_DIFFERENT_JOINT)


def _from_samples(
    folder: Path, model: ExportedModel, name: str, base: str, samples: Sequence[Samples]
) -> Iterator[tuple[Array, Array]]:
    """The outputs of the model on log-mels and of the one on samples, of each utterance."""
    of_mels, of_samples = (onnx_models.graph(folder, file, model, 1) for file in (base, name))
    for samples_T in samples:
        wave_BT, num_B = pcm.to_float(samples_T)[None], np.array([len(samples_T)], np.int64)
        yield of_mels(*onnx_models.log_mels([samples_T], model))[0], of_samples(wave_BT, num_B)[0]


def _joints(folder: Path, model: ExportedModel) -> Iterator[tuple[Array, Array]]:
    """Logits of decoder and joiner, and of the file that is both, for the first tokens of the vocabulary."""
    both, decoder, joiner = (
        onnx_models.graph(folder, file, model, 1) for file in (DECODER_JOINT, exported.DECODER, exported.JOINER)
    )
    width = joiner.input_shape(0)[1]
    layers, _, memory_width = decoder.input_shape(2)
    memory = [np.zeros((layers, 1, memory_width), np.float32) for _ in range(2)]
    draw = np.random.default_rng(0)
    for token in range(min(8, model.blank_id)):
        encoded_BPF = draw.normal(0, 1, (1, width, 1)).astype(np.float32)
        inputs = np.array([[token]], np.int32), np.ones(1, np.int32), *memory
        predicted_BPU = decoder(*inputs)[0]
        yield joiner(encoded_BPF, predicted_BPU)[0], both(encoded_BPF, *inputs)[0]


def _compare(name: str, ours: Array, theirs: Array, limit: float) -> None:
    if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol=0, atol=limit * float(np.abs(ours).max())):
        raise DataError(
            f"the exported `{name}` does not compute the same as the files that were compared with torch",
            code="export-differs",
            why=f"its outputs differ by more than {limit:g} of the largest",
            fix="report it with the versions of torch, onnx and onnxruntime; the student in torch can be used",
        )
