"""Encoder-decoders as recognisers, which write their text with `generate`: Whisper, Moonshine and their like."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor, GenerationMixin
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.whisper.tokenization_whisper import LANGUAGES

from voxstill.core import pcm
from voxstill.core.config import Augment
from voxstill.core.errors import ConfigError
from voxstill.core.records import RATE_HZ, Hypothesis, fingerprint
from voxstill.decoding.loaded import Samples, dtype_of, no_recognizer_error, padded
from voxstill.decoding.options import GENERATION, RecognizerOptions
from voxstill.nn import checkpoints, students
from voxstill.nn.frontends import Frontend
from voxstill.nn.loading import load_model
from voxstill.text.pretrained import LANGUAGES_FROM

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase


class GenerateModel:
    """An encoder-decoder; a `LoadedModel`. Its score is the mean log-probability of the tokens, the end included.

    DataError if the folder holds none, ConfigError if it does not know the language that is asked for.
    """

    def __init__(
        self, folder: Path, config: PretrainedConfig, options: RecognizerOptions, device: torch.device, section: str
    ) -> None:
        dtype, trusted = dtype_of(options, device), options.trust_remote_code
        try:
            if not config.is_encoder_decoder:
                raise ValueError(
                    f"a `{config.model_type}` is not an encoder-decoder; the teacher `vllm` may be able to run it"
                )
            model = load_model(AutoModelForSpeechSeq2Seq, folder, trust_remote_code=trusted, dtype=dtype)
            self.model = model.eval().to(device)
            processor = AutoProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=trusted)
            self._extractor, self._tokenizer = processor.feature_extractor, processor.tokenizer
        except (OSError, ValueError, TypeError, AttributeError, SafetensorError) as error:
            raise no_recognizer_error(folder, error) from None
        self._options, self._device, self._dtype = options, device, dtype
        self.num_parameters = students.num_parameters(self.model)
        self.max_duration_ms: int | None = None
        self.takes_phrases = False
        self._frontend: Frontend | None = None
        self._languages: dict[int, str] = {}
        self._language: str | None = None
        # what is drawn would depend on the neighbours, and a Moonshine is influenced by the padding of the batch
        self.takes_batches = config.model_type == "whisper" and not options.temperature
        if config.model_type == "whisper":
            self._frontend = checkpoints.make_frontend(config, Augment())
            self._frontend.move(device)
            self.max_duration_ms = self._frontend.max_duration_ms
            self._languages = _languages(self._tokenizer, config.vocab_size)
            self._language = options.language or self._tokenizer.language  # a student of one language says which
        self.languages: Collection[str] = () if self._language else tuple(self._languages.values())
        if options.language is not None and options.language not in self._languages.values():
            raise ConfigError(
                f"`{section}language` is `{options.language}`",
                code="language-unknown",
                why=f"`{options.model}` supports {', '.join(self._languages.values()) or 'no choice of language'}",
                fix="use one of them" if self._languages else f"remove `{section}language`",
            )
        self._prefix = [self.model.generation_config.decoder_start_token_id]
        if config.model_type == "whisper":
            self._prefix = self._whisper_prefix()

    @torch.inference_mode()
    def transcribe(
        self,
        samples: Sequence[Samples],
        ids: Sequence[str],
        languages: Sequence[str | None],
        phrases: Sequence[str] = (),
    ) -> list[Hypothesis]:
        """Transcribe one batch; return one Hypothesis per utterance, in order. A language that is None is detected.

        There are no `phrases`, as it takes none.
        """
        encoded, mask_BF = self._encode(samples)
        prefix_BP = torch.tensor([self._prefix] * len(ids), device=self._device)
        if self.languages:
            prefix_BP[:, 1] = self._language_tokens(languages, encoded, prefix_BP[:, :1])
        torch.manual_seed(int(fingerprint(self._options.seed, *ids), 16))
        written_BU, logprob_BU = self._generate(prefix_BP, {"encoder_outputs": encoded, "attention_mask": mask_BF})
        end_id = self.model.generation_config.eos_token_id
        rows = zip(ids, written_BU.tolist(), logprob_BU.tolist(), prefix_BP.tolist(), strict=True)
        return [
            self._hypothesis(id_, tokens, logprobs, end_id, self._languages.get(prefix[1]) if len(prefix) > 1 else None)
            for id_, tokens, logprobs, prefix in rows
        ]

    def _encode(self, samples: Sequence[Samples]) -> tuple[BaseModelOutput, torch.Tensor]:
        """Return what the encoder makes of a batch, and the attention mask (B, F) of its frames.

        A CPU encodes windows one by one: the numbers are the same, in nine tenths of the time and far less memory.
        """
        size = 1 if self._device.type == "cpu" else len(samples)
        starts = range(0, len(samples), size)
        inputs = [self._inputs(*padded(samples[start : start + size], self._device)) for start in starts]
        parts = [self.model.get_encoder()(**part) for part in inputs]
        if len(parts) == 1:
            encoded = parts[0]
        else:  # windows of a Whisper: of any other there is one utterance
            encoded = BaseModelOutput(last_hidden_state=torch.cat([part[0] for part in parts]))
        mask_BF = inputs[0].get("attention_mask", torch.ones_like(encoded[0][..., 0], dtype=torch.long))
        return encoded, mask_BF

    def _generate(self, prefix_BP: torch.Tensor, encoded: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens behind the prefix (B, U) and their log-probabilities."""
        options, start = self._generation_options(), prefix_BP.shape[1]
        scores = _StepScores()
        has_beams = (options.get("num_beams") or self.model.generation_config.num_beams or 1) > 1
        step_hook = None if has_beams else self.model.register_forward_hook(scores.record, with_kwargs=True)
        try:
            # Whisper's own `generate` would copy every score to the CPU before it gives one away
            output_BU = GenerationMixin.generate(self.model, decoder_input_ids=prefix_BP, **encoded, **options)
        finally:
            if step_hook is not None:
                step_hook.remove()
        written_BU = output_BU[:, start:]
        if not has_beams:
            return written_BU, scores.logprobs(written_BU)
        # what a beam was in an earlier step is not known: all of its tokens are scored again
        logits_BUV = self.model(decoder_input_ids=output_BU[:, :-1], **encoded).logits[:, start - 1 :].float()
        return written_BU, logits_BUV.gather(-1, written_BU[..., None])[..., 0] - logits_BUV.logsumexp(-1)

    def _hypothesis(
        self,
        id_: str,
        tokens: Sequence[int],
        logprobs: Sequence[float],
        end_id: int | list[int],
        language: str | None,
    ) -> Hypothesis:
        end_ids = {end_id} if isinstance(end_id, int) else set(end_id)
        num = next((i for i, token in enumerate(tokens) if token in end_ids), None)
        text = self._tokenizer.decode(list(tokens[:num]), skip_special_tokens=True).strip()
        until = len(tokens) if num is None else num + 1  # the end is a token like the others: it may come too early
        return Hypothesis(
            id=id_,
            text=text,
            score=math.fsum(logprobs[:until]) / until,
            token_ids=tuple(tokens[:num]),
            language=language,
            finish="length" if num is None else "stop",
        )

    def _inputs(self, audio_BT: torch.Tensor, audio_len_B: torch.Tensor) -> dict[str, torch.Tensor]:
        if self._frontend is not None:
            return {"input_features": self._frontend.extract(audio_BT, audio_len_B)[0].to(self._dtype)}
        waves = [
            pcm.to_wave(audio_T[:num]).cpu().numpy()
            for audio_T, num in zip(audio_BT, audio_len_B.tolist(), strict=True)
        ]
        features = self._extractor(
            waves, sampling_rate=RATE_HZ, padding=True, return_attention_mask=True, return_tensors="pt"
        )
        return {
            name: tensor.to(self._device, self._dtype if tensor.is_floating_point() else None)
            for name, tensor in features.items()
        }

    def _generation_options(self) -> Mapping[str, Any]:
        """Return what `generate` is asked for beside what the model's own generation config says."""
        options, config = self._options, self.model.config
        wanted = {name: value for name in GENERATION if (value := getattr(options, name)) is not None}
        if not wanted.pop("temperature", None):
            wanted |= {"do_sample": False}
            for name in ("top_k", "top_p"):
                wanted.pop(name, None)
        else:
            wanted |= {"do_sample": True, "temperature": options.temperature}
        room = getattr(config, "max_target_positions", None) or config.max_position_embeddings
        room -= len(self._prefix)
        most = options.max_new_tokens or self.model.generation_config.max_length or room
        return {**wanted, "max_new_tokens": min(most, room), "max_length": None}

    def _whisper_prefix(self) -> list[int]:
        """Return the tokens before every text of a Whisper; where it detects the language, any one stands there."""
        tokenizer = self._tokenizer
        language = self._language or next(iter(self._languages.values()), None)
        tokenizer.set_prefix_tokens(language, "transcribe" if language else None, False)
        return list(tokenizer.prefix_tokens)

    def _language_tokens(
        self, languages: Sequence[str | None], encoded: BaseModelOutput, start_B1: torch.Tensor
    ) -> torch.Tensor:
        """Return the language token (B,) of each utterance: of its language, else the most likely."""
        tokens = {code: token for token, code in self._languages.items()}
        token_B = torch.tensor([-1 if code is None else tokens[code] for code in languages], device=self._device)
        if None not in languages:
            return token_B
        return torch.where(token_B < 0, self._detect_language(encoded, start_B1), token_B)

    def _detect_language(self, encoded: BaseModelOutput, start_B1: torch.Tensor) -> torch.Tensor:
        """Return the most likely language token (B,) as first token after the start (Radford et al. 2022)."""
        known_L = torch.tensor(list(self._languages), device=self._device)
        logits_BV = self.model(encoder_outputs=encoded, decoder_input_ids=start_B1).logits[:, -1]
        return known_L[logits_BV[:, known_L].argmax(-1)]


