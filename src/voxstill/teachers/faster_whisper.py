"""The teacher `faster-whisper`: Whisper on CTranslate2, fast on a CPU too, with 8-bit weights where set."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from voxstill.core import pcm
from voxstill.core.config import Section, option
from voxstill.core.errors import ConfigError, TeacherError, first_line
from voxstill.core.records import RATE_HZ, Word
from voxstill.decoding import checkpoint_files
from voxstill.teachers.teacher import MANIFEST, Clip, Transcription, by_language

WINDOW_S = 30
"""Length of Whisper's input window."""
CPU_BATCH, GPU_BATCH = 8, 16
"""Windows in a batch: as faster-whisper and WhisperX have it."""
_MODEL_FILES = ("*.json", "*.txt", "model.bin")
_REQUIRED_FILES = ("model.bin", "config.json")
_DECODING_OPTIONS = (
    "beam_size",
    "patience",
    "length_penalty",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "temperature",
    "initial_prompt",
    "hotwords",
    "suppress_blank",
    "suppress_tokens",
    "word_timestamps",
    "vad_filter",
)


class FasterWhisperOptions(Section):
    """Options of the teacher `faster-whisper`, called as there."""

    model: str = option()
    """Folder of a model that was converted, or a name on the Hugging Face Hub: `Systran/faster-whisper-small`."""
    revision: str | None = option(None)
    """Branch, tag or commit of a name on the Hub."""
    device: Literal["auto", "cpu", "cuda"] = option("auto")
    """`auto` takes the GPU where there is one."""
    compute_type: str = option("default")
    """Numbers it computes with: `float32`, `float16`, `bfloat16`, `int8`, `int8_float16` and others."""
    cpu_threads: int = option(1, unit="threads", ge=1, le=1024, pace=True)
    """CPU threads of the model."""
    batch_size: int | None = option(None, unit="clips", ge=1, also_default=(CPU_BATCH,))
    """Clips of one language in a batch, those of like length together; one by one where the language is to be detected.
    Unset takes 8 on a CPU and 16 on a GPU."""
    language: str | None = option(MANIFEST, first_default=None)
    """Language of the audio (`en`); `manifest` takes that of each utterance, and null detects it."""
    beam_size: int = option(5, unit="beams", ge=1)
    """Hypotheses kept in the beam search."""
    patience: float = option(1.0, gt=0)
    """Above 1 the beam search goes on until `patience` times `beam_size` hypotheses have ended."""
    length_penalty: float = option(1.0)
    """Above 1 prefers longer texts."""
    repetition_penalty: float = option(1.0, gt=0)
    """Above 1, tokens of the text so far become less likely."""
    no_repeat_ngram_size: int = option(0, unit="tokens", ge=0)
    """No n-gram of so many tokens is generated twice; 0 allows it."""
    temperature: float = option(0.0, ge=0)
    """Above 0 tokens are sampled, and another run gives another text."""
    initial_prompt: str | None = option(None)
    """Text that precedes each clip as context: spelling and style follow it."""
    hotwords: str | None = option(None)
    """Words and phrases that are likely."""
    suppress_blank: bool = option(True)
    """No text begins with a space or ends at once."""
    suppress_tokens: list[int] = option([-1])
    """Tokens that are never generated; -1 stands for those in the model's configuration."""
    word_timestamps: bool = option(True)
    """Word times, by a second, short pass."""
    vad_filter: bool = option(False)
    """Transcribe only what a voice-activity detector takes for speech; clips one by one."""


