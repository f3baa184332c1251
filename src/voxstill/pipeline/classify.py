"""classify and embed: the classes of recordings, and embeddings by which their speakers are compared."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxstill.core.arguments import whole_number
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError
from voxstill.core.monitor import Progress
from voxstill.core.result import Result
from voxstill.core.terminal import MOST_NAME, one_line
from voxstill.decoding.checkpoint_files import fetch, model_folder, on_hub
from voxstill.decoding.classes import LoadedClassifier
from voxstill.evaluation import results
from voxstill.nn.heads import Task
from voxstill.pipeline import recordings
from voxstill.pipeline.audio_input import AudioReader, exit_code
from voxstill.pipeline.checkpoint_model import model_of
from voxstill.pipeline.utterance_groups import Reading, UtteranceGroups
from voxstill.storage.files import write_file
from voxstill.storage.rundir import RunDir
from voxstill.tasks import registry

ENDINGS = (".npz", ".jsonl")
"""How a file of embeddings may end."""
_FILES = ("*.json", "*.safetensors")
"""What is fetched of a student on the Hugging Face Hub."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassProbability(Result):
    """A class, and the probability that a recording is of it."""

    name: str
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification(Result):
    """The most likely classes of a recording, best first; none where `error` says why it cannot be read."""

    audio: str
    classes: tuple[ClassProbability, ...] = ()
    error: str | None
    warning: str | None = None

    def to_text(self) -> str:
        """The classes with their probabilities, in a line."""
        classes = "  ".join(f"{one_line(row.name, MOST_NAME)} {row.probability:.1%}" for row in self.classes)
        return f"{one_line(self.audio)}: {classes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyResult(Result):
    """The classes of all recordings."""

    results: Sequence[Classification]
    skipped: int = 0
    """Files of folders that are not audio by their names."""

    @property
    def exit_code(self) -> int:
        """That of bad data, where a file could not be read."""
        return exit_code(self.results)

    def to_text(self) -> str:
        """A line for each recording that was read."""
        return "\n".join(row.to_text() for row in self.results if row.error is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding(Result):
    """The embedding of the voice in a recording, of unit length; None if `error` says why it cannot be read."""

    audio: str
    embedding: tuple[float, ...] | None
    error: str | None
    warning: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Result):
    """The similarity of two voices; `threshold` and `same` are None if the model was never judged on two speakers.

    `threshold` is the one of the equal error rate in the result `judged` of the model's experiment.
    """

    cosine: float
    threshold: float | None
    same: bool | None
    judged: str | None

    def to_text(self) -> str:
        """The similarity and what it means."""
        if self.threshold is None:
            return f"cosine {self.cosine:.3f}; no threshold is known: evaluate the model with `voxstill evaluate`"
        answer = "the same speaker" if self.same else "two speakers"
        return f"cosine {self.cosine:.3f}: {answer} (threshold {self.threshold:.3f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedResult(Result):
    """The embeddings of all recordings, the file they were written to, and the comparison of two."""

    embeddings: Sequence[Embedding]
    skipped: int = 0
    """Files of folders that are not audio by their names."""
    output: str | None = None
    comparison: Comparison | None = None

    @property
    def exit_code(self) -> int:
        """That of bad data, where a file could not be read."""
        return exit_code(self.embeddings)

    def to_text(self) -> str:
        """The comparison and the file, or else a line of JSON for each recording."""
        lines = [] if self.comparison is None else [self.comparison.to_text()]
        lines += [] if self.output is None else [self.output]
        return "\n".join(lines) or _json_lines(self.embeddings)


class _Output(NamedTuple):
    """What a student gives for a recording: probabilities (C,) or an embedding (E,)."""

    audio: str
    output_D: NDArray[np.float32] | None
    error: str | None = None
    warning: str | None = None


class _Student:
    """A student of one task, loaded, which reads recordings."""

    def __init__(self, cfg: Config, model: str, task: Task) -> None:
        self._reader = AudioReader(cfg)
        source = str(fetch(model, None, _FILES)) if on_hub(model) else model
        with model_of(source) as (folder, self.checkpoint):
            if (actual := registry.name_of(folder)) != task:
                fix = {"classes": "classify", "speakers": "embed", "recognition": "transcribe"}.get(actual, "evaluate")
                raise ConfigError(
                    f"`{model}` {'does not classify' if task == 'classes' else 'has no embedding of speakers'}",
                    code="wrong-model",
                    why=f"its task is `{actual}`, and not `{task}`",
                    fix=f"use `voxstill {fix}` for it, or give another student",
                )
            self._reader.start()
            loaded = LoadedClassifier(model_folder(folder), cfg.augment)
        self._groups = UtteranceGroups[NDArray[np.float32] | None](
            cfg.segment, lambda samples, _: loaded.predict_batch(samples), loaded.batch_ms, cuts_silence=True
        )
        self.names = loaded.names

    def outputs(self, title: str, paths: Sequence[str]) -> Iterator[_Output]:
        """The output for each recording, or why there is none, in order.

        Short ones share a batch, and the next ones are decoded meanwhile.
        """
        with Progress(title, len(paths), "files") as bar:
            for sources, names in recordings.in_runs(paths):
                opened = self._reader.read_each(sources, ahead_ms=self._groups.batch_ms)
                for name, reading in zip(names, self._groups.readings(opened), strict=True):
                    yield _output(name, reading)
                    bar.advance()


