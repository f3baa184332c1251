"""The teacher `vllm`: vLLM in this process, for Whisper, Qwen3-ASR, Qwen3-Omni, Voxtral and its other audio models.

The engine batches continuously: each clip is a request of its own that enters and leaves the batch by itself. Written
for vLLM 0.32 (`vllm.model_executor.models.interfaces.SupportsTranscription` builds the prompts of ASR models).
"""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import hashlib
import itertools
import os
import re
import socket
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue, field_validator

from voxstill.core import pcm
from voxstill.core.config import Section, option
from voxstill.core.errors import ConfigError, TeacherError
from voxstill.core.metrics.figures import ModelFigures
from voxstill.core.monitor import log
from voxstill.core.records import RATE_HZ, Finish, fingerprint
from voxstill.teachers.teacher import MANIFEST, Clip, Transcription, language_of
from voxstill.teachers.vllm_figures import EngineStats

if TYPE_CHECKING:
    from vllm import CompletionOutput, PromptType, SamplingParams

T = TypeVar("T")

VARIABLES = {
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork of a process with threads may hang
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # standard output is for data
}
"""Environment variables that are set for the engine where they are unset."""

UNCACHED: Mapping[str, JsonValue] = {"mm_processor_cache_gb": 0}
"""No audio comes twice: what was computed of it would fill up to 8 GiB for nothing."""
FIXED = {
    "disable_log_stats": "`voxstill label` reports its own figures",
    "hf_token": "a key must not be in a configuration: put it into the variable `HF_TOKEN`",
    "logprobs_mode": "the confidence of a label is a log-probability",
    "skip_tokenizer_init": "labels are texts",
}
"""Options of vLLM's engine that are not passed on, and why."""
FINISHES: dict[str | None, Finish] = {"stop": "stop", "length": "length", "repetition": "length"}
SAMPLE_BYTES = 1 << 20
WAITING = 2
"""Requests in flight for each that fits into the batch of the engine: one computed, one ready to follow it."""
ENGLISH = "en"
"""The language of a Whisper whose generation config says that it is not multilingual."""


class VllmOptions(Section):
    """Options of the engine and of its answers, under vLLM's own names."""

    model: str = option()
    """Folder of a checkpoint, or its name on the Hugging Face Hub."""
    revision: str | None = option(None)
    """Commit, branch or tag on the Hub: give a commit, and the labels say what made them."""
    dtype: str = option("auto")
    """`bfloat16`, `float16`, `float32`, or `auto`: what the checkpoint has."""
    tensor_parallel_size: int = option(1, unit="GPUs", ge=1)
    """GPUs that one model is spread over; `engine.teacher_gpus` reserves them."""
    max_model_len: int | None = option(None, unit="tokens", ge=1)
    """Longest prompt and answer together; unset takes what the model was made for."""
    max_num_batched_tokens: int | None = option(None, unit="tokens", ge=1, pace=True)
    """Most tokens of one step of the engine."""
    max_num_seqs: int | None = option(None, unit="clips", ge=1, pace=True)
    """Most clips in the batch at once."""
    gpu_memory_utilization: float | None = option(None, unit="share", gt=0, le=1, pace=True)
    """Share of the memory of the device that the engine takes."""
    enforce_eager: bool = option(False)
    """Start sooner and run slower: no CUDA graphs, no compilation."""
    trust_remote_code: bool = option(False)
    """Run Python code that comes with the checkpoint, with all rights of this process."""
    prompt: str | None = option(None)
    """For a recogniser, text to go on from or words to expect. For another model, its whole prompt: the template of its
    chat with the mark of the audio and what is to be done."""
    language: str | None = option(MANIFEST, first_default=None)
    """Language of the audio, `en` for example; `manifest` takes that of each utterance, and null lets the model detect
    it, where it can."""
    temperature: float = option(0.0, ge=0)
    """0 takes the likeliest token each time."""
    top_p: float = option(1.0, unit="probability", gt=0, le=1)
    """Nucleus sampling: tokens are sampled from the likeliest with this total probability."""
    top_k: int = option(0, unit="tokens", ge=0)
    """Tokens are sampled from so many of the likeliest; 0 takes all."""
    repetition_penalty: float = option(1.0, gt=0)
    """Above 1, tokens of the text so far become less likely."""
    max_tokens: int = option(448, unit="tokens", ge=1)
    """Longest answer; an answer cut there finishes as `length`."""
    seed: int = option(0, ge=0)
    """Seed of the sampling."""
    engine: dict[str, JsonValue] = option({})
    """Further options of vLLM's engine by its own names: `{quantization: fp8, kv_cache_dtype: fp8}`."""

    @field_validator("engine")
    @classmethod
    def _none_is_set_here(cls, engine: dict[str, JsonValue]) -> dict[str, JsonValue]:
        reasons = dict.fromkeys(cls.model_fields, "it is an option of the teacher itself") | FIXED
        limits = engine.get("limit_mm_per_prompt", {})
        if not isinstance(limits, dict) or limits.get("audio", 1) in (0, None):
            reasons["limit_mm_per_prompt"] = "it sets a number per kind of input, and every request has one `audio`"
        for name in (name for name in engine if name in reasons):  # the value may be a key: it is not repeated
            raise ConfigError(
                f"`teacher.engine` cannot have this `{name}`",
                code="option-conflict",
                why=reasons[name],
                fix=f"set `teacher.{name}`" if name in cls.model_fields else "remove it",
            )
        return engine


class VllmTeacher:
    """Transcribes as many clips at once as the engine holds; results are in the order of clips."""

    Options: ClassVar[type[Section]] = VllmOptions
    reads_texts: ClassVar[bool] = False
    calls_at_once: ClassVar[int] = 2

    def __init__(self, options: VllmOptions) -> None:
        self.options = options
        self._engine: Any = None
        self._stats = EngineStats("")

    def revision(self) -> str:
        """Name and commit on the Hub, or a hash of the files of a folder."""
        folder = Path(self.options.model)
        if not folder.is_dir():
            return f"{self.options.model}@{self.options.revision or 'main'}"
        return fingerprint([(path.name, _sample_hash(path)) for path in sorted(folder.iterdir()) if path.is_file()])

    def load(self) -> None:
        """Start the engine; TeacherError where vLLM is not installed or cannot load the model."""
        for name, value in VARIABLES.items():
            os.environ.setdefault(name, value)
        try:
            import vllm
        except ImportError as error:
            raise TeacherError(
                "the teacher `vllm` is not installed",
                code="missing-package",
                why=str(error),
                fix="pip install 'voxstill[vllm]', on every machine that labels",
            ) from None
        o = self.options
        if o.trust_remote_code:
            log.warning("teacher.trust_remote_code: code that comes with `%s` runs with all your permissions", o.model)
        self._sampling = vllm.SamplingParams(
            temperature=o.temperature,
            top_p=o.top_p,
            top_k=o.top_k,
            repetition_penalty=o.repetition_penalty,
            max_tokens=o.max_tokens,
            seed=o.seed,
            logprobs=0,  # of the generated token only
            output_kind=vllm.sampling_params.RequestOutputKind.FINAL_ONLY,
        )
        self._numbers = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._thread.start()
        try:
            self._run(self._start())
        except (ConfigError, TeacherError):
            self.close()
            raise
        except Exception as error:
            self.close()
            raise TeacherError(
                f"vLLM cannot load `{o.model}`",
                code="teacher-not-loaded",
                why=" ".join(f"{type(error).__name__}: {error}".split())[:500],
                fix="check the output of vLLM (`--set engine.name=inline` shows it), teacher.model and the memory",
            ) from error

    def transcribe_batch(self, clips: Sequence[Clip]) -> list[Transcription]:
        """Transcribe clips; one result per clip, in order. A clip that vLLM refuses is a result with its error."""
        return self._run(self._transcribe_all(clips))

    def figures(self) -> ModelFigures:
        """What the engine has reported of itself since it was asked last."""
        return self._stats.take()

    def close(self) -> None:
        """Stop the engine and its processes."""
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start(self) -> None:
        import vllm
        from vllm.model_executor.model_loader import get_model_cls
        from vllm.model_executor.models.interfaces import supports_transcription
        from vllm.usage.usage_lib import UsageContext

        engine_options = self.options.model_dump(
            include={
                "model",
                "revision",
                "dtype",
                "tensor_parallel_size",
                "max_model_len",
                "max_num_batched_tokens",
                "max_num_seqs",
                "gpu_memory_utilization",
                "enforce_eager",
                "trust_remote_code",
                "seed",
            },
            exclude_none=True,
        )
        _check_known(self.options.engine, [field.name for field in dataclasses.fields(vllm.AsyncEngineArgs)])
        more: dict[str, Any] = {"limit_mm_per_prompt": {}, **UNCACHED, **self.options.engine}
        more["limit_mm_per_prompt"] = {"audio": 1, **more["limit_mm_per_prompt"]}
        args = vllm.AsyncEngineArgs(**engine_options, **more, disable_log_stats=True)
        self._stats = EngineStats(f"{socket.gethostname()} {os.getpid()}")
        self._engine = vllm.AsyncLLMEngine.from_engine_args(
            args,
            usage_context=UsageContext.LLM_CLASS,  # else an engine holds as few clips as one that is asked by people
            stat_loggers=[lambda *_, **__: self._stats],
        )
        self._in_flight = asyncio.Semaphore(WAITING * self._engine.vllm_config.scheduler_config.max_num_seqs)
        config = self._engine.model_config
        kind = get_model_cls(config)
        self._recogniser: Any = kind if supports_transcription(kind) else None
        if self._recogniser is not None:
            if self.options.language != MANIFEST:
                self._recogniser.validate_language(self.options.language)
            self._speech_config: Any = self._recogniser.get_speech_to_text_config(config, "transcribe")
            self._is_english = config.try_get_generation_config().get("is_multilingual") is False
            if self._is_english and self.options.language not in (None, MANIFEST, ENGLISH):
                raise ConfigError(
                    f"`teacher.language` is `{self.options.language}`",
                    code="language-unknown",
                    why=f"`{self.options.model}` supports only English",
                    fix="use a multilingual model, or remove `teacher.language`",
                )
        elif self.options.prompt is None:
            raise TeacherError(
                "`teacher.prompt` is not set",
                code="option-missing",
                why=f"`{self.options.model}` is not a recogniser: it needs an instruction for the audio",
                fix="give the whole prompt, with its chat template and the audio placeholder",
            )

    async def _stop(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()
            self._engine = None
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _transcribe_all(self, clips: Sequence[Clip]) -> list[Transcription]:
        return await asyncio.gather(*map(self._transcribe, clips))

    async def _transcribe(self, clip: Clip) -> Transcription:
        from vllm.v1.engine.exceptions import EngineDeadError

        max_clip_s = self._speech_config.max_audio_clip_s if self._recogniser is not None else None
        if not len(clip.samples_T):
            return Transcription(finish="failed", error="no audio")
        if max_clip_s is not None and len(clip.samples_T) > max_clip_s * RATE_HZ:  # vLLM would drop the rest silently
            return Transcription(finish="failed", error=f"longer than the {max_clip_s:g} s taken at once")
        language = self._language(clip)
        try:
            async with self._in_flight:  # the input of a clip stays in memory until it is answered
                audio_T = pcm.to_float(clip.samples_T)
                if language is None and getattr(self._recogniser, "supports_explicit_language_detection", False):
                    language = await self._detect_language(audio_T)
                answer = await self._generate(self._prompt(audio_T, language), self._sampling)
        except EngineDeadError:
            raise
        except Exception as error:  # of this request: its audio, its prompt
            cause = error.__cause__ or error
            reason = " ".join(f"{type(cause).__name__}: {cause}".split())[:300]
            return Transcription(finish="failed", error=f"vLLM: {reason}")
        return self._result(answer, language)

    async def _generate(self, prompt: PromptType, sampling: SamplingParams) -> CompletionOutput:
        """Send one request and wait for its completion."""
        from vllm.renderers.inputs.preprocess import parse_model_prompt

        parsed = parse_model_prompt(self._engine.model_config, prompt)
        (rendered,) = await self._engine.renderer.render_cmpl_async([parsed])
        async for output in self._engine.generate(rendered, sampling, str(next(self._numbers))):
            answer = output
        return answer.outputs[0]

    def _language(self, clip: Clip) -> str | None:
        """The language to transcribe a clip in; None where it is to be detected."""
        if self._recogniser is None:
            return language_of(clip, self.options.language, (), self.options.model)
        if self._is_english:
            return ENGLISH
        return language_of(clip, self.options.language, self._recogniser.supported_languages, self.options.model)

    async def _detect_language(self, audio_T: NDArray[np.float32]) -> str:
        """Detect the language by a request of one token."""
        import vllm

        tokenizer = self._engine.get_tokenizer()
        allowed = self._recogniser.get_language_token_ids(tokenizer)
        sampling = vllm.SamplingParams(max_tokens=1, temperature=0.0, allowed_token_ids=allowed)
        answer = await self._generate(
            self._recogniser.get_language_detection_prompt(audio_T, self._speech_config), sampling
        )
        return str(self._recogniser.parse_language_detection_output(list(answer.token_ids), tokenizer))

    def _prompt(self, audio_T: NDArray[np.float32], language: str | None) -> PromptType:
        if self._recogniser is None:
            return {"prompt": self.options.prompt, "multi_modal_data": {"audio": (audio_T, RATE_HZ)}}
        from vllm.config.speech_to_text import SpeechToTextParams

        prompt: PromptType = self._recogniser.get_generation_prompt(
            SpeechToTextParams(
                audio=audio_T,
                stt_config=self._speech_config,
                model_config=self._engine.model_config,
                language=language,
                request_prompt=self.options.prompt or "",
            )
        )
        if self._is_english:  # it has not learnt the tokens that vLLM writes there all the same
            decoder: Any = cast("Any", prompt)["decoder_prompt"]
            decoder["prompt"] = decoder["prompt"].replace(f"<|{ENGLISH}|><|transcribe|>", "")
        return prompt

    def _result(self, answer: CompletionOutput, language: str | None) -> Transcription:
        finish = FINISHES.get(answer.finish_reason)
        if finish is None:
            return Transcription(finish="failed", error=f"vLLM ended the request: {answer.finish_reason}")
        token_logprobs = [
            candidates[token].logprob for token, candidates in zip(answer.token_ids, answer.logprobs, strict=True)
        ]
        if answer.finish_reason == "stop":
            token_logprobs.pop()  # the end-of-text token is no part of the text
        text = answer.text
        if self._recogniser is not None:
            language = language or _language_tag(text, self._recogniser.supported_languages)
            text = self._recogniser.post_process_output(text)
        return Transcription(
            text=text.strip(),
            language=language,
            mean_logprob=sum(token_logprobs) / len(token_logprobs) if token_logprobs else None,
            num_tokens=len(token_logprobs),
            finish=finish,
        )


def _check_known(names: Iterable[str], known: Sequence[str]) -> None:
    """Raise ConfigError where the installed vLLM has no option of such a name."""
    for name in names:
        if name not in known or name.startswith("_"):
            near = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(
                f"`teacher.engine` has `{name}`",
                code="unknown-option",
                why="the engine of the installed vLLM has no such option",
                fix=f"did you mean `{near[0]}`?" if near else "remove it; `vllm serve --help=all` lists them",
            )


def _language_tag(text: str, names: Mapping[str, str]) -> str | None:
    """Code of the language that Qwen3-ASR writes before the text; None where there is none."""
    match = re.match(r"\s*language (\w+)<asr_text>", text)
    codes = {name.lower(): code for code, name in names.items()}
    return codes.get(match[1].lower()) if match else None


def _sample_hash(path: Path) -> str:
    """Size and hash of the first and last MiB of a file: fast, and training changes all weights."""
    size = path.stat().st_size
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(SAMPLE_BYTES))
        file.seek(max(size - SAMPLE_BYTES, 0))
        digest.update(file.read())
    return f"{size}-{digest.hexdigest()}"
