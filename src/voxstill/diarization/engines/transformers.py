"""The engine `transformers`: a streaming Sortformer, which finds who speaks, overlapping speech included.

The recording goes through in chunks with a cache of its speakers, so an hour takes no more memory than a minute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from voxstill.audio.vad import Samples
from voxstill.core import pcm
from voxstill.core.config import Section, option
from voxstill.core.errors import ConfigError, first_line
from voxstill.core.records import RATE_HZ
from voxstill.diarization.turns import Turn, numbered

if TYPE_CHECKING:
    from transformers import Nemotron3DiarizationForAudioFrameClassification, Nemotron3DiarizationProcessor

_MODE = "chunks"
"""The name of the streaming mode that has the chunks of the model's offline mode."""


class TransformersOptions(Section):
    """Options of the engine `transformers`."""

    model: str = option("nvidia/Nemotron-3-Diarization")
    """Folder of a `Nemotron3DiarizationForAudioFrameClassification`, or a name on the Hugging Face Hub."""
    revision: str | None = option(None)
    """Branch, tag or commit of a name on the Hub."""
    threshold: float = option(0.5, unit="probability", gt=0, lt=1)
    """Probability above which a speaker speaks."""
    device: Literal["cpu", "cuda"] = option("cpu", pace=True)
    """Where it runs."""


class TransformersEngine:
    """Diarizes with a model of `transformers` that gives the probability of each speaker every 10 ms."""

    Options: ClassVar[type[Section]] = TransformersOptions

    def __init__(self, options: TransformersOptions) -> None:
        self.options = options
        self._model: Nemotron3DiarizationForAudioFrameClassification | None = None
        self._processor: Nemotron3DiarizationProcessor | None = None

    def load(self) -> None:
        """Load model and processor; ConfigError if that cannot be done."""
        options = self.options
        try:
            from transformers import Nemotron3DiarizationForAudioFrameClassification, Nemotron3DiarizationProcessor
            from transformers.utils import logging

            logging.disable_progress_bar()
            processor = Nemotron3DiarizationProcessor.from_pretrained(options.model, revision=options.revision)
            model = Nemotron3DiarizationForAudioFrameClassification.from_pretrained(
                options.model, revision=options.revision
            )
            model = model.eval().to(options.device)
        except Exception as error:  # of many classes, those of the Hub among them
            raise ConfigError(
                f"`{options.model}` cannot be loaded by transformers",
                code="diarization-fails",
                why=first_line(error),
                fix="check `diarize.model` and `diarize.device`; the model needs transformers 5.23 or newer",
            ) from None
        sizes = (model.config.chunk_length, model.config.chunk_right_context)
        processor.streaming_modes = {**processor.streaming_modes, _MODE: sizes}
        processor.set_streaming_mode(_MODE)
        self._model, self._processor = model, processor

    def turns(self, samples_T: Samples) -> list[Turn]:
        """The turns of a recording, in chunks of half a minute."""
        frame_ms = 1000 * self._loaded()[1].feature_extractor.hop_length / RATE_HZ
        active_FS = self._active(samples_T)
        spans = []
        for speaker in range(active_FS.shape[1]):
            change = np.flatnonzero(np.diff(np.concatenate([[0], active_FS[:, speaker].view(np.int8), [0]])))
            for first, end in change.reshape(-1, 2).tolist():
                spans.append((round(first * frame_ms), round(end * frame_ms), str(speaker)))
        duration_ms = pcm.samples_to_ms(len(samples_T))
        return numbered([(start_ms, min(end_ms, duration_ms), name) for start_ms, end_ms, name in spans])

    def close(self) -> None:
        """Release the model."""
        self._model = self._processor = None

    def _active(self, samples_T: Samples) -> NDArray[np.bool_]:
        """Whether each speaker speaks in each frame (F, S)."""
        import torch

        model, processor = self._loaded()
        cache, parts, frame, is_last = None, [], 0, False
        while not is_last:
            start = 0 if frame == 0 else processor.audio_chunk_start(frame)
            size = processor.num_samples_first_audio_chunk if frame == 0 else processor.num_samples_per_audio_chunk
            is_last = start + size >= len(samples_T)
            inputs = processor(
                pcm.to_float(samples_T[start : len(samples_T) if is_last else start + size]),
                sampling_rate=RATE_HZ,
                is_streaming=True,
                is_first_audio_chunk=frame == 0,
                is_last_audio_chunk=is_last,
                return_tensors="pt",
            ).to(model.device)
            with torch.inference_mode():
                output = model(**inputs, speaker_cache=cache)
            cache = output.speaker_cache
            parts.append((output.logits[0].sigmoid() > self.options.threshold).cpu().numpy())
            frame += processor.num_mel_frames_per_step
        active_FS: NDArray[np.bool_] = np.concatenate(parts)
        return active_FS

    def _loaded(self) -> tuple[Any, Any]:
        assert self._model is not None
        assert self._processor is not None
        return self._model, self._processor
