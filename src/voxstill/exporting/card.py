"""The model card of an exported student: what it is, how good it is and how it is used, for people and for the Hub."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from voxstill.decoding import exported
from voxstill.decoding.exported import ExportedModel
from voxstill.exporting.gate import Gate

_KINDS = {"ctc": "CTC", "rnnt": "an RNN transducer (RNN-T)", "tdt": "a token-and-duration transducer (TDT)"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The word error rate of the student on one corpus, with its 95 % interval."""

    corpus: str
    split: str
    wer: float
    interval: Sequence[float] | None
    interval_over: str | None
    utterances: int
    decoding: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a student comes from, as far as that is known."""

    name: str
    languages: Sequence[str] = ()
    licence: str | None = None
    teacher: str | None = None
    checkpoint: str | None = None
    """What the student started with."""
    hours: float | None = None
    utterances: int | None = None
    steps: int | None = None
    judged: Sequence[Judged] = ()


def render(origin: Origin, model: ExportedModel, gate: Gate) -> str:
    """The text of the card, with YAML front matter."""
    sections = [
        _front_matter(origin, "onnx", _tags(model)),
        f"# {origin.name}",
        f"A {'streaming ' if model.chunks_ms else ''}speech recogniser of {model.num_parameters / 1e6:.1f} million"
        f" weights, {_KINDS[model.kind]}, made with voxstill and exported to ONNX.",
        "## Accuracy",
        _accuracy(origin),
        "## How it was made",
        _making(origin),
        "## Use",
        _use(model),
        "## What was checked",
        _checked(gate),
        "## Limits",
        _limits(origin, model),
    ]
    return "\n\n".join(sections) + "\n"


def render_student(origin: Origin) -> str:
    """The text of the card of a student as it was trained, with YAML front matter."""
    sections = [
        _front_matter(origin, "transformers", ["voxstill", "speech"]),
        f"# {origin.name}",
        "A speech recogniser made with voxstill.",
        "## Accuracy",
        _accuracy(origin),
        "## How it was made",
        _making(origin),
        "## Use",
        "```console\n$ voxstill transcribe OWNER/NAME speech.wav\n```",
        "## Limits",
        "\n".join(_limits_of_training(origin)),
    ]
    return "\n\n".join(sections) + "\n"


def _front_matter(origin: Origin, library: str, tags: Sequence[str]) -> str:
    """Metadata as the Hugging Face Hub reads it; JSON is YAML."""
    metadata: dict[str, object] = {
        **({"language": list(origin.languages)} if origin.languages else {}),
        **({"license": origin.licence} if origin.licence else {}),
        "library_name": library,
        "pipeline_tag": "automatic-speech-recognition",
        "tags": list(tags),
    }
    if origin.judged:
        metadata["model-index"] = [{"name": origin.name, "results": [_result(row) for row in origin.judged]}]
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in metadata.items()]
    return "\n".join(["---", *lines, "---"])


def _result(row: Judged) -> Mapping[str, object]:
    low_high = () if row.interval is None else (f"{100 * value:.2f}" for value in row.interval)
    interval = "" if row.interval is None else f", 95 % interval {' to '.join(low_high)}"
    return {
        "task": {"type": "automatic-speech-recognition"},
        "dataset": {"name": row.corpus, "type": row.corpus, "split": row.split},
        "metrics": [{"type": "wer", "name": f"WER ({row.decoding}){interval}", "value": round(100 * row.wer, 2)}],
    }


def _accuracy(origin: Origin) -> str:
    if not origin.judged:
        return "It has not been evaluated: `voxstill evaluate` does it."
    lines = ["| corpus | split | decoding | WER | 95 % interval | utterances |", "|---|---|---|---|---|---|"]
    for row in origin.judged:
        interval = "" if row.interval is None else f"{row.interval[0]:.1%} to {row.interval[1]:.1%}"
        over = f" over {row.interval_over}" if interval and row.interval_over else ""
        lines.append(
            f"| {row.corpus} | {row.split} | {row.decoding} | {row.wer:.1%} | {interval}{over} | {row.utterances:,} |"
        )
    return "\n".join([*lines, "", "Measured with the student in torch."])


def _making(origin: Origin) -> str:
    known = [
        f"- labels: pseudo-labels of the teacher `{origin.teacher}`" if origin.teacher else "",
        f"- training data: {origin.hours:,.1f} hours" if origin.hours is not None else "",
        f"- utterances: {origin.utterances:,}" if origin.utterances is not None else "",
        f"- started from `{origin.checkpoint}`" if origin.checkpoint else "",
        f"- steps: {origin.steps:,}" if origin.steps is not None else "",
        f"- languages: {', '.join(origin.languages)}" if origin.languages else "- languages: not recorded",
        f"- licence: {origin.licence}"
        if origin.licence
        else "- licence: not recorded; check those of the data, of the teacher and of the checkpoint",
    ]
    return "\n".join(filter(None, known))


def _use(model: ExportedModel) -> str:
    parts = [
        "voxstill, on onnxruntime and without torch:\n\n```console\n$ voxstill transcribe FOLDER speech.wav\n```",
        f"sherpa-onnx:\n\n```python\n{_sherpa(model)}\n```" + _before_sherpa(model),
    ]
    if model.normalization == "utterance":
        name = f"nemo-conformer-{model.kind}"
        parts.append(f'onnx-asr:\n\n```python\nmodel = onnx_asr.load_model("{name}", "FOLDER")\n```')
    elif model.input == "log_mels":
        parts.append(
            "onnx-asr always normalises each mel band over the utterance; this student takes log-mels without it, so"
            " onnx-asr refuses the folder."
        )
    if model.input == "log_mels" and not model.chunks_ms:
        name = exported.CTC_SAMPLES if model.kind == "ctc" else exported.ENCODER_SAMPLES
        parts.append(
            f"Any other program with onnxruntime: `{name}` takes `samples` (B, T), float32 between -1 and 1 at 16 kHz,"
            " and `length` (B,), the number of samples of each; the frontend is inside."
        )
    return "\n\n".join(parts)


def _before_sherpa(model: ExportedModel) -> str:
    """What the audio needs around it in sherpa-onnx."""
    if model.input != "log_mels":
        return ""
    if model.chunks_ms:
        return (
            "\n\nPut 165 ms of room noise before the audio and some after it: its first window begins before"
            " the audio, and it leaves the last one that is not full."
        )
    return (
        "\n\nPut 5 ms of silence before the audio: its frames begin with the audio, those of the student are"
        " centred, and without it more words differ."
    )


def _sherpa(model: ExportedModel) -> str:
    if model.kind != "ctc":
        recognizer = "OnlineRecognizer" if model.chunks_ms else "OfflineRecognizer"
        return (
            f"sherpa_onnx.{recognizer}.from_transducer(\n"
            f'    encoder="FOLDER/{model.main}", decoder="FOLDER/decoder.onnx", joiner="FOLDER/joiner.onnx",\n'
            '    tokens="FOLDER/tokens.txt", model_type="nemo_transducer",\n)'
        )
    door = "from_nemo_ctc" if model.input == "log_mels" else "from_omnilingual_asr_ctc"
    return f'sherpa_onnx.OfflineRecognizer.{door}(model="FOLDER/{exported.CTC}", tokens="FOLDER/{exported.TOKENS}")'


def _checked(gate: Gate) -> str:
    lines = [f"On {gate.on}:", "", f"- onnxruntime writes the tokens of torch: {gate.equal:,} of {gate.utterances:,}"]
    if gate.wer is not None:
        lines.append(f"- WER: {gate.wer:.2%}")
    if gate.int8_cost is not None and gate.equal_int8 is not None:
        same = f"{gate.equal_int8:,} of {gate.utterances:,} texts are the same"
        lines.append(f"- int8: {gate.int8_cost}, by a paired bootstrap; {same}")
    if gate.equal_sherpa is not None:
        lines.append(
            f"- sherpa-onnx writes the same text: {gate.equal_sherpa:,} of {gate.utterances_sherpa:,}; its features"
            " differ slightly, so an uncertain word may differ"
        )
    return "\n".join(lines)


def _tags(model: ExportedModel) -> Sequence[str]:
    takes = ["onnx-asr"] if model.normalization == "utterance" else []
    return ["voxstill", "onnx", "speech", model.kind, "sherpa-onnx", *takes]


def _limits_of_training(origin: Origin) -> list[str]:
    return [
        "- It was trained on pseudo-labels, and repeats errors of its teacher."
        if origin.teacher
        else "- Its output has the style of its training texts.",
        "- It works best on speech like that of its training data: evaluate it on your own before you rely on it.",
    ]


def _limits(origin: Origin, model: ExportedModel) -> str:
    lines = [
        *_limits_of_training(origin),
        "- It takes mono audio at 16 kHz. Long recordings are cut at pauses first, as `voxstill transcribe` does.",
        "- Digital silence before or after the speech makes it worse.",
    ]
    if model.normalization == "level":
        lines.append(
            "- Speech far louder or fainter than usual is brought into the range of its training, within the graph."
        )
    return "\n".join(lines)
