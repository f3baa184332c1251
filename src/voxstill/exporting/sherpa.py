"""sherpa-onnx as a check of an exported folder: another program reads it, with features of its own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from voxstill.core import scratch
from voxstill.core.errors import DataError
from voxstill.decoding import exported
from voxstill.decoding.exported import ExportedModel
from voxstill.decoding.loaded import Samples
from voxstill.exporting import sherpa_client
from voxstill.nn import chunks
from voxstill.nn.mel import HOP
from voxstill.text.tokenizer import UNKNOWN


def is_installed() -> bool:
    """Whether sherpa-onnx can be asked."""
    return importlib.util.find_spec("sherpa_onnx") is not None


def arguments(folder: Path, model: ExportedModel) -> dict[str, str]:
    """The recogniser of `sherpa_onnx` that takes the folder, its method, as `door`, and the arguments of that."""
    tokens = {"recognizer": "OfflineRecognizer", "tokens": str(folder / exported.TOKENS)}
    if model.kind == "ctc":
        door = "from_nemo_ctc" if model.input == "log_mels" else "from_omnilingual_asr_ctc"
        return {"door": door, "model": str(folder / exported.CTC), **tokens}
    names = {"encoder": model.main, "decoder": exported.DECODER, "joiner": exported.JOINER}
    files = {name: str(folder / file) for name, file in names.items()}
    streaming = {"recognizer": "OnlineRecognizer"} if model.chunks_ms else {}
    return {"door": "from_transducer", **files, **tokens, **streaming, "model_type": "nemo_transducer"}


def transcribe(folder: Path, model: ExportedModel, samples: Sequence[Samples]) -> list[str]:
    """The texts of utterances; DataError if sherpa-onnx does not take the folder."""
    lead, tail = (HOP // 2 if model.input == "log_mels" else 0), 0
    if model.chunks_ms:  # its first window begins before the audio, and it leaves the last one that is not full
        lead, tail = lead + HOP * chunks.LEAD, HOP * (2 * chunks.window_frames(model.chunks_ms[0]))
    wanted = {**arguments(folder, model), "lead": lead, "tail": tail}
    with scratch.folder() as temporary:
        path = temporary / "samples.npz"
        np.savez(path, *samples)
        process = subprocess.run(
            [sys.executable, sherpa_client.__file__, json.dumps(wanted), str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
    if process.returncode:
        lines = process.stderr.strip().splitlines()
        raise DataError(
            "sherpa-onnx cannot run the exported folder",
            code="export-differs",
            why=f"its process ended with {process.returncode}: {lines[-1] if lines else 'without a message'}",
            fix="report it with the version of sherpa-onnx",
        )
    texts: list[str] = json.loads(process.stdout.splitlines()[-1])
    return [" ".join(text.replace(UNKNOWN, " ").split()) for text in texts]
