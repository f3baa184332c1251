"""What `transformers` can load as a recogniser, a student too: it labels, it is judged and it transcribes."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from voxstill import world
from voxstill.config import Augment, Decode, Section, option
from voxstill.errors import ConfigError, DataError
from voxstill.monitor import log
from voxstill.records import RATE_HZ, Hypothesis, fingerprint
from voxstill.teachers import checkpoint
from voxstill.teachers.teacher import Clip, Heard

if TYPE_CHECKING:
    import torch

    from voxstill.nn.hearing import Hearing

_READ = ("*.json", "*.txt", "*.model", "*.py", "*.safetensors")
"""What of a checkpoint is read, and so what its revision is made of: pickled weights can run anything."""
WRITING = (
    "max_new_tokens",
    "num_beams",
    "temperature",
    "top_k",
    "top_p",
    "repetition_penalty",
    "no_repeat_ngram_size",
)
"""Options that only an encoder-decoder has a use for, as `generate` calls them."""


class TransformersOptions(Section):
    """Options of the teacher `transformers`."""

    model: str = option()
    """An experiment folder or the `model` folder in it, another checkpoint, or a name on the Hugging Face Hub."""
    revision: str | None = option(None)
    """Branch, tag or commit of a name on the Hub."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option("auto")
    """Numbers it computes with; `auto` takes bfloat16 on a GPU and float32 on a CPU."""
    batch_ms: int = option(30_000, unit="ms", ge=1000)
    """Most audio heard at once, padding included."""
    language: str | None = option(None)
    """Language of the audio (`en`), for a Whisper that knows many; unset, it finds out for each clip."""
    max_new_tokens: int | None = option(None, unit="tokens", ge=1)
    """Most tokens of a text; unset, what the model says."""
    num_beams: int | None = option(None, unit="beams", ge=1)
    """Texts followed side by side while searching; unset, what the model says, 1 as a rule."""
    temperature: float | None = option(None, ge=0)
    """Above 0 tokens are drawn, for each clip by itself; unset or 0 takes the likeliest."""
    top_k: int | None = option(None, unit="tokens", ge=0)
    """Draw from so many of the likeliest tokens; 0 from all."""
    top_p: float | None = option(None, unit="probability", gt=0, le=1)
    """Draw from the likeliest tokens that have this probability together."""
    repetition_penalty: float | None = option(None, gt=0)
    """Above 1 makes tokens that were said less likely."""
    no_repeat_ngram_size: int | None = option(None, unit="tokens", ge=0)
    """No run of so many tokens is said twice."""
    seed: int = option(0)
    """What is drawn, where the temperature is above 0."""
    trust_remote_code: bool = option(False)
    """Run program code that comes with the checkpoint. It can do whatever you can: read it first."""
    threads: int = option(1, unit="threads", ge=1, pace=True)
    """CPU threads of the model."""


