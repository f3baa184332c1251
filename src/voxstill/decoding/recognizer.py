"""A speech recogniser: a student or any other checkpoint that `transformers` loads turns audio into Hypotheses.

It is independent of teachers, labels and work folders: samples in, Hypotheses out. CTC models and transducers decode
greedily or with a beam search, encoder-decoders by `generate`. An exported student runs on onnxruntime.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from voxstill.core import pcm, world
from voxstill.core.config import Decode, validated
from voxstill.core.errors import ConfigError
from voxstill.core.monitor import log
from voxstill.core.records import NO_AUDIO, Hypothesis
from voxstill.decoding import checkpoint_files, exported
from voxstill.decoding.loaded import LoadedCtc, LoadedModel, Samples, no_recognizer_error
from voxstill.decoding.options import BATCH_MS, GPU_MS, WINDOWS_MS, RecognizerOptions
from voxstill.decoding.streams import LoadedStreaming, Stream
from voxstill.decoding.word_times import AlignedText
from voxstill.text.pieces import PieceVocabulary

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

_FILES = ("*.json", "*.txt", "*.model", "*.py", "*.safetensors")
"""What of a checkpoint is read, and so what its revision is made of: pickled weights can run anything."""
_SHORTEST = pcm.ms_to_samples(10)
"""Samples of one feature frame: less cannot be transcribed."""


class Recognizer:
    """Transcribes samples in batches of like length.

    `section` is what the caller's configuration calls the options, such as `teacher.`, for messages. ConfigError if
    a folder is named that holds no model.
    """

    def __init__(self, options: RecognizerOptions, decoding: Decode | None = None, *, section: str = "") -> None:
        self.options, self.decoding, self._section = options, decoding or Decode(), section
        if not checkpoint_files.on_hub(options.model) and self._exported is None:
            checkpoint_files.model_folder(options.model)
        self._loaded: LoadedModel | None = None
        self._is_on_gpu = False

    @functools.cached_property
    def _exported(self) -> tuple[Path, str | None] | None:
        """The folder of an exported student, which is fetched where it is on the Hub."""
        return exported.locate(self.options.model, self.options.revision)

    def revision(self) -> str:
        """Return the hash of the files of a folder, or the commit of a name on the Hub, which may be asked for it."""
        if self._exported is not None:
            return exported.read(self._exported[0]).revision
        if checkpoint_files.on_hub(self.options.model):
            return checkpoint_files.fetch(self.options.model, self.options.revision, ("config.json",)).name[:16]
        return checkpoint_files.digest(checkpoint_files.model_folder(self.options.model), _FILES)

    def load(self) -> None:
        """Load the weights to the GPU where there is one; an exported student stays on the CPU, and needs no torch.

        DataError if there is nothing to load, ConfigError if options do not go with the model.
        """
        if self._exported is not None:
            from voxstill.decoding import onnx_models

            self._loaded = onnx_models.load(*self._exported, self.options, self.decoding, self._section)
        else:
            with world.collection_paused():
                self._loaded = self._load_torch()
        if self.decoding.chunk_ms is not None and self.chunk_ms is None:
            raise ConfigError(
                "`decode.chunk_ms` has no effect",
                code="option-unused",
                why=f"`{self.options.model}` processes whole utterances",
                fix="leave it out, or use a student trained with `student.streaming`",
            )

    def _load_torch(self) -> LoadedModel:
        import torch

        from voxstill.nn import classifiers
        from voxstill.nn.loading import load_config

        options = self.options
        torch.set_num_threads(options.threads)
        if checkpoint_files.on_hub(options.model):
            folder = checkpoint_files.fetch(options.model, options.revision, _FILES)
        else:
            folder = checkpoint_files.model_folder(options.model)
        if options.trust_remote_code:
            log.warning("`trust_remote_code` is set: code that comes with `%s` may run", options.model)
        try:
            config = load_config(folder, trust_remote_code=options.trust_remote_code)
        except (OSError, ValueError) as error:
            raise no_recognizer_error(folder, error) from None
        if (task := classifiers.task_of(config)) is not None:
            raise ConfigError(
                f"`{options.model}` does not output text",
                code="wrong-model",
                why=f"it distinguishes {task}",
                fix="evaluate it with `voxstill evaluate`, or give a recogniser",
            )
        self._is_on_gpu = torch.cuda.is_available()
        return self._load(folder, config, torch.device("cuda" if self._is_on_gpu else "cpu"))

    def _load(self, folder: Path, config: PretrainedConfig, device: torch.device) -> LoadedModel:
        from voxstill.decoding.batch import CtcModel, FrameModel, StreamingModel
        from voxstill.nn import students

        kind = students.KINDS.get(config.model_type, "seq2seq")
        if kind != "seq2seq":
            world.reuse_freed_memory()  # of an encoder-decoder it would hold a third more memory, and save no time
            model = CtcModel if kind == "ctc" else FrameModel
            if config.model_type == students.STREAMING:
                model = StreamingModel
            return model(folder, self.options, self.decoding, device, self._section)
        if self.decoding != Decode():
            names = ", ".join(f"`{self._section}decode.{name}`" for name in self.decoding.options_set)
            raise ConfigError(
                f"the section `decode` has no effect: {names}",
                code="option-unused",
                why=f"`{self.options.model}` is an encoder-decoder, which decodes by itself",
                fix="leave it out; `voxstill serve` uses it for all its models, so serve this one on another server",
            )
        from voxstill.decoding.generate import GenerateModel

        return GenerateModel(folder, config, self.options, device, self._section)

    @property
    def _model(self) -> LoadedModel:
        assert self._loaded is not None, "call `load` first"
        return self._loaded

    @property
    def num_parameters(self) -> int:
        """Number of weights of the loaded model."""
        return self._model.num_parameters

    @property
    def max_duration_ms(self) -> int | None:
        """The longest utterance that the loaded model takes; None if there is no limit."""
        return self._model.max_duration_ms

    @property
    def batch_ms(self) -> int:
        """Most audio that the loaded model is given at once, padding included; 0 where each utterance goes alone."""
        if not self._model.takes_batches:
            return 0
        if self.options.batch_ms is not None:
            return self.options.batch_ms
        if self._is_on_gpu:
            return GPU_MS
        return BATCH_MS if self.max_duration_ms is None else WINDOWS_MS

    @property
    def languages(self) -> Collection[str]:
        """Codes of the languages that the loaded model takes in `transcribe_batch`; none where it is of one alone."""
        return self._model.languages

    @property
    def takes_phrases(self) -> bool:
        """Whether `transcribe_batch` can listen for phrases: a CTC model or a transducer without a grammar can."""
        return self._model.takes_phrases

    def transcribe_batch(
        self,
        samples: Sequence[Samples],
        ids: Sequence[str] | None = None,
        languages: Sequence[str | None] | None = None,
        phrases: Sequence[str] = (),
    ) -> list[Hypothesis]:
        """Transcribe utterances; return one Hypothesis per utterance, in order, errors included.

        `score` is the mean log-probability of a token. `ids` name the utterances, by default their positions; where
        the temperature is above 0, what is drawn depends on them. `languages` are those of the utterances, each one of
        `languages` or None: it is then detected, where the model knows several. `phrases` are listened for besides
        those of `decode.boost`, where the model `takes_phrases`.
        """
        languages = [None] * len(samples) if languages is None else languages
        ids = [str(i) for i in range(len(samples))] if ids is None else ids
        hypotheses = [Hypothesis(id=id_, text="", error=NO_AUDIO, finish="failed") for id_ in ids]
        lengths, max_duration_ms = [len(samples_T) for samples_T in samples], self.max_duration_ms
        window = 0
        if max_duration_ms is not None:  # it takes windows of this length, with silence after the speech
            window = pcm.ms_to_samples(max_duration_ms)
            for i, num in enumerate(lengths):
                if num > window:
                    error = f"longer than the {max_duration_ms // 1000} s taken at once"
                    hypotheses[i] = Hypothesis(id=ids[i], text="", error=error, finish="failed")
                    lengths[i] = 0
        for members in batches_by_length(lengths, self.batch_ms, window):
            batch = [samples[i] for i in members]
            answers = self._model.transcribe(batch, [ids[i] for i in members], [languages[i] for i in members], phrases)
            for i, hypothesis in zip(members, answers, strict=True):
                hypotheses[i] = hypothesis
        return hypotheses

    @property
    def chunk_ms(self) -> int | None:
        """The chunk size of a streaming student; None if the loaded model is not one."""
        return self._model.chunk_ms if isinstance(self._model, LoadedStreaming) else None

    @property
    def stream_ms(self) -> int | None:
        """The audio after which `advance` has more words, `chunk_ms`; None where it would not decode as asked.

        It is greedy: with `decode.beam` a streaming student transcribes utterances, as others do.
        """
        return self.chunk_ms if self.decoding.beam == 1 else None

    def open_stream(self) -> Stream:
        """Return a stream before its first chunk; the loaded model is a streaming student."""
        return self._streaming_model().open_stream()

    def advance(
        self, streams: Sequence[Stream], samples: Sequence[Samples], is_last: Sequence[bool]
    ) -> list[Hypothesis]:
        """Transcribe what is new of each stream; return one Hypothesis for each, of all of it so far.

        `samples` are all of each stream so far, and `is_last` says which have ended. The words of a hypothesis stay; of
        one that has ended they are those of `transcribe_batch`.
        """
        return self._streaming_model().advance(streams, samples, is_last)

    def _streaming_model(self) -> LoadedStreaming:
        assert isinstance(self._model, LoadedStreaming), "set `chunk_ms` first"
        return self._model

    def check_alignment(self) -> None:
        """Raise ConfigError if the loaded model cannot score a text that is given: it is not a CTC model."""
        self._ctc_model()

    def _ctc_model(self) -> LoadedCtc:
        if not isinstance(self._model, LoadedCtc):
            raise ConfigError(
                f"`{self.options.model}` cannot measure how well a text fits its audio",
                code="wrong-model",
                why="it is not a CTC model",
                fix="use a CTC student, a wav2vec 2.0 or a Parakeet-CTC",
            )
        return self._model

    @property
    def vocabulary(self) -> PieceVocabulary:
        """The tokens of `log_probs`; ConfigError if it is not a CTC model."""
        return self._ctc_model().vocabulary

    @property
    def frame_ms(self) -> int:
        """From one frame of `log_probs` to the next; ConfigError if it is not a CTC model."""
        return self._ctc_model().frame_ms

    def log_probs(self, samples: Sequence[Samples], blank_penalty: float = 0.0) -> list[NDArray[np.float32]]:
        """Return the log-probabilities (F, V) of the tokens in the frames of each utterance, of all in one batch.

        Every one has samples. `blank_penalty` as in `Decode`. ConfigError if it is not a CTC model.
        """
        return self._ctc_model().log_probs(samples, blank_penalty)

    def align(
        self, samples: Sequence[Samples], texts: Sequence[str], with_words: Sequence[bool] | None = None
    ) -> list[AlignedText]:
        """Return how well each text fits its audio, by CTC (forced alignment), and the times of its words.

        Words only where they are asked for. ConfigError if it is not a CTC model.
        """
        model = self._ctc_model()
        with_words = [False] * len(samples) if with_words is None else with_words
        aligned = [AlignedText()] * len(samples)
        for members in batches_by_length([len(samples_T) for samples_T in samples], self.batch_ms):
            batch = [samples[i] for i in members]
            answers = model.align(batch, [texts[i] for i in members], [with_words[i] for i in members])
            for i, answer in zip(members, answers, strict=True):
                aligned[i] = answer
        return aligned

    def close(self) -> None:
        """Drop the weights."""
        self._loaded = None


def student(decoding: Decode, model: str, **options: int) -> Recognizer:
    """Return a student, not loaded yet, that decodes as `decoding` says; ConfigError if the folder holds none.

    `options` are further ones of `RecognizerOptions`.
    """
    tree = {"model": model, "dtype": "float32", **options}  # the same figures on every machine
    return Recognizer(validated(RecognizerOptions, tree), decoding)


def batches_by_length(num_samples: Sequence[int], batch_ms: int, window: int = 0) -> list[list[int]]:
    """Group positions into batches of like length, padded to at most `batch_ms`; a longer utterance goes alone.

    Every utterance is padded to `window` samples at least. Also then those of like length go together: a batch of texts
    takes as long as its longest. Utterances shorter than one feature frame are left out: nothing can be heard in them.
    No other is lost.
    """
    order = sorted((n, i) for i, n in enumerate(num_samples) if n >= _SHORTEST)
    batches: list[list[int]] = []
    for n, i in order:
        if batches and max(n, window) * (len(batches[-1]) + 1) <= pcm.ms_to_samples(batch_ms):
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches
