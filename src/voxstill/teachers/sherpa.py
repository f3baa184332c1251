"""The teacher `sherpa`: sherpa-onnx models (transducer, CTC, Whisper, SenseVoice) in a folder of ONNX files."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from voxstill.core import pcm
from voxstill.core.config import Section, option
from voxstill.core.errors import ConfigError, TeacherError, first_line
from voxstill.core.records import RATE_HZ, Word
from voxstill.decoding import checkpoint_files
from voxstill.teachers.teacher import MANIFEST, Clip, Transcription, by_language

if TYPE_CHECKING:
    from sherpa_onnx import OfflineRecognizer

_MODEL_FILES = ("*.onnx", "tokens.txt")
_MAX_TOKEN_S = 0.1
Kind = Literal["transducer", "nemo_ctc", "zipformer_ctc", "wenet_ctc", "whisper", "sense_voice"]
_FILES: dict[Kind, tuple[str, ...]] = {
    "transducer": ("encoder", "decoder", "joiner"),
    "whisper": ("encoder", "decoder"),
    **dict.fromkeys(("nemo_ctc", "zipformer_ctc", "wenet_ctc", "sense_voice"), ("model",)),
}


class SherpaOptions(Section):
    """Options of the teacher `sherpa`, called as in sherpa-onnx."""

    model: str = option()
    """Folder of tokens.txt and ONNX files (encoder, decoder and joiner, or model), or a name on the Hugging Face
    Hub."""
    revision: str | None = option(None)
    """Branch, tag or commit of a name on the Hub."""
    kind: Kind = option("transducer")
    """What the files are: the method `from_...` of sherpa-onnx that takes them."""
    int8: bool = option(False)
    """Take `encoder.int8.onnx` rather than `encoder.onnx`."""
    language: str | None = option(MANIFEST, first_default=None)
    """Language of the audio (`en`), for a Whisper or a SenseVoice; `manifest` takes that of each utterance, and null
    detects it."""
    decoding_method: Literal["greedy_search", "modified_beam_search"] = option("greedy_search")
    """Decoding method of a transducer."""
    max_active_paths: int = option(4, unit="paths", ge=1)
    """Hypotheses kept in the beam search."""
    provider: Literal["cpu", "cuda"] = option("cpu")
    """Where it runs; `cuda` needs a wheel of sherpa-onnx made for it."""
    num_threads: int = option(1, unit="threads", ge=1, le=1024, pace=True)
    """CPU threads of the model."""
    batch_size: int = option(16, unit="clips", ge=1)
    """Clips in a batch."""


class SherpaResult(Protocol):
    """What is read of a result of sherpa-onnx; times are in seconds, and empty where the model gives none."""

    text: str
    lang: str
    tokens: Sequence[str]
    timestamps: Sequence[float]
    durations: Sequence[float]
    ys_log_probs: Sequence[float]


class SherpaTeacher:
    """Transcribes clips in batches; word times and confidence where the model gives them."""

    Options: ClassVar[type[Section]] = SherpaOptions
    reads_texts: ClassVar[bool] = False
    needs: ClassVar[tuple[str, str]] = ("sherpa_onnx", "sherpa")

    def __init__(self, options: SherpaOptions) -> None:
        self.options = options
        self.folder = checkpoint_files.folder_of(options.model, ("tokens.txt",))

    def revision(self) -> str:
        """The version of the package, and the hash of the folder or the commit on the Hub."""
        if self.folder is None:
            files = checkpoint_files.fetch(self.options.model, self.options.revision, ("tokens.txt",)).name[:16]
        else:
            files = checkpoint_files.digest(self.folder, _MODEL_FILES)
        return f"{version('sherpa-onnx')}-{files}"

    def load(self) -> None:
        """Load the model; ConfigError where a file is missing, TeacherError where one cannot be loaded."""
        language = None if self.options.language == MANIFEST else self.options.language
        self._recognisers = {language: self._load(language)}

    def _load(self, language: str | None) -> OfflineRecognizer:
        import sherpa_onnx

        options = self.options
        folder = self.folder or checkpoint_files.fetch(options.model, options.revision, _MODEL_FILES)
        try:
            make = getattr(sherpa_onnx.OfflineRecognizer, f"from_{options.kind}")
            recogniser: OfflineRecognizer = make(**arguments(options, folder, language))
            return recogniser
        except (RuntimeError, ValueError) as error:
            raise TeacherError(
                f"`{options.model}` cannot be loaded by sherpa-onnx",
                code="teacher-not-loaded",
                why=first_line(error),
                fix="check `teacher.kind` and `teacher.provider`",
            ) from None

    def transcribe_batch(self, clips: Sequence[Clip]) -> list[Transcription]:
        """Transcribe clips in batches; one result per clip, in order, errors included."""
        results = [Transcription(error="no audio", finish="failed")] * len(clips)
        audible = [i for i, clip in enumerate(clips) if len(clip.samples_T) >= RATE_HZ // 100]
        options, size = self.options, self.options.batch_size
        members = by_language(clips, audible, options.language, _known(options.kind), options.model)
        for language, positions in members.items():
            recogniser = self._recogniser(language)
            for start in range(0, len(positions), size):
                batch = positions[start : start + size]
                streams = []
                for i in batch:
                    streams.append(recogniser.create_stream())
                    streams[-1].accept_waveform(RATE_HZ, pcm.to_float(clips[i].samples_T))
                recogniser.decode_streams(streams)
                for i, stream in zip(batch, streams, strict=True):
                    results[i] = _result(stream.result, pcm.samples_to_s(len(clips[i].samples_T)))
        return results

    def close(self) -> None:
        """Drop the model."""
        del self._recognisers

    def _recogniser(self, language: str | None) -> OfflineRecognizer:
        """The recogniser that transcribes in a language; None detects it."""
        if self.options.kind == "whisper":  # the one kind that takes another language once it is loaded
            (recogniser,) = self._recognisers.values()
            recogniser.config.model_config.whisper.language = language or ""
            recogniser.recognizer.set_config(recogniser.config)
            return recogniser
        if language not in self._recognisers:
            self._recognisers[language] = self._load(language)
        return self._recognisers[language]


def _known(kind: Kind) -> Collection[str]:
    """Codes that models of a kind know; a Whisper would end the process for another."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    if kind == "whisper":
        return set(LANGUAGES) - {"yue"}  # which the first Whispers lack
    return ("zh", "en", "ja", "ko", "yue") if kind == "sense_voice" else ()