class TransformersTeacher:
    """Hears clips in batches of like length: CTC and transducers greedily, encoder-decoders by `generate`."""

    Options: ClassVar[type[Section]] = TransformersOptions
    reads_texts: ClassVar[bool] = False

    def __init__(self, options: TransformersOptions, decoding: Decode | None = None) -> None:
        self.options, self.decoding = options, decoding or Decode()
        self.folder = None if checkpoint.on_hub(options.model) else model_folder(options.model)
        self._model: Any = None

    def revision(self) -> str:
        """The hash of what a folder holds; of a name on the Hub the commit, which is asked for or known from before."""
        if self.folder is None:
            return checkpoint.fetched(self.options.model, self.options.revision, ("config.json",)).name[:16]
        return checkpoint.digest(self.folder, _READ)

    def open(self) -> None:
        """Load the weights to the GPU where there is one; DataError where there is nothing to load."""
        import torch
        from transformers import AutoConfig

        from voxstill.nn import classifiers, students

        torch.set_num_threads(self.options.threads)
        world.keep_memory()
        folder = self.folder or checkpoint.fetched(self.options.model, self.options.revision, _READ)
        if self.options.trust_remote_code:
            log.warning("teacher: `trust_remote_code` is set: code that came with `%s` may run", self.options.model)
        try:
            config = AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=self.options.trust_remote_code
            )
        except (OSError, ValueError) as error:
            raise _nothing_in(folder, error) from None
        if (task := classifiers.task_of(config)) is not None:
            raise ConfigError(
                f"`{self.options.model}` writes no text",
                why=f"it tells {task} apart",
                fix="`voxstill evaluate` judges it; give a recogniser here",
            )
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._ear: _Student | _Writer
        kind = students.KINDS.get(config.model_type, "seq2seq")
        if kind == "seq2seq":
            if self.decoding != Decode():
                raise ConfigError(
                    "the section `decode` has no use",
                    why=f"`{self.options.model}` writes its texts by itself",
                    fix="leave the section out; a teacher has `num_beams`",
                )
            self._ear = _Writer(folder, config, self.options, self._device)
        else:
            self._ear = (_Ctc if kind == "ctc" else _Student)(folder, self.options, self.decoding, self._device)
        self._model = self._ear.model

    def num_parameters(self) -> int:
        """Weights of the open model."""
        return sum(weight.numel() for weight in self._model.parameters())

    def hear(self, clips: Sequence[Clip]) -> list[Heard]:
        """One answer for each clip, in order; the confidence is the mean log-probability of its tokens."""
        heard = [Heard(error="no audio", finish="failed")] * len(clips)
        lengths, most = [len(clip.samples_T) for clip in clips], self._ear.longest_ms
        if most is not None:  # it takes so much of each clip, silence behind the speech
            for i, num in enumerate(lengths):
                if num > most * RATE_HZ // 1000:
                    heard[i] = Heard(error=f"longer than the {most // 1000} s heard at once", finish="failed")
                lengths[i] = 0 if heard[i].error != "no audio" or num < RATE_HZ // 100 else most * RATE_HZ // 1000
        for members in batches_by_length(lengths, self.options.batch_ms if self._ear.hears_many else 0):
            for i, answer in zip(members, self._hear_batch([clips[i] for i in members]), strict=True):
                heard[i] = answer
        return heard

    def fit(self, clips: Sequence[Clip]) -> list[float | None]:
        """How well the text of each clip's utterance fits its audio: the log-probability of a token, by CTC.

        None where the model cannot write the text, or has no time for it. ConfigError where it is no CTC model.
        """
        import torch

        fit = getattr(self._ear, "fit", None)
        if fit is None:
            raise ConfigError(
                f"`{self.options.model}` cannot say how well a text fits",
                why="it is no CTC model",
                fix="take a student of the kind `ctc`, a wav2vec 2.0 or a Parakeet-CTC",
            )
        found: list[float | None] = [None] * len(clips)
        for members in batches_by_length([len(clip.samples_T) for clip in clips], self.options.batch_ms):
            some = [clips[i] for i in members]
            with torch.inference_mode():
                answers = fit(*self._padded(some), [clip.utterance.text or "" for clip in some])
            for i, answer in zip(members, answers, strict=True):
                found[i] = answer
        return found

    def close(self) -> None:
        """Drop the weights."""
        self._model = self._ear = None  # type: ignore[assignment]

    def _hear_batch(self, clips: Sequence[Clip]) -> list[Heard]:
        import torch

        with torch.inference_mode():
            return self._ear.hear(*self._padded(clips), [clip.utterance.id for clip in clips])

    def _padded(self, clips: Sequence[Clip]) -> tuple[torch.Tensor, torch.Tensor]:
        """Their samples (B, T) and how many each has (B,), on the device."""
        import torch

        lengths = [len(clip.samples_T) for clip in clips]
        audio_BT = np.zeros((len(clips), max(lengths)), np.int16)
        for row_T, clip in zip(audio_BT, clips, strict=True):
            row_T[: len(clip.samples_T)] = clip.samples_T
        return torch.as_tensor(audio_BT).to(self._device), torch.as_tensor(lengths).to(self._device)


class _Student:
    """CTC and transducers, ours and those of others."""

    longest_ms, hears_many = None, True

    def __init__(self, folder: Path, options: TransformersOptions, decoding: Decode, device: torch.device) -> None:
        import torch

        from voxstill.nn import students
        from voxstill.text.pretrained import Pieces

        for name in (each for each in (*WRITING, "language") if getattr(options, each) is not None):
            raise ConfigError(
                f"`teacher.{name}` has no use",
                why=f"`{options.model}` says what each moment of the audio is and writes no text by itself",
                fix=f"take `teacher.{name}` away",
            )
        self.model = students.load(folder).eval().to(device, _dtype(options, device))
        self._spelling = Pieces(folder, students.blank_of(self.model), self.model.config.vocab_size)
        self._hearing = students.hearing(self.model.config, Augment(), checkpoint=str(folder))
        self._hearing.move(device)
        self._beam = beam_of(decoding, self._spelling.pieces)
        if self._beam is not None:  # compiled now, and not while it is timed
            silence_BT = torch.zeros(1, RATE_HZ, dtype=torch.int16, device=device)
            with torch.inference_mode():
                self.hear(silence_BT, torch.tensor([RATE_HZ], device=device), [""])

    def hear(self, audio_BT: torch.Tensor, audio_len_B: torch.Tensor, ids: Sequence[str]) -> list[Heard]:
        """An answer for each, in order."""
        return [
            Heard(text=each.text, mean_logprob=each.score, num_tokens=len(each.token_ids), words=each.words)
            for each in said(self.model, self._hearing, self._spelling, audio_BT, audio_len_B, ids, self._beam)
        ]


