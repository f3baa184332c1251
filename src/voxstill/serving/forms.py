"""The fields of a transcription request, as OpenAI's API has them, checked before anything is decoded."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Literal, Never, get_args

from starlette.datastructures import FormData, UploadFile

from voxstill.core.config import Segment
from voxstill.serving.errors import RequestError

ResponseFormat = Literal["json", "text", "srt", "vtt", "verbose_json", "diarized_json"]
Granularity = Literal["word", "segment"]
MOST_KEYWORDS, MOST_KEYWORD_CHARS, MOST_KEYWORDS_CHARS = 1000, 200, 20_000
"""How many, how long each, and how long all of them together: what they cost grows with that."""
_FIELDS = {
    *("file", "model", "language", "languages", "prompt", "response_format", "temperature", "timestamp_granularities"),
    *("include", "chunking_strategy", "stream", "keywords", "known_speaker_names", "known_speaker_references", "seed"),
}
"""All fields of the API, and `seed`, which vLLM has and which changes nothing where nothing is drawn."""
VAD_FIELDS = ("type", "threshold", "prefix_padding_ms", "silence_duration_ms")
_NAME = re.compile(r"(?P<name>\w+)(?:\[(?P<key>\w*)\])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionForm:
    """One request: the file and how it is to be answered."""

    file: IO[bytes]
    model: str
    response_format: ResponseFormat
    stream: bool
    language: str | None
    keywords: tuple[str, ...]
    granularities: frozenset[Granularity]
    logprobs: bool
    segment: Segment


def read_form(form: FormData, segment: Segment, *, diarizes: bool) -> TranscriptionForm:
    """Read the fields of a form; `segment` is how recordings are cut where it does not say.

    `diarizes` is whether the server has a diarization engine. RequestError for what is missing, unknown or not
    supported.
    """
    values, file = _values(form)
    response_format = _response_format(_one(values, "response_format") or "json")
    if response_format == "diarized_json" and not diarizes:
        message = "`diarized_json` needs a server with diarization: start it with `--set diarize=embedded`"
        raise RequestError(400, message, param="response_format")
    stream = _boolean(_one(values, "stream"), "stream")
    granularities = _granularities(values.get("timestamp_granularities", ()))
    includes = values.get("include", ())
    if unknown := set(includes) - {"logprobs"}:
        raise RequestError(400, f"`include[]` may be `logprobs`, not `{min(unknown)}`", param="include")
    if includes and response_format != "json":
        raise RequestError(400, "`include[]` needs `response_format` to be `json`", param="include")
    if granularities and response_format != "verbose_json":
        message = "`timestamp_granularities[]` needs `response_format` to be `verbose_json`"
        raise RequestError(400, message, param="timestamp_granularities")
    if stream and response_format not in ("json", "text", "diarized_json"):
        message = f"`stream` sends no `{response_format}`: use `json`, `text` or `diarized_json`"
        raise RequestError(400, message, param="stream")
    _refuse_unsupported(values)
    languages = values.get("languages", ())
    if len(languages) > 1:
        message = "`languages[]` may hold one language: this server does not choose among several"
        raise RequestError(400, message, param="languages")
    return TranscriptionForm(
        file=file,
        model=_one(values, "model") or _missing("model"),
        response_format=response_format,
        stream=stream,
        language=_one(values, "language") or (languages[0] if languages else None),
        keywords=keywords_of(values.get("keywords", ())),
        granularities=granularities,
        logprobs=bool(includes),
        segment=_segment(values, segment),
    )


def keywords_of(texts: Sequence[object]) -> tuple[str, ...]:
    """The phrases that a client asks to listen for; RequestError where they are too many or too long."""
    if len(texts) > MOST_KEYWORDS:
        raise RequestError(
            400, f"there are {len(texts)} keywords, and at most {MOST_KEYWORDS} may be", param="keywords"
        )
    for text in texts:
        if not isinstance(text, str) or len(text) > MOST_KEYWORD_CHARS:
            message = f"a keyword is a text of at most {MOST_KEYWORD_CHARS} characters"
            raise RequestError(400, message, param="keywords")
    if sum(len(str(text)) for text in texts) > MOST_KEYWORDS_CHARS:
        message = f"all keywords together are texts of at most {MOST_KEYWORDS_CHARS} characters"
        raise RequestError(400, message, param="keywords")
    return tuple(dict.fromkeys(" ".join(str(text).split()) for text in texts if str(text).strip()))


def vad_segment(options: Mapping[str, object], segment: Segment, param: str) -> Segment:
    """The segmentation that OpenAI's `server_vad` asks for: threshold, padding and silence; RequestError where it
    cannot be."""
    threshold = _number(options.get("threshold"), segment.threshold, f"{param}.threshold")
    pad_ms = _number(options.get("prefix_padding_ms"), segment.pad_ms, f"{param}.prefix_padding_ms")
    silence_ms = _number(options.get("silence_duration_ms"), segment.min_silence_ms, f"{param}.silence_duration_ms")
    if not 0 < threshold < 1:
        raise RequestError(400, f"`{param}.threshold` must be between 0 and 1", param=param)
    if not (0 <= pad_ms <= 10_000 and 0 <= silence_ms <= 60_000):
        raise RequestError(400, f"the times of `{param}` must be 0 or more, and at most a minute", param=param)
    settings = {"threshold": threshold, "pad_ms": round(pad_ms), "min_silence_ms": round(silence_ms)}
    return segment.model_copy(update=settings)


def _values(form: FormData) -> tuple[Mapping[str, list[str]], IO[bytes]]:
    """The texts of each field, without brackets, and the file. `chunking_strategy[type]` becomes JSON."""
    values: dict[str, list[str]] = {}
    strategy: dict[str, str] = {}
    file: IO[bytes] | None = None
    for field, value in form.multi_items():
        match = _NAME.fullmatch(field)
        name = match["name"] if match else field
        if name not in _FIELDS:
            raise RequestError(400, f"unknown field `{field[:60]}`", param=field[:60], code="unknown_parameter")
        if isinstance(value, UploadFile):
            if name != "file":
                raise RequestError(400, f"`{name}` is a file, but must be a text", param=name)
            if file is not None:
                raise RequestError(400, "`file` is given twice: send one request per file", param="file")
            file = value.file
        elif name == "file":
            raise RequestError(400, "`file` is a text, but must be a file with a name", param="file")
        elif name == "chunking_strategy" and match is not None and match["key"]:
            strategy[match["key"]] = value
        else:
            values.setdefault(name, []).append(value)
    if strategy:
        values["chunking_strategy"] = [json.dumps(strategy)]
    return values, file or _missing("file")


def _missing(field: str) -> Never:
    raise RequestError(400, f"`{field}` is missing", param=field, code="missing_required_parameter")


def _one(values: Mapping[str, Sequence[str]], name: str) -> str | None:
    """The text of a field that has one; None where it is missing or empty."""
    texts = values.get(name, ())
    if len(texts) > 1:
        raise RequestError(400, f"`{name}` is given {len(texts)} times", param=name)
    return texts[0] or None if texts else None


def _response_format(text: str) -> ResponseFormat:
    for name in get_args(ResponseFormat):
        if name == text:
            known: ResponseFormat = name
            return known
    names = ", ".join(get_args(ResponseFormat))
    raise RequestError(400, f"`response_format` may be {names}, not `{text[:60]}`", param="response_format")


def _granularities(texts: Sequence[str]) -> frozenset[Granularity]:
    if unknown := set(texts) - {"word", "segment"}:
        message = f"`timestamp_granularities[]` may be `word` or `segment`, not `{min(unknown)[:60]}`"
        raise RequestError(400, message, param="timestamp_granularities")
    return frozenset(name for name in get_args(Granularity) if name in texts)


def _boolean(text: str | None, param: str) -> bool:
    if text is None or text.lower() in ("false", "0"):
        return False
    if text.lower() in ("true", "1"):
        return True
    raise RequestError(400, f"`{param}` must be true or false", param=param)


def _number(value: object, default: float, param: str) -> float:
    if value is None:
        return default
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise RequestError(400, f"`{param}` must be a number", param=param)
    return number


def _refuse_unsupported(values: Mapping[str, Sequence[str]]) -> None:
    """RequestError for fields of the API that the models of this server have no use for."""
    if _number(_one(values, "temperature"), 0.0, "temperature") != 0:
        message = "`temperature` must be 0: decoding does not sample"
        raise RequestError(400, message, param="temperature")
    if _one(values, "prompt"):
        message = "`prompt` is not supported: send names and terms as `keywords[]`"
        raise RequestError(400, message, param="prompt")
    for name in ("known_speaker_names", "known_speaker_references"):
        if values.get(name):
            message = (
                f"`{name}[]` is not supported: speakers are named A, B and so on, in the order in which "
                "they start to speak"
            )
            raise RequestError(400, message, param=name)


def _segment(values: Mapping[str, Sequence[str]], segment: Segment) -> Segment:
    """How the recording is cut: as the server is configured, or as `server_vad` says."""
    text = _one(values, "chunking_strategy")
    if text in (None, "auto"):
        return segment
    try:
        options = json.loads(text or "")
    except (ValueError, RecursionError):
        options = None
    if not isinstance(options, dict) or options.get("type") != "server_vad" or set(options) - {*VAD_FIELDS}:
        message = "`chunking_strategy` may be `auto` or an object of the type `server_vad`, with " + ", ".join(
            f"`{name}`" for name in VAD_FIELDS[1:]
        )
        raise RequestError(400, message, param="chunking_strategy")
    return vad_segment(options, segment, "chunking_strategy").model_copy(update={"vad": "always"})
