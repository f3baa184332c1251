"""The options of a realtime session, as OpenAI's `session.update` sets them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from voxstill.core.config import Segment
from voxstill.serving.errors import RequestError
from voxstill.serving.forms import VAD_FIELDS, keywords_of, vad_segment

LOGPROBS = "item.input_audio_transcription.logprobs"
PCM_RATE_HZ, LOWEST_RATE_HZ, HIGHEST_RATE_HZ = 24_000, 8_000, 48_000
_INPUT = "session.audio.input"
_OF_ANSWERS = ("create_response", "interrupt_response", "idle_timeout_ms")
"""Fields of `turn_detection` about answers in speech, which a transcription has none of: clients send them, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """What a session is told: audio format, model, hints, and how speech is found (None: by commits alone)."""

    segment: Segment
    rate_hz: int = PCM_RATE_HZ
    model: str | None = None
    language: str | None = None
    keywords: tuple[str, ...] = ()
    endpointing: bool = True
    logprobs: bool = False

    def updated(self, session: object) -> SessionOptions:
        """The options after `session.update`: what it leaves out stays. RequestError for what is not supported."""
        fields = _mapping(session, "session", ("type", "audio", "include"))
        if fields.get("type", "transcription") != "transcription":
            raise RequestError(400, "`session.type` must be `transcription`", param="session.type")
        audio = _mapping(fields.get("audio") or {}, "session.audio", ("input",))
        names = ("format", "transcription", "turn_detection", "noise_reduction")
        inputs = _mapping(audio.get("input") or {}, _INPUT, names)
        if inputs.get("noise_reduction") is not None:
            raise RequestError(400, "noise reduction is not supported", param=f"{_INPUT}.noise_reduction")
        options = self
        if inputs.get("format") is not None:
            options = replace(options, rate_hz=_rate_hz(inputs["format"]))
        if inputs.get("transcription") is not None:
            options = options._with_transcription(inputs["transcription"])
        if "turn_detection" in inputs:
            options = options._with_turn_detection(inputs["turn_detection"])
        if "include" in fields:
            include = fields["include"] or []
            if not isinstance(include, list) or any(name != LOGPROBS for name in include):
                raise RequestError(400, f"`session.include` may hold `{LOGPROBS}`", param="session.include")
            options = replace(options, logprobs=bool(include))
        return options

    def to_dict(self) -> Mapping[str, object]:
        """The object `session` of OpenAI's events."""
        detection = {
            "type": "server_vad",
            "threshold": self.segment.threshold,
            "prefix_padding_ms": self.segment.pad_ms,
            "silence_duration_ms": self.segment.min_silence_ms,
        }
        return {
            "type": "transcription",
            "audio": {
                "input": {
                    "format": {"type": "audio/pcm", "rate": self.rate_hz},
                    "transcription": {
                        "model": self.model,
                        "language": self.language,
                        "keywords": list(self.keywords),
                    },
                    "turn_detection": detection if self.endpointing else None,
                    "noise_reduction": None,
                }
            },
            "include": [LOGPROBS] if self.logprobs else [],
        }

    def _with_transcription(self, value: object) -> SessionOptions:
        param = f"{_INPUT}.transcription"
        fields = _mapping(value, param, ("model", "language", "languages", "keywords", "prompt", "delay"))
        if fields.get("delay") is not None:
            raise RequestError(400, "`delay` is not supported: words are sent as soon as they are known", param=param)
        if fields.get("prompt"):
            raise RequestError(400, "`prompt` is not supported: send names and terms as `keywords`", param=param)
        languages, keywords = fields.get("languages") or [], fields.get("keywords") or []
        if not isinstance(languages, list) or not isinstance(keywords, list):
            raise RequestError(400, f"`languages` and `keywords` of `{param}` are lists", param=param)
        if len(languages) > 1:
            raise RequestError(400, f"`languages` of `{param}` may hold one language", param=param)
        model = fields.get("model", self.model)
        language = fields.get("language", languages[0] if languages else self.language)
        if not isinstance(model, str | None) or not isinstance(language, str | None):
            raise RequestError(400, f"`model` and `language` of `{param}` are texts", param=param)
        kept = keywords_of(keywords) if "keywords" in fields else self.keywords
        return replace(self, model=model, language=language, keywords=kept)

    def _with_turn_detection(self, value: object) -> SessionOptions:
        param = f"{_INPUT}.turn_detection"
        if value is None:
            return replace(self, endpointing=False)
        fields = value if isinstance(value, Mapping) else {}
        if unknown := [str(name) for name in fields if name not in (*VAD_FIELDS, *_OF_ANSWERS)]:
            raise RequestError(400, f"`{param}` has no field `{unknown[0][:60]}`", param=param)
        if fields.get("type") != "server_vad":
            raise RequestError(400, f"`{param}.type` must be `server_vad`, or `{param}` null", param=param)
        return replace(self, endpointing=True, segment=vad_segment(fields, self.segment, param))


def _mapping(value: object, param: str, names: tuple[str, ...]) -> Mapping[str, object]:
    """An object with no other fields than these; RequestError where it is none."""
    if not isinstance(value, Mapping):
        raise RequestError(400, f"`{param}` must be an object", param=param)
    if unknown := [str(name) for name in value if name not in names]:
        raise RequestError(400, f"`{param}` has no field `{unknown[0][:60]}`", param=param, code="unknown_parameter")
    return value


def _rate_hz(value: object) -> int:
    param = f"{_INPUT}.format"
    fields = _mapping(value, param, ("type", "rate"))
    rate_hz = fields.get("rate", PCM_RATE_HZ)
    if fields.get("type", "audio/pcm") != "audio/pcm":
        raise RequestError(400, f"`{param}.type` must be `audio/pcm`: 16-bit samples, little-endian, mono", param=param)
    if type(rate_hz) is not int or not LOWEST_RATE_HZ <= rate_hz <= HIGHEST_RATE_HZ:
        message = f"`{param}.rate` must be from {LOWEST_RATE_HZ} to {HIGHEST_RATE_HZ}"
        raise RequestError(400, message, param=param)
    return rate_hz