class _StepScores:
    """The log-probabilities of the tokens that a `generate` without beams writes, from its own steps.

    Nothing is computed twice, and no more than one step's logits are held.
    """

    def __init__(self) -> None:
        self._logprobs: list[torch.Tensor] = []
        self._logits_BV: torch.Tensor | None = None

    def record(
        self, _model: torch.nn.Module, _args: object, inputs: Mapping[str, Any], output: Mapping[str, torch.Tensor]
    ) -> None:
        """A forward hook of the model: its newest input is what was chosen by the logits of the step before."""
        if self._logits_BV is not None:
            self._score(inputs["decoder_input_ids"][:, -1:])
        self._logits_BV = output["logits"][:, -1].float()

    def logprobs(self, written_BU: torch.Tensor) -> torch.Tensor:
        """Return the log-probability (B, U) of each token written; the last was no input any more."""
        num = written_BU.shape[1]
        if len(self._logprobs) < num:
            self._score(written_BU[:, -1:])
        return torch.cat(self._logprobs[:num], 1)  # on a GPU a step or two may have been computed in vain

    def _score(self, token_B1: torch.Tensor) -> None:
        assert self._logits_BV is not None
        self._logprobs.append(self._logits_BV.gather(1, token_B1) - self._logits_BV.logsumexp(1, keepdim=True))


def _languages(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> dict[int, str]:
    """Return token and code of each language that a Whisper knows; none where it knows one alone."""
    if vocab_size < LANGUAGES_FROM:
        return {}
    ids = {code: tokenizer.convert_tokens_to_ids(f"<|{code}|>") for code in LANGUAGES}
    return {id_: code for code, id_ in ids.items() if id_ not in (None, tokenizer.unk_token_id)}