def _output(audio: str, reading: Reading[NDArray[np.float32] | None]) -> _Output:
    """The mean over the utterances of a recording by their length, or why there is none."""
    outputs = [(end - start, output_D) for start, end, output_D in reading.outputs if output_D is not None]
    error = reading.error or (None if outputs else "too short, or without speech")
    if error is not None:
        return _Output(audio, None, error=error)
    silent = "silent: all samples are 0" if reading.is_silent else None
    mean_D = np.average([output_D for _, output_D in outputs], axis=0, weights=[length for length, _ in outputs])
    return _Output(audio, mean_D.astype(np.float32), warning=reading.warning or silent)


def classify(cfg: Config, model: str, names: Sequence[str], top: int) -> ClassifyResult:
    """Classify recordings: files, folders, addresses or standard input; the `top` most likely classes of each.

    A recording longer than `segment.max_ms` is cut at pauses, and its probabilities are the mean over its parts. One
    that cannot be read has its reason instead. ConfigError if the model tells no classes apart.
    """
    top = whole_number("top", top, 1)
    paths, num_skipped = recordings.expand(names)
    student = _Student(cfg, model, "classes")
    rows = [
        Classification(
            audio=row.audio,
            classes=() if row.output_D is None else _likeliest(row.output_D, student.names, top),
            error=row.error,
            warning=row.warning,
        )
        for row in student.outputs("classify", paths)
    ]
    return ClassifyResult(results=rows, skipped=num_skipped)


def embed(cfg: Config, model: str, names: Sequence[str], output: str | None, *, compare: bool) -> EmbedResult:
    """Embed the voices of recordings, as `classify` reads them; write the embeddings to `output`, compare two.

    ConfigError if the model is not a speaker student, `output` ends otherwise than `ENDINGS`, or those to compare are
    not two.
    """
    if output is not None and not output.endswith(ENDINGS):
        raise ConfigError(
            f"`{output}` has no known extension",
            code="output-path",
            why="the extension sets the format",
            fix=f"use {' or '.join(ENDINGS)}",
        )
    paths, num_skipped = recordings.expand(names)
    if compare and len(paths) != 2:
        raise ConfigError(
            "exactly two recordings can be compared", code="no-input", why=f"{len(paths)} are given", fix="give two"
        )
    student = _Student(cfg, model, "speakers")
    rows = [
        Embedding(
            audio=row.audio,
            embedding=None if row.output_D is None else _unit(row.output_D),
            error=row.error,
            warning=row.warning,
        )
        for row in student.outputs("embed", paths)
    ]
    if output is not None:
        _write(rows, Path(output))
    comparison = _compared(rows, model, student.checkpoint) if compare else None
    return EmbedResult(embeddings=rows, skipped=num_skipped, output=output, comparison=comparison)


def _likeliest(prob_C: NDArray[np.float32], names: Sequence[str], top: int) -> tuple[ClassProbability, ...]:
    order_C = np.argsort(-prob_C, kind="stable")[:top].tolist()
    return tuple(ClassProbability(name=names[i], probability=float(prob_C[i])) for i in order_C)


def _unit(embedding_E: NDArray[np.float32]) -> tuple[float, ...]:
    return tuple((embedding_E / max(float(np.linalg.norm(embedding_E)), 1e-12)).tolist())


def _write(rows: Sequence[Embedding], path: Path) -> None:
    """Write embeddings: as lines of JSON, errors included, or as the arrays `audio` (N,) and `embeddings` (N, E)."""
    if path.name.endswith(".jsonl"):
        content = f"{_json_lines(rows)}\n".encode()
    else:
        usable = [row for row in rows if row.embedding is not None]
        buffer = io.BytesIO()
        embedding_NE = np.array([row.embedding for row in usable], np.float32)
        np.savez(buffer, audio=np.array([row.audio for row in usable], np.str_), embeddings=embedding_NE)
        content = buffer.getvalue()
    write_file(path, content)


def _json_lines(rows: Sequence[Embedding]) -> str:
    return "\n".join(json.dumps(row.to_dict(), ensure_ascii=False) for row in rows)


def _compared(rows: Sequence[Embedding], model: str, checkpoint: str | None) -> Comparison | None:
    """The comparison of two recordings; None if one of them has no embedding."""
    first, second = (row.embedding for row in rows)
    if first is None or second is None:
        return None
    cosine = float(np.dot(first, second))
    threshold, judged = _threshold(model, checkpoint)
    same = None if threshold is None else cosine >= threshold
    return Comparison(cosine=cosine, threshold=threshold, same=same, judged=judged)


def _threshold(model: str, checkpoint: str | None) -> tuple[float | None, str | None]:
    """The threshold of the newest result of this model that has one, and the name of the result."""
    run = RunDir.of_checkpoint(Path(model)) or RunDir(Path(model))
    if not run.config.is_file():
        run = RunDir(Path(model).resolve().parent)  # of its folder `model`
    stored = [
        result
        for result in results.read_all(run.evaluation)
        if result.recogniser == (checkpoint or results.STUDENT) and result.figures.get("threshold") is not None
    ]
    if not stored:
        return None, None
    newest = max(stored, key=lambda result: ((result.path / results.FIGURES).stat().st_mtime_ns, result.path.name))
    return float(newest.figures["threshold"]), newest.path.name