class FasterWhisperTeacher:
    """Transcribes clips of up to 30 s; confidence is the mean log-probability of the tokens, end of text included."""

    Options: ClassVar[type[Section]] = FasterWhisperOptions
    reads_texts: ClassVar[bool] = False
    needs: ClassVar[tuple[str, str]] = ("faster_whisper", "whisper")

    def __init__(self, options: FasterWhisperOptions) -> None:
        self.options = options
        self.folder = checkpoint_files.folder_of(options.model, _REQUIRED_FILES)

    def revision(self) -> str:
        """The version of the package, and the hash of the folder or the commit on the Hub."""
        if self.folder is None:
            files = checkpoint_files.fetch(self.options.model, self.options.revision, ("config.json",)).name[:16]
        else:
            files = checkpoint_files.digest(self.folder, _MODEL_FILES)
        return f"{version('faster-whisper')}-{files}"

    def load(self) -> None:
        """Load the weights; TeacherError where they cannot be, ConfigError for a language that it does not know."""
        import faster_whisper

        options = self.options
        folder = self.folder or checkpoint_files.fetch(options.model, options.revision, _MODEL_FILES)
        try:
            model = faster_whisper.WhisperModel(
                str(folder), device=options.device, compute_type=options.compute_type, cpu_threads=options.cpu_threads
            )
        except (RuntimeError, ValueError, OSError) as error:
            raise TeacherError(
                f"`{options.model}` cannot be loaded by faster-whisper",
                code="teacher-not-loaded",
                why=first_line(error),
                fix="check `teacher.device`, `teacher.compute_type`, and how the model was converted",
            ) from None
        self._known = model.supported_languages
        if options.language not in (None, MANIFEST, *self._known):
            raise ConfigError(
                f"`teacher.language` is `{options.language}`",
                code="language-unknown",
                why=f"`{options.model}` supports {', '.join(self._known)}",
                fix="use one of them",
            )
        if model.model.device == "cpu" and model.model.compute_type.endswith("float32"):  # numpy has no bfloat16
            model.encode = functools.partial(_encode_one_by_one, model.encode)
        self._batch_size = options.batch_size or (GPU_BATCH if model.model.device == "cuda" else CPU_BATCH)
        self._model, self._max_tokens = faster_whisper.BatchedInferencePipeline(model), model.max_length // 2

    def transcribe_batch(self, clips: Sequence[Clip]) -> list[Transcription]:
        """Transcribe clips in batches; one result per clip, in order, errors included."""
        results = [Transcription(error="no audio", finish="failed")] * len(clips)
        audible = []
        for i, clip in enumerate(clips):
            if len(clip.samples_T) > WINDOW_S * RATE_HZ:
                results[i] = Transcription(error=f"longer than the {WINDOW_S} s taken at once", finish="failed")
            elif len(clip.samples_T) >= RATE_HZ // 100:
                audible.append(i)
        members = by_language(clips, audible, self.options.language, self._known, self.options.model)
        for language, positions in members.items():
            size = 1 if language is None or self.options.vad_filter else self._batch_size
            positions.sort(key=lambda i: len(clips[i].samples_T))  # a batch of texts takes as long as its longest
            for start in range(0, len(positions), size):
                batch = positions[start : start + size]
                for i, result in zip(batch, self._transcribe([clips[i] for i in batch], language), strict=True):
                    results[i] = result
        return results

    def close(self) -> None:
        """Drop the weights."""
        del self._model

    def _transcribe(self, clips: Sequence[Clip], language: str | None) -> list[Transcription]:
        # clips are concatenated, each padded with silence to a window: zero-padded features would not be silence
        windows = np.zeros((len(clips), WINDOW_S * RATE_HZ), np.float32)
        for row_T, clip in zip(windows, clips, strict=True):
            row_T[: len(clip.samples_T)] = pcm.to_float(clip.samples_T)
        audio_arguments: dict[str, Any] = {"audio": windows.reshape(-1)}
        if not self.options.vad_filter:
            spans = [{"start": WINDOW_S * i, "end": WINDOW_S * (i + 1)} for i in range(len(clips))]
            audio_arguments["clip_timestamps"] = spans
        segments, info = self._model.transcribe(
            **audio_arguments,
            **{name: getattr(self.options, name) for name in _DECODING_OPTIONS},
            language=language,
            batch_size=len(clips),
            without_timestamps=True,
        )
        segments_of_clip: list[list[Any]] = [[] for _ in clips]
        for segment in segments:
            segments_of_clip[int(segment.start // WINDOW_S)].append(segment)
        return [
            self._result(clip, i * WINDOW_S, clip_segments, info.language)
            for i, (clip, clip_segments) in enumerate(zip(clips, segments_of_clip, strict=True))
        ]

    def _result(self, clip: Clip, start_s: float, segments: Sequence[Any], language: str) -> Transcription:
        num_tokens = [len(segment.tokens) for segment in segments]
        lengths = [num + 1 for num in num_tokens]  # the end of text is a token too
        logprobs = [segment.avg_logprob * length for segment, length in zip(segments, lengths, strict=True)]
        last_ms = pcm.samples_to_ms(len(clip.samples_T))

        def to_ms(time_s: float) -> int:
            return min(max(round((time_s - start_s) * 1000), 0), last_ms)

        return Transcription(
            text=" ".join("".join(segment.text for segment in segments).split()),
            language=language,
            mean_logprob=math.fsum(logprobs) / sum(lengths) if segments else None,
            num_tokens=sum(num_tokens),
            finish="length" if any(num >= self._max_tokens for num in num_tokens) else "stop",
            words=tuple(
                Word(
                    text=word.word.strip(),
                    start_ms=to_ms(word.start),
                    end_ms=to_ms(word.end),
                    prob=float(word.probability),
                )
                for segment in segments
                for word in segment.words or ()
            ),
        )


def _encode_one_by_one(encode: Callable[[NDArray[np.float32]], Any], features: NDArray[np.float32]) -> Any:
    """The states of the encoder, as a `StorageView`, of one window or of a batch.

    The numbers are those of a batch. Its attention would take half a gigabyte, and not fit into the caches of a core.
    """
    import ctranslate2

    if features.ndim == 2:
        return encode(features)
    return ctranslate2.StorageView.from_array(np.concatenate([np.array(encode(window)) for window in features]))