class _Ctc(_Student):
    """CTC alone can also say how well a text fits."""

    def fit(self, audio_BT: torch.Tensor, audio_len_B: torch.Tensor, texts: Sequence[str]) -> list[float | None]:
        """For each the log-probability of a token of its text, or None."""
        from voxstill.decode import ctc
        from voxstill.nn import students

        inputs, len_B = self._hearing.plain(audio_BT, audio_len_B)
        logits_BFV, frames_B = students.logits(self.model, inputs.to(self.model.dtype), len_B)
        spelt = [(b, ids) for b, text in enumerate(texts) for ids in self._spelling.spellings(text)]
        of = [b for b, _ in spelt]
        found = ctc.likelihoods(
            logits_BFV.float().log_softmax(-1)[of], frames_B[of], [ids for _, ids in spelt], self._spelling.blank_id
        )
        best: list[float | None] = [None] * len(texts)
        for b, logprob in zip(of, found, strict=True):
            best[b] = max((each for each in (best[b], logprob) if each is not None), default=None)
        return best


class _Writer:
    """Encoder-decoders that write with `generate`: Whisper, Moonshine and their like."""

    def __init__(self, folder: Path, config: Any, options: TransformersOptions, device: torch.device) -> None:
        from safetensors import SafetensorError
        from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor
        from transformers.utils import logging

        from voxstill.nn import students

        logging.disable_progress_bar()
        here: dict[str, Any] = {"local_files_only": True, "trust_remote_code": options.trust_remote_code}
        dtype = _dtype(options, device)
        try:
            if not config.is_encoder_decoder:
                raise ValueError(f"a `{config.model_type}` is no encoder-decoder; the teacher `vllm` may serve it")
            self.model = AutoModelForSpeechSeq2Seq.from_pretrained(folder, dtype=dtype, **here).eval().to(device)
            processor = AutoProcessor.from_pretrained(folder, **here)
            self._extractor, self._tokenizer = processor.feature_extractor, processor.tokenizer
        except (OSError, ValueError, TypeError, AttributeError, SafetensorError) as error:
            raise _nothing_in(folder, error) from None
        self._options, self._device, self._dtype = options, device, dtype
        self.longest_ms: int | None = None
        self._hearing: Hearing | None = None
        self._languages: dict[int, str] = {}
        self._language: str | None = None
        # what is drawn would depend on the neighbours, and in a Moonshine the padding on their lengths is heard
        self.hears_many = config.model_type == "whisper" and not options.temperature
        if config.model_type == "whisper":
            self._hearing = students.hearing(config, Augment())
            self._hearing.move(device)
            self.longest_ms = self._hearing.longest_ms
            self._languages = _languages(self._tokenizer, config.vocab_size)
            self._language = options.language or self._tokenizer.language  # a student of one language says which
        if options.language is not None and options.language not in self._languages.values():
            raise ConfigError(
                f"`teacher.language` is `{options.language}`",
                why=f"`{options.model}` knows {', '.join(self._languages.values()) or 'nothing of languages'}",
                fix="name one of them" if self._languages else "take `teacher.language` away",
            )
        self._prefix = [self.model.generation_config.decoder_start_token_id]
        if config.model_type == "whisper":
            self._prefix = self._whisper_prefix()

    def hear(self, audio_BT: torch.Tensor, audio_len_B: torch.Tensor, ids: Sequence[str]) -> list[Heard]:
        """An answer for each, in order."""
        import torch
        from transformers import GenerationMixin

        inputs = self._inputs(audio_BT, audio_len_B)
        encoded = self.model.get_encoder()(**inputs)
        mask = {"attention_mask": inputs.get("attention_mask", torch.ones_like(encoded[0][..., 0], dtype=torch.long))}
        prefix_BP = torch.tensor([self._prefix] * len(ids), device=self._device)
        if self._languages and self._language is None:
            prefix_BP[:, 1] = self._language_of(encoded, prefix_BP[:, :1])
        torch.manual_seed(int(fingerprint(self._options.seed, *ids), 16))
        # Whisper's own `generate` would copy every score to the CPU before it gives one away
        said_BU = GenerationMixin.generate(
            self.model, encoder_outputs=encoded, decoder_input_ids=prefix_BP, **mask, **self._asked()
        )
        logits_BUV = self.model(encoder_outputs=encoded, decoder_input_ids=said_BU[:, :-1], **mask).logits
        start, end_id = len(self._prefix), self.model.generation_config.eos_token_id
        written_BU = said_BU[:, start:]
        logits_BUV = logits_BUV[:, start - 1 :].float()
        logprob_BU = logits_BUV.gather(-1, written_BU[..., None])[..., 0] - logits_BUV.logsumexp(-1)
        return [
            self._answer(tokens, logprobs, end_id, self._languages.get(prefix[1]) if len(prefix) > 1 else None)
            for tokens, logprobs, prefix in zip(
                written_BU.tolist(), logprob_BU.tolist(), prefix_BP.tolist(), strict=True
            )
        ]

    def _answer(
        self, tokens: Sequence[int], logprobs: Sequence[float], end_id: int | list[int], language: str | None
    ) -> Heard:
        ends = {end_id} if isinstance(end_id, int) else set(end_id)
        num = next((i for i, token in enumerate(tokens) if token in ends), None)
        text = self._tokenizer.decode(list(tokens[:num]), skip_special_tokens=True).strip()
        until = len(tokens) if num is None else num + 1  # the end is a token like the others: it may come too early
        return Heard(
            text=text,
            language=language,
            mean_logprob=math.fsum(logprobs[:until]) / until,
            num_tokens=until if num is None else num,
            finish="length" if num is None else "stop",
        )

    def _inputs(self, audio_BT: torch.Tensor, audio_len_B: torch.Tensor) -> dict[str, Any]:
        if self._hearing is not None:
            return {"input_features": self._hearing.plain(audio_BT, audio_len_B)[0].to(self._dtype)}
        clips = [
            audio_T[:num].float().div(2**15).cpu().numpy()
            for audio_T, num in zip(audio_BT, audio_len_B.tolist(), strict=True)
        ]
        made = self._extractor(
            clips, sampling_rate=RATE_HZ, padding=True, return_attention_mask=True, return_tensors="pt"
        )
        return {
            name: each.to(self._device, self._dtype if each.is_floating_point() else None)
            for name, each in made.items()
        }

    def _asked(self) -> Mapping[str, Any]:
        """What `generate` is told beside what the model says."""
        options, config = self._options, self.model.config
        asked = {name: value for name in WRITING if (value := getattr(options, name)) is not None}
        if not asked.pop("temperature", None):
            asked |= {"do_sample": False}
            for name in ("top_k", "top_p"):
                asked.pop(name, None)
        else:
            asked |= {"do_sample": True, "temperature": options.temperature}
        room = getattr(config, "max_target_positions", None) or config.max_position_embeddings
        room -= len(self._prefix)
        most = options.max_new_tokens or self.model.generation_config.max_length or room
        return {**asked, "max_new_tokens": min(most, room), "max_length": None}

    def _whisper_prefix(self) -> list[int]:
        """What Whisper is given before every text; where it is to find out the language, any stands there."""
        tokenizer = self._tokenizer
        language = self._language or next(iter(self._languages.values()), None)
        tokenizer.set_prefix_tokens(language, "transcribe" if language else None, False)
        return list(tokenizer.prefix_tokens)

    def _language_of(self, encoded: Any, start_B1: torch.Tensor) -> torch.Tensor:
        """The likeliest language token of each, as the first word of Whisper says it (Radford et al. 2022)."""
        import torch

        known_L = torch.tensor(list(self._languages), device=self._device)
        logits_BV = self.model(encoder_outputs=encoded, decoder_input_ids=start_B1).logits[:, -1]
        return known_L[logits_BV[:, known_L].argmax(-1)]