def arguments(options: SherpaOptions, folder: Path, language: str | None) -> dict[str, str | int]:
    """Keyword arguments of the method `from_...` of the kind; ConfigError where a file is missing."""
    kwargs: dict[str, str | int] = {name: str(_file(folder, name, options.int8)) for name in _FILES[options.kind]}
    kwargs |= {"tokens": str(folder / "tokens.txt"), "num_threads": options.num_threads, "provider": options.provider}
    if options.kind == "transducer":
        kwargs |= {"decoding_method": options.decoding_method, "max_active_paths": options.max_active_paths}
        kwargs["model_type"] = ""  # read from the file
    if options.kind in ("whisper", "sense_voice"):
        kwargs["language"] = language or ""
    return kwargs


def _file(folder: Path, name: str, int8: bool) -> Path:
    """The ONNX file of a part: `encoder.onnx`, or the only one of a longer name such as `encoder-epoch-99.onnx`."""
    candidates = [path for path in folder.glob(f"*{name}*.onnx") if path.name.endswith(".int8.onnx") == int8]
    exact = [path for path in candidates if path.name == f"{name}{'.int8' if int8 else ''}.onnx"]
    if len(exact or candidates) != 1:
        raise ConfigError(
            f"it is not clear which file in `{folder}` is the {name}",
            code="teacher-not-loaded",
            why=f"{len(candidates)} files are named `*{name}*{'.int8' if int8 else ''}.onnx`",
            fix=f"rename one of them to `{name}{'.int8' if int8 else ''}.onnx`, or set `teacher.kind` and "
            "`teacher.int8`",
        )
    return (exact or candidates)[0]


def _result(result: SherpaResult, duration_s: float) -> Transcription:
    logprobs = list(result.ys_log_probs)
    return Transcription(
        text=" ".join(result.text.split()),
        language=result.lang.strip("<|>") or None,
        mean_logprob=math.fsum(logprobs) / len(logprobs) if logprobs else None,
        num_tokens=len(result.tokens),
        words=tuple(_words(result, duration_s)) if result.timestamps else (),
    )


def _words(result: SherpaResult, duration_s: float) -> Iterator[Word]:
    """Words with times: a token has the model's duration, or lasts until the next one, at most 100 ms."""
    starts = [*result.timestamps, duration_s]
    ends = [min(after, start + _MAX_TOKEN_S) for start, after in pairwise(starts)]
    if result.durations:
        ends = [start + duration for start, duration in zip(starts, result.durations, strict=False)]
    spans: list[tuple[str, float, float]] = []
    for token, start, end in zip(result.tokens, starts, ends, strict=False):
        if token.startswith((" ", "▁")) or not spans:
            spans.append(("", start, end))
        text, first, _ = spans[-1]
        spans[-1] = (text + token.strip(" ▁"), first, end)
    for text, start, end in spans:
        if text:
            start_ms, end_ms = (round(min(time_s, duration_s) * 1000) for time_s in (start, end))
            yield Word(text=text, start_ms=start_ms, end_ms=end_ms)
