"""Whisper as CTranslate2 runs it: fast on a CPU too, in 8 bits where wanted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any, ClassVar, Literal

import numpy as np

from voxstill.config import Section, option
from voxstill.decode import checkpoint_files
from voxstill.errors import ConfigError, TeacherError
from voxstill.records import RATE_HZ, Word
from voxstill.teachers.teacher import Clip, Heard

WINDOW_S = 30
"""What Whisper hears at once."""
_READ = ("*.json", "*.txt", "model.bin")
_NEEDED = ("model.bin", "config.json")
_PASSED = (
    "language",
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
    cpu_threads: int = option(1, unit="threads", ge=1, pace=True)
    """CPU threads of the model."""
    batch_size: int = option(8, unit="clips", ge=1)
    """Clips heard at once where `teacher.language` is set; each by itself where its language is to be found out."""
    language: str | None = option(None)
    """Language of the audio (`en`); unset, it finds out for each clip."""
    beam_size: int = option(5, unit="beams", ge=1)
    """Texts followed side by side while searching."""
    patience: float = option(1.0, gt=0)
    """Above 1 the search goes on after so many times `beam_size` texts have ended."""
    length_penalty: float = option(1.0)
    """Above 1 prefers longer texts."""
    repetition_penalty: float = option(1.0, gt=0)
    """Above 1 makes tokens that were said less likely."""
    no_repeat_ngram_size: int = option(0, unit="tokens", ge=0)
    """No run of so many tokens is said twice; 0 allows it."""
    temperature: float = option(0.0, ge=0)
    """Above 0 tokens are drawn, and another run says something else."""
    initial_prompt: str | None = option(None)
    """Text that is taken as said before each clip: spelling and style follow it."""
    hotwords: str | None = option(None)
    """Words and phrases that are likely."""
    suppress_blank: bool = option(True)
    """No text begins with a space or ends at once."""
    suppress_tokens: list[int] = option([-1])
    """Tokens that are never said; -1 stands for those that the model names."""
    word_timestamps: bool = option(True)
    """Find when each word was said: a second, short pass."""
    vad_filter: bool = option(False)
    """Hear what a voice-activity detector takes for speech, and no more; each clip by itself."""


class FasterWhisperTeacher:
    """Hears clips of up to 30 s; confidence is the mean log-probability of the tokens, the end among them."""

    Options: ClassVar[type[Section]] = FasterWhisperOptions
    reads_texts: ClassVar[bool] = False

    def __init__(self, options: FasterWhisperOptions) -> None:
        self.options = options
        self.folder = checkpoint_files.folder_of(options.model, _NEEDED)

    def revision(self) -> str:
        """The version of the package, and the hash of the folder or the commit on the Hub."""
        if self.folder is None:
            files = checkpoint_files.fetch(self.options.model, self.options.revision, ("config.json",)).name[:16]
        else:
            files = checkpoint_files.digest(self.folder, _READ)
        return f"{version('faster-whisper')}-{files}"

    def open(self) -> None:
        """Load the weights; TeacherError where they cannot be, ConfigError for a language that it does not know."""
        import faster_whisper

        options = self.options
        folder = self.folder or checkpoint_files.fetch(options.model, options.revision, _READ)
        try:
            model = faster_whisper.WhisperModel(
                str(folder), device=options.device, compute_type=options.compute_type, cpu_threads=options.cpu_threads
            )
        except (RuntimeError, ValueError, OSError) as error:
            raise TeacherError(
                f"`{options.model}` cannot be loaded by faster-whisper",
                why=str(error).strip().splitlines()[0],
                fix="look at `teacher.device`, `teacher.compute_type`, and at how the model was converted",
            ) from None
        if options.language is not None and options.language not in model.supported_languages:
            raise ConfigError(
                f"`teacher.language` is `{options.language}`",
                why=f"`{options.model}` knows {', '.join(model.supported_languages)}",
                fix="name one of them",
            )
        self._model, self._most_tokens = faster_whisper.BatchedInferencePipeline(model), model.max_length // 2

    def hear(self, clips: Sequence[Clip]) -> list[Heard]:
        """One answer for each clip, in order."""
        heard = [Heard(error="no audio", finish="failed")] * len(clips)
        sound = []
        for i, clip in enumerate(clips):
            if len(clip.samples_T) > WINDOW_S * RATE_HZ:
                heard[i] = Heard(error=f"longer than the {WINDOW_S} s heard at once", finish="failed")
            elif len(clip.samples_T) >= RATE_HZ // 100:
                sound.append(i)
        by_itself = self.options.language is None or self.options.vad_filter
        size = 1 if by_itself else self.options.batch_size
        for start in range(0, len(sound), size):
            members = sound[start : start + size]
            for i, answer in zip(members, self._hear([clips[i] for i in members]), strict=True):
                heard[i] = answer
        return heard

    def close(self) -> None:
        """Drop the weights."""
        del self._model

    def _hear(self, clips: Sequence[Clip]) -> list[Heard]:
        # one window after the other, silence behind the speech: features padded with zeros are no silence
        windows = np.zeros((len(clips), WINDOW_S * RATE_HZ), np.float32)
        for row_T, clip in zip(windows, clips, strict=True):
            row_T[: len(clip.samples_T)] = clip.samples_T / np.float32(2**15)
        where: dict[str, Any] = {"audio": windows.reshape(-1)}
        if not self.options.vad_filter:
            where["clip_timestamps"] = [{"start": WINDOW_S * i, "end": WINDOW_S * (i + 1)} for i in range(len(clips))]
        segments, info = self._model.transcribe(
            **where,
            **{name: getattr(self.options, name) for name in _PASSED},
            batch_size=len(clips),
            without_timestamps=True,
        )
        said: list[list[Any]] = [[] for _ in clips]
        for segment in segments:
            said[int(segment.start // WINDOW_S)].append(segment)
        return [
            self._answer(clip, i * WINDOW_S, found, info.language)
            for i, (clip, found) in enumerate(zip(clips, said, strict=True))
        ]

    def _answer(self, clip: Clip, start_s: float, segments: Iterable[Any], language: str) -> Heard:
        found = list(segments)
        num_tokens = [len(each.tokens) for each in found]
        lengths = [num + 1 for num in num_tokens]  # the end of each is a token too
        logprobs = [each.avg_logprob * num for each, num in zip(found, lengths, strict=True)]
        last_ms = len(clip.samples_T) * 1000 // RATE_HZ

        def clock(at_s: float) -> int:
            return min(max(round((at_s - start_s) * 1000), 0), last_ms)

        return Heard(
            text=" ".join("".join(each.text for each in found).split()),
            language=language,
            mean_logprob=math.fsum(logprobs) / sum(lengths) if found else None,
            num_tokens=sum(num_tokens),
            finish="length" if any(num >= self._most_tokens for num in num_tokens) else "stop",
            words=tuple(
                Word(
                    text=word.word.strip(),
                    start_ms=clock(word.start),
                    end_ms=clock(word.end),
                    prob=float(word.probability),
                )
                for each in found
                for word in each.words or ()
            ),
        )
