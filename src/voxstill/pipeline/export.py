"""export: a finished student as a folder of ONNX files that other runtimes take, compared with torch before."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path

from voxstill.core.atomic import atomic_folder
from voxstill.core.config import CHUNKS_MS, Config, Decode
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.monitor import log
from voxstill.core.result import NOT_IN_JSON, Result
from voxstill.decoding import checkpoint_files, exported
from voxstill.decoding.exported import ExportedModel
from voxstill.decoding.options import RecognizerOptions
from voxstill.decoding.recognizer import Recognizer
from voxstill.exporting import card, folder, gate, onnx_files, other_files, sherpa, student
from voxstill.exporting.gate import Gate, GateAudio
from voxstill.exporting.student import Student
from voxstill.pipeline import export_audio, export_origin
from voxstill.pipeline.checkpoint_model import model_of
from voxstill.tasks import registry

_MOST_SHERPA = 100
_FEW_EQUAL = 0.9
"""A smaller share of equal texts in sherpa-onnx is worth a warning."""
_MOST_COMPARED = 16
"""Utterances on which the files for other programs are compared with those that were decoded."""
_FILES = ("*.json", "*.txt", "*.model", "*.safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult(Result):
    """The folder, its files with their bytes, and what was compared.

    `rejected` says why int8 was asked for and is not there.
    """

    path: str
    files: Mapping[str, int]
    gate: Gate
    rejected: str | None = None
    is_new: bool = field(default=True, compare=False, metadata=NOT_IN_JSON)

    @property
    def exit_code(self) -> int:
        """That of bad data, where int8 was rejected."""
        return 0 if self.rejected is None else DataError.exit_code

    def to_text(self) -> str:
        """The files with their sizes, and the figures."""
        lines = [f"{self.path}{'' if self.is_new else ': complete, and of the same model'}", ""]
        lines += [f"{name:28s} {num_bytes / 1e6:8.2f} MB" for name, num_bytes in self.files.items()]
        figures = self.gate
        lines += [
            "",
            f"on {figures.on}:",
            f"onnxruntime = torch: {figures.equal:,} of {figures.utterances:,} utterances",
        ]
        if figures.wer is not None:
            lines.append(f"WER {figures.wer:.2%}")
        if figures.int8_cost is not None:
            lines.append(f"int8: {figures.int8_cost}")
        if figures.equal_sherpa is not None:
            lines.append(f"sherpa-onnx = torch: {figures.equal_sherpa:,} of {figures.utterances_sherpa:,} texts")
        return "\n".join([*lines, *([] if self.rejected is None else ["", f"no int8: {self.rejected}"])])


def chunks_of(text: str) -> tuple[int, ...]:
    """The chunks in `560,160`; ConfigError if it is not a chunk size of a streaming student."""
    chunks_ms = [int(word) if word.strip().isascii() and word.strip().isdigit() else -1 for word in text.split(",")]
    return _checked_chunks(chunks_ms, f"`--streaming {text}`", "560,160")


def _checked_chunks(chunks_ms: object, what: str, example: str) -> tuple[int, ...]:
    """The chunks as ints; ConfigError if they are no list of chunk sizes of a streaming student, each once."""
    values = list(chunks_ms) if isinstance(chunks_ms, Iterable) else [None]
    numbers = tuple(int(value) if isinstance(value, Integral) else -1 for value in values)
    if not set(numbers) <= set(CHUNKS_MS) or len(set(numbers)) < len(numbers):
        raise ConfigError(
            f"{what} has no valid chunk sizes",
            code="option-value",
            why=f"a streaming student has chunks of {', '.join(map(str, CHUNKS_MS))} ms",
            fix=f"give a list of some of these, each once: `{example}`",
        )
    return numbers


def export(cfg: Config, model: str, output: str, *, int8: bool = False, streaming: Sequence[int] = ()) -> ExportResult:
    """Export a student; `cfg` is that of its experiment, where there is one.

    Tokens on onnxruntime must be those of torch: on the utterances of `evaluate.split` where the work folder is there,
    else on synthetic speech. An int8 that costs accuracy is not kept. `streaming` is the chunk size of a
    streaming student, in milliseconds, by default 560. A folder that is complete and of the same model
    is not made again. ConfigError if the folder is another, or the model cannot be exported; DataError if the
    tokens differ.
    """
    onnx_files.check_installed()
    streaming = _checked_chunks(streaming, f"`streaming={streaming!r:.100}`", "streaming=[560, 160]")
    if exported.locate(model) is not None:
        raise ConfigError(
            f"`{model}` is exported already",
            code="wrong-model",
            why="it contains ONNX files",
            fix="give the experiment",
        )
    target = Path(output)
    with model_of(model) as (source, checkpoint):
        name = registry.name_of(source)
        if name != "recognition":
            raise ConfigError(
                f"`{model}` cannot be exported",
                code="wrong-model",
                why=f"its task is `{name}`",
                fix="give a student that outputs text",
            )
        model_folder = _local(source)
        weights = checkpoint_files.digest(model_folder, _FILES)
        if (finished := _finished(target, weights, int8=int8, streaming=streaming)) is not None:
            return _result(target, finished, is_new=False)
        loaded = student.load(model_folder, streaming)
        audio = export_audio.of(cfg, loaded)
        origin = export_origin.of(cfg, model, checkpoint, audio.utterances)
        with atomic_folder(target) as draft:
            folder.write_models(loaded, model_folder, draft)
            manifest = folder.write_manifest(draft, loaded, origin.name, weights, {})
            gates = _passed(cfg, loaded, model_folder, draft, manifest, audio)
            rejected = None
            if int8:
                folder.write_int8(draft)
                manifest = folder.write_manifest(draft, loaded, origin.name, weights, {})
                gates, rejected = _with_int8(cfg, loaded, draft, manifest, audio, gates)
            figures = _with_sherpa(draft, manifest, audio, gates[0])
            written = {**figures.to_dict(), **({} if rejected is None else {"rejected": rejected})}
            (draft / folder.CARD).write_text(
                card.render(origin, folder.write_manifest(draft, loaded, origin.name, weights, {}), figures),
                encoding="utf-8",
            )
            manifest = folder.write_manifest(draft, loaded, origin.name, weights, written)
    return _result(target, manifest)


def _local(source: str) -> Path:
    """The folder of a model; a name on the Hub is fetched."""
    if checkpoint_files.on_hub(source):
        return checkpoint_files.fetch(source, None, _FILES)
    return checkpoint_files.model_folder(source)


def _passed(
    cfg: Config, loaded: Student, source: Path, draft: Path, manifest: ExportedModel, audio: GateAudio
) -> list[Gate]:
    """The result of comparing the draft with torch: a gate for each length of chunks, or one."""
    pieces = loaded.vocabulary.pieces, exported.vocabulary(draft, manifest).pieces
    gates = [
        gate.parity(audio, _recognizer(source, chunk_ms), _recognizer(draft, chunk_ms), pieces, cfg)
        for chunk_ms in loaded.chunks_ms or (None,)
    ]
    other_files.check(draft, manifest, audio.samples[:_MOST_COMPARED])
    return gates


def _with_sherpa(draft: Path, manifest: ExportedModel, audio: GateAudio, figures: Gate) -> Gate:
    """The figures with those of sherpa-onnx, where it is installed."""
    if not sherpa.is_installed():
        return figures
    texts = sherpa.transcribe(draft, manifest, audio.samples[:_MOST_SHERPA])
    equal = sum(map(str.__eq__, texts, figures.texts))
    if equal < _FEW_EQUAL * len(texts):
        log.warning(
            "export: sherpa-onnx outputs other words in %d of %d utterances of %s",
            *(len(texts) - equal, len(texts), audio.name),
        )
    return dataclasses.replace(figures, equal_sherpa=equal, utterances_sherpa=len(texts))


def _with_int8(
    cfg: Config, loaded: Student, draft: Path, manifest: ExportedModel, audio: GateAudio, gates: Sequence[Gate]
) -> tuple[list[Gate], str | None]:
    """The gates with the figures of int8, and why it is not kept: it must pass with each length of chunks."""
    names = map(exported.chunk_encoder, loaded.chunks_ms) if loaded.chunks_ms else [manifest.main]
    compared = [
        gate.int8(figures, audio, _recognizer(draft / exported.int8_of(name)), cfg)
        for figures, name in zip(gates, names, strict=True)
    ]
    failed = [figures for figures in compared if not figures.int8_passes]
    if not failed:
        other_files.check(draft, manifest, audio.samples[:_MOST_COMPARED])
        return compared, None
    folder.remove_int8(draft)
    interval = failed[0].interval
    if interval is None:
        return compared, f"{audio.name} has no words to compare by"
    return [failed[0], *compared], (
        f"it may cost {100 * interval[1]:.2f} points of WER (upper end of the 95 % interval), more than"
        f" {100 * gate.INT8_MARGIN:g}"
    )


def _recognizer(path: Path, chunk_ms: int | None = None) -> Recognizer:
    """A loaded recogniser that decodes greedily in fp32."""
    options = RecognizerOptions(model=str(path), dtype="float32")
    recognizer = Recognizer(options, Decode.model_validate({"chunk_ms": chunk_ms}))
    recognizer.load()
    return recognizer


def _finished(target: Path, weights: str, *, int8: bool, streaming: tuple[int, ...]) -> ExportedModel | None:
    """What is in the folder where it is complete and of the same model; ConfigError if it holds something else."""
    if exported.locate(str(target)) is None:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise ConfigError(
                f"`{target}` exists",
                code="output-exists",
                why="it contains no exported student",
                fix="give a new folder",
            )
        return None
    manifest = exported.read(target)
    if manifest.weights != weights:
        raise ConfigError(
            f"`{target}` contains another model",
            code="output-exists",
            why=f"it was exported from `{manifest.model}` with other weights",
            fix="give another folder, or remove this one",
        )
    if faults := exported.faults(target, manifest):
        log.warning("export: made again: %s", ", ".join(f"`{name}`: {why}" for name, why in faults.items()))
        return None
    if streaming and streaming != tuple(manifest.chunks_ms):
        return None
    has_int8 = any(name.endswith(".int8.onnx") for name in manifest.files)
    return manifest if has_int8 or not int8 or "rejected" in manifest.gate else None


def _result(target: Path, manifest: ExportedModel, *, is_new: bool = True) -> ExportResult:
    names: Sequence[str] = sorted([*manifest.files, exported.MANIFEST])
    return ExportResult(
        path=str(target),
        files={name: (target / name).stat().st_size for name in names},
        gate=Gate.from_dict(manifest.gate),
        rejected=manifest.gate.get("rejected"),
        is_new=is_new,
    )
