"""The files of an exported folder: graphs, vocabulary and what each runtime asks for beside them."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from voxstill.core.config import CHUNKS_MS
from voxstill.core.version import __version__
from voxstill.decoding import exported
from voxstill.decoding.exported import ExportedModel
from voxstill.exporting import onnx_files
from voxstill.exporting.student import DECODER_JOINT, ENCODER_MODEL, Student, graphs_of
from voxstill.nn import students
from voxstill.nn.frontends import LogMelFrontend
from voxstill.nn.mel import HOP, SUBSAMPLING

CARD, CONFIG, VOCAB = "README.md", "config.json", "vocab.txt"


def write_models(student: Student, source: Path, folder: Path) -> None:
    """Write the graphs and the vocabulary of the student of the folder `source`."""
    for name, graph in graphs_of(student).items():
        onnx_files.write(graph, folder / name)
    if (folder / DECODER_JOINT).is_file():
        os.link(folder / exported.ENCODER, folder / ENCODER_MODEL)
    lines = "".join(f"{symbol} {i}\n" for i, symbol in enumerate(student.symbols))
    for name in (exported.TOKENS, VOCAB):
        (folder / name).write_text(lines, encoding="utf-8")
    if (source / exported.TOKENIZER).is_file():
        shutil.copyfile(source / exported.TOKENIZER, folder / exported.TOKENIZER)
    (folder / CONFIG).write_text(json.dumps(_onnx_asr_config(student), indent=1) + "\n", encoding="utf-8")


def write_int8(folder: Path) -> None:
    """Write an int8 file beside each one that has one."""
    streaming = map(exported.chunk_encoder, CHUNKS_MS)
    for name in (exported.CTC, exported.ENCODER, *streaming):
        if (folder / name).is_file():
            onnx_files.quantize(folder / name, folder / exported.int8_of(name))
    if (folder / DECODER_JOINT).is_file():
        os.link(folder / exported.int8_of(exported.ENCODER), folder / exported.int8_of(ENCODER_MODEL))
        os.link(folder / DECODER_JOINT, folder / exported.int8_of(DECODER_JOINT))  # onnx-asr wants both in int8


def remove_int8(folder: Path) -> None:
    """Remove what `write_int8` wrote."""
    for path in folder.glob("*.int8.onnx"):
        path.unlink()


def write_manifest(folder: Path, student: Student, model: str, weights: str, gate: Mapping[str, Any]) -> ExportedModel:
    """Write `export.json` with the checksums of all other files; without it the folder is not an exported student."""
    is_special = [i for i, piece in enumerate(student.vocabulary.pieces) if not piece]
    order = list(range(len(student.vocabulary.pieces)))
    if student.takes_samples:
        order.insert(0, order.pop(student.vocabulary.blank_id))
    place = {id_: i for i, id_ in enumerate(order)}
    delimiter_id = student.vocabulary.delimiter_id
    files = [path for path in sorted(folder.iterdir()) if path.name != exported.MANIFEST]
    manifest = ExportedModel(
        kind=student.kind,
        input="samples" if student.takes_samples else "log_mels",
        normalization=student.normalization,
        num_mels=student.frontend.log_mel.num_mels if isinstance(student.frontend, LogMelFrontend) else None,
        frame_ms=student.frontend.frame_ms,
        min_samples=_min_samples(student),
        blank_id=student.blank_id,
        delimiter_id=None if delimiter_id is None else place[delimiter_id],
        special_ids=sorted(place[id_] for id_ in is_special),
        durations=students.durations(student.model),
        num_parameters=students.num_parameters(student.model),
        model=model,
        weights=weights,
        gate=gate,
        versions={"voxstill": __version__, **{name: version(name) for name in ("torch", "onnx", "onnxruntime")}},
        files={path.name: exported.digest(path) for path in files},
        chunks_ms=student.chunks_ms,
    )
    manifest = dataclasses.replace(manifest, sum=exported.sum_of(manifest.to_dict()))
    text = json.dumps(manifest.to_dict(), indent=1, ensure_ascii=False) + "\n"
    (folder / exported.MANIFEST).write_text(text, encoding="utf-8")
    return manifest


def _min_samples(student: Student) -> int:
    """The fewest samples with an output frame."""
    if isinstance(student.frontend, LogMelFrontend):
        return HOP
    kernels, strides = student.model.config.conv_kernel, student.model.config.conv_stride
    samples = 1
    for kernel, stride in zip(reversed(kernels), reversed(strides), strict=True):
        samples = (samples - 1) * stride + kernel
    return int(samples)


def _onnx_asr_config(student: Student) -> dict[str, object]:
    """What onnx-asr reads. It normalises each band over the utterance, always: to any other model it is refused."""
    takes = student.normalization == "utterance" and not student.chunks_ms
    kind = f"nemo-conformer-{student.kind}" if takes else f"voxstill-{student.kind}"
    config: dict[str, object] = {"model_type": kind}
    if isinstance(student.frontend, LogMelFrontend):
        config |= {"features_size": student.frontend.log_mel.num_mels, "subsampling_factor": SUBSAMPLING}
    return config
