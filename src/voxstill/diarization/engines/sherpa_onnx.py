"""The engine `sherpa-onnx`: a segmentation model of pyannote and an embedding model, both as ONNX files.

It runs in a process of its own, which sherpa-onnx ends where a model lacks what it asks for.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from voxstill.audio.vad import Samples
from voxstill.core import pcm, scratch
from voxstill.core.config import Section, option
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.records import RATE_HZ
from voxstill.diarization import sherpa_process
from voxstill.diarization.turns import Turn, numbered

_MOST_MESSAGE = 300
_TRIAL_S = 11  # longer than a window of the segmentation model


class SherpaOnnxOptions(Section):
    """Options of the engine `sherpa-onnx`, called as in sherpa-onnx."""

    segmentation: str = option()
    """ONNX file of a segmentation model of pyannote, as sherpa-onnx distributes it."""
    embedding: str = option()
    """ONNX file of a model of voices: WeSpeaker, 3D-Speaker or NeMo."""
    num_speakers: int | None = option(None, unit="speakers", ge=1)
    """Speakers of each recording, where that is known; unset finds their number by `threshold`."""
    threshold: float = option(0.5, unit="distance", gt=0, le=2)
    """Clusters further apart are two speakers."""
    min_duration_on: float = option(0.3, unit="s", ge=0)
    """Shorter turns are dropped."""
    min_duration_off: float = option(0.5, unit="s", ge=0)
    """Shorter pauses of a speaker are bridged."""
    num_threads: int = option(1, unit="threads", ge=1, le=1024, pace=True)
    """CPU threads of both models."""


class SherpaOnnxEngine:
    """Diarizes with `sherpa_onnx.OfflineSpeakerDiarization`."""

    Options: ClassVar[type[Section]] = SherpaOnnxOptions
    needs: ClassVar[tuple[str, str]] = ("sherpa_onnx", "sherpa")

    def __init__(self, options: SherpaOnnxOptions) -> None:
        self.options = options
        for name, path in (("segmentation", options.segmentation), ("embedding", options.embedding)):
            if not Path(path).is_file():
                raise ConfigError(
                    f"`{path}` is not a file",
                    code="diarization-fails",
                    why=f"`diarize.{name}` is set to it",
                    fix="give the path of an ONNX file that sherpa-onnx distributes",
                )

    def load(self) -> None:
        """Try the models on noise; ConfigError if they do not load or run."""
        noise_T = np.random.default_rng(0).normal(0, 100, _TRIAL_S * RATE_HZ).astype(np.int16)
        try:
            self.turns(noise_T)
        except DataError as error:
            raise ConfigError(
                "the models of the diarization engine `sherpa-onnx` do not run",
                code="diarization-fails",
                why=error.why,
                fix="check `diarize.segmentation` and `diarize.embedding`: sherpa-onnx distributes models for both",
            ) from None

    def turns(self, samples_T: Samples) -> list[Turn]:
        """The turns of a recording, all of which is in memory; DataError if sherpa-onnx ends its process."""
        with scratch.folder() as folder:
            path = folder / "samples.npy"
            np.save(path, pcm.to_float(samples_T[0 : len(samples_T)]))
            process = subprocess.run(
                [sys.executable, sherpa_process.__file__, json.dumps(self._arguments()), str(path)],
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
        if process.returncode != 0:
            lines = process.stderr.strip().splitlines() or [f"it ended with {process.returncode}"]
            raise DataError(
                "sherpa-onnx has ended its process",
                code="diarization-fails",
                why=lines[-1][:_MOST_MESSAGE],
                fix="check the models and the audio",
            )
        segments = json.loads(process.stdout.splitlines()[-1])
        return numbered([(round(start * 1000), round(end * 1000), str(name)) for start, end, name in segments])

    def close(self) -> None:
        """Nothing to release: each process has ended."""

    def _arguments(self) -> Mapping[str, object]:
        return self.options.model_dump()