def said(
    model: Any,
    hearing: Hearing,
    spelling: Any,
    audio_BT: torch.Tensor,
    audio_len_B: torch.Tensor,
    ids: Sequence[str],
    beam: Mapping[str, Any] | None = None,
) -> list[Hypothesis]:
    """What a student says of each utterance, in order: greedily decoded, or with the beam that `beam_of` gives."""
    import torch

    from voxstill.decode import ctc, seq2seq, transducer
    from voxstill.nn import students

    inputs, len_B = hearing.plain(audio_BT, audio_len_B)
    inputs = inputs.to(model.dtype)
    if students.kind_of(model) == "seq2seq":
        config = model.config
        found = seq2seq.greedy(
            students.step_of(model, inputs),
            len(ids),
            prefix=spelling.prefix,
            end_id=spelling.end_id,
            longest=config.max_target_positions - len(spelling.prefix),
            device=audio_BT.device,
        )
        return [
            Hypothesis(id=id_, text=spelling.decode(tokens), score=score, token_ids=tuple(tokens))
            for id_, (tokens, score) in zip(ids, found, strict=True)
        ]
    named: dict[str, Any] = {
        "ids": ids,
        "pieces": spelling.pieces,
        "blank_id": spelling.blank_id,
        "frame_ms": hearing.frame_ms,
    }
    if students.kind_of(model) == "ctc":
        logits_BFV, out_B = students.logits(model, inputs, len_B)
        log_probs_BFV = logits_BFV.float().log_softmax(-1)
        if beam:
            return ctc.beam(log_probs_BFV, out_B.tolist(), **beam, **named)
        return ctc.greedy(log_probs_BFV, out_B.tolist(), **named)
    nothing_B0 = torch.zeros(len(ids), 0, dtype=torch.long, device=audio_BT.device)
    encoded_BFP, out_B, _ = students.transduced(model, inputs, len_B, nothing_B0)
    named |= {
        "predict": functools.partial(students.predict, model),
        "joint": functools.partial(students.joint, model),
        "durations": students.durations(model),
    }
    if beam:
        return transducer.beam(encoded_BFP, out_B, **beam, **named)
    return transducer.greedy(encoded_BFP, out_B, **named)


