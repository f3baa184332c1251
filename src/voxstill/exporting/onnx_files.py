"""Writing ONNX files: a torch module traced to a graph, the metadata that runtimes read, and int8 weights."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from voxstill.core.errors import ConfigError
from voxstill.core.version import __version__

if TYPE_CHECKING:
    from onnx import ModelProto

OPSET = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A module with example inputs, the names of its inputs and outputs, and which of their axes vary."""

    module: nn.Module
    examples: tuple[Tensor, ...]
    inputs: Sequence[str]
    outputs: Sequence[str]
    axes: Mapping[str, Mapping[int, str]]
    metadata: Mapping[str, object]


def check_installed() -> None:
    """ConfigError if `onnx`, which writes the files, is not installed."""
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise ConfigError(
            "models cannot be exported",
            code="missing-package",
            why="the package `onnx` is not installed",
            fix="pip install 'voxstill[export]'",
        ) from None


def write(graph: Graph, path: Path) -> None:
    """Trace the module and write its graph with the metadata.

    By tracing and not by `torch.export`, which takes thirty times as long and needs another attention in the model.
    """
    import onnx

    module = graph.module.eval()
    with torch.inference_mode(), warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            graph.examples,
            str(path),
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_axes={name: dict(axes) for name, axes in graph.axes.items()},
            opset_version=OPSET,
            dynamo=False,
        )
    model = onnx.load(str(path))
    onnx.checker.check_model(model)
    set_metadata(model, graph.metadata)
    onnx.save(model, str(path))


def set_metadata(model: ModelProto, metadata: Mapping[str, object]) -> None:
    """Replace the metadata of a model."""
    del model.metadata_props[:]
    model.producer_name, model.producer_version = "voxstill", __version__
    for key, value in metadata.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, str(value)


def quantize(source: Path, target: Path) -> None:
    """Write the same model with the weights of its matrix products in int8, signed and dynamic.

    Convolutions stay: in int8 they take twice as long on a CPU and cost accuracy. Weights of 8 bits without a sign
    overflow on CPUs without VNNI.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    level = logging.getLogger().level
    logging.getLogger().setLevel(logging.ERROR)  # it advises to preprocess, which changes nothing here
    try:
        quantize_dynamic(str(source), str(target), op_types_to_quantize=["MatMul"], weight_type=QuantType.QInt8)
    finally:
        logging.getLogger().setLevel(level)
    model, before = onnx.load(str(target)), onnx.load(str(source), load_external_data=False)
    set_metadata(model, {entry.key: entry.value for entry in before.metadata_props})
    onnx.save(model, str(target))
