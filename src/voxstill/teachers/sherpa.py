"""Recognisers of sherpa-onnx: transducers, CTC, Whisper and SenseVoice in a folder of ONNX files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from voxstill.config import Section, option
from voxstill.decode import checkpoint_files
from voxstill.errors import ConfigError, TeacherError
from voxstill.records import RATE_HZ, Word
from voxstill.teachers.teacher import Clip, Heard

_READ = ("*.onnx", "tokens.txt")
_LONGEST_TOKEN_S = 0.1
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
    language: str | None = option(None)
    """Language of the audio (`en`), for a Whisper or a SenseVoice."""
    decoding_method: Literal["greedy_search", "modified_beam_search"] = option("greedy_search")
    """How a transducer searches."""
    max_active_paths: int = option(4, unit="paths", ge=1)
    """Texts followed side by side in a beam search."""
    provider: Literal["cpu", "cuda"] = option("cpu")
    """Where it runs; `cuda` needs a wheel of sherpa-onnx made for it."""
    num_threads: int = option(1, unit="threads", ge=1, pace=True)
    """CPU threads of the model."""
    batch_size: int = option(16, unit="clips", ge=1)
    """Clips heard at once."""


class SherpaTeacher:
    """Hears clips in batches, with word times where tokens have some, and a confidence where it tells one."""

    Options: ClassVar[type[Section]] = SherpaOptions
    reads_texts: ClassVar[bool] = False

    def __init__(self, options: SherpaOptions) -> None:
        self.options = options
        self.folder = checkpoint_files.folder_of(options.model, ("tokens.txt",))

    def revision(self) -> str:
        """The version of the package, and the hash of the folder or the commit on the Hub."""
        if self.folder is None:
            files = checkpoint_files.fetch(self.options.model, self.options.revision, ("tokens.txt",)).name[:16]
        else:
            files = checkpoint_files.digest(self.folder, _READ)
        return f"{version('sherpa-onnx')}-{files}"

    def open(self) -> None:
        """Load the model; ConfigError where a file is missing, TeacherError where one cannot be loaded."""
        import sherpa_onnx

        options = self.options
        folder = self.folder or checkpoint_files.fetch(options.model, options.revision, _READ)
        try:
            self._recogniser = getattr(sherpa_onnx.OfflineRecognizer, f"from_{options.kind}")(
                **arguments(options, folder)
            )
        except (RuntimeError, ValueError) as error:
            raise TeacherError(
                f"`{options.model}` cannot be loaded by sherpa-onnx",
                why=str(error).strip().splitlines()[0],
                fix="look at `teacher.kind` and `teacher.provider`",
            ) from None

    def hear(self, clips: Sequence[Clip]) -> list[Heard]:
        """One answer for each clip, in order."""
        heard = [Heard(error="no audio", finish="failed")] * len(clips)
        sound = [i for i, clip in enumerate(clips) if len(clip.samples_T) >= RATE_HZ // 100]
        for start in range(0, len(sound), self.options.batch_size):
            members = sound[start : start + self.options.batch_size]
            streams = []
            for i in members:
                streams.append(self._recogniser.create_stream())
                streams[-1].accept_waveform(RATE_HZ, clips[i].samples_T / np.float32(2**15))
            self._recogniser.decode_streams(streams)
            for i, stream in zip(members, streams, strict=True):
                heard[i] = _answer(stream.result, len(clips[i].samples_T) / RATE_HZ)
        return heard

    def close(self) -> None:
        """Drop the model."""
        del self._recogniser


def arguments(options: SherpaOptions, folder: Path) -> dict[str, Any]:
    """What the method `from_...` of the kind is given; ConfigError where a file is missing."""
    given: dict[str, Any] = {name: str(_file(folder, name, options.int8)) for name in _FILES[options.kind]}
    given |= {"tokens": str(folder / "tokens.txt"), "num_threads": options.num_threads, "provider": options.provider}
    if options.kind == "transducer":
        given |= {"decoding_method": options.decoding_method, "max_active_paths": options.max_active_paths}
        given["model_type"] = ""  # the file says
    if options.kind in ("whisper", "sense_voice"):
        given["language"] = options.language or ""
    return given


def _file(folder: Path, name: str, int8: bool) -> Path:
    """The ONNX file of a part: `encoder.onnx`, or the only one of a longer name such as `encoder-epoch-99.onnx`."""
    found = [path for path in folder.glob(f"*{name}*.onnx") if path.name.endswith(".int8.onnx") == int8]
    exact = [path for path in found if path.name == f"{name}{'.int8' if int8 else ''}.onnx"]
    if len(exact or found) != 1:
        raise ConfigError(
            f"which file in `{folder}` is the {name}?",
            why=f"{len(found)} files are called `*{name}*{'.int8' if int8 else ''}.onnx`",
            fix=f"call one of them `{name}{'.int8' if int8 else ''}.onnx`, or set `teacher.kind` and `teacher.int8`",
        )
    return (exact or found)[0]


def _answer(result: Any, duration_s: float) -> Heard:
    logprobs = list(result.ys_log_probs)
    return Heard(
        text=" ".join(result.text.split()),
        language=result.lang.strip("<|>") or None,
        mean_logprob=math.fsum(logprobs) / len(logprobs) if logprobs else None,
        num_tokens=len(result.tokens),
        words=tuple(_words(result, duration_s)) if result.timestamps else (),
    )


def _words(result: Any, duration_s: float) -> Iterator[Word]:
    """Words with times: a token lasts as long as the model says, or until the next one, at most 100 ms."""
    starts = [*result.timestamps, duration_s]
    ends = [min(after, start + _LONGEST_TOKEN_S) for start, after in pairwise(starts)]
    if result.durations:
        ends = [start + lasting for start, lasting in zip(starts, result.durations, strict=False)]
    spelt: list[tuple[str, float, float]] = []
    for token, start, end in zip(result.tokens, starts, ends, strict=False):
        if token.startswith((" ", "▁")) or not spelt:
            spelt.append(("", start, end))
        text, first, _ = spelt[-1]
        spelt[-1] = (text + token.strip(" ▁"), first, end)
    for text, start, end in spelt:
        if text:
            yield Word(text=text, start_ms=round(start * 1000), end_ms=round(min(end, duration_s) * 1000))