def beam_of(decoding: Decode, pieces: Sequence[str]) -> Mapping[str, Any] | None:
    """What a beam search is given beside the audio, None where decoding is greedy; DataError where the language model
    is none."""
    if decoding.beam == 1:
        return None
    from voxstill.decode.fusion import fusion
    from voxstill.text import lm

    model = lm.read(decoding.lm) if decoding.lm else None
    word_bonus = decoding.word_bonus if model else 0.0
    fused = fusion(pieces, model, decoding.lm_weight, word_bonus, decoding.boost, decoding.boost_weight)
    return {"width": decoding.beam, "fusion": fused}


def batches_by_length(num_samples: Sequence[int], batch_ms: int) -> list[list[int]]:
    """Positions in batches of like length, padded to at most `batch_ms` (a longer clip goes alone); no clip is lost.

    Clips shorter than one output frame are left out: nothing can be heard in them.
    """
    order = sorted((n, i) for i, n in enumerate(num_samples) if n >= RATE_HZ // 100)
    batches: list[list[int]] = []
    for n, i in order:
        if batches and n * (len(batches[-1]) + 1) <= batch_ms * RATE_HZ // 1000:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def model_folder(path: str) -> Path:
    """The folder with the weights, for an experiment folder or the model folder in it; ConfigError where absent."""
    for folder in (Path(path), Path(path) / "model"):
        weights = (folder / name for name in ("model.safetensors", "model.safetensors.index.json"))
        if (folder / "config.json").is_file() and any(each.is_file() for each in weights):
            return folder
    raise ConfigError(
        f"there is no student in `{path}`",
        why="neither it nor a folder `model` in it holds config.json and model.safetensors",
        fix="give an experiment folder that has finished training, or another checkpoint",
    )


def _dtype(options: TransformersOptions, device: torch.device) -> torch.dtype:
    import torch

    name = options.dtype if options.dtype != "auto" else "bfloat16" if device.type == "cuda" else "float32"
    found: torch.dtype = getattr(torch, name)
    return found


def _nothing_in(folder: Path, error: Exception) -> DataError:
    return DataError(
        f"`{folder}` holds no student, and no other recogniser that can be loaded",
        why=next(iter(str(error).strip().splitlines()), type(error).__name__),
        fix="give an experiment folder, or a folder with config.json, model.safetensors and a tokenizer",
    )


def _languages(tokenizer: Any, vocab_size: int) -> dict[int, str]:
    """Token and code of each language that a Whisper knows; none where it knows one alone."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    from voxstill.text.pretrained import LANGUAGES_FROM

    if vocab_size < LANGUAGES_FROM:
        return {}
    ids = {code: tokenizer.convert_tokens_to_ids(f"<|{code}|>") for code in LANGUAGES}
    return {id_: code for code, id_ in ids.items() if id_ not in (None, tokenizer.unk_token_id)}
