"""What uses finished students, as functions: transcripts, classes, embeddings, whole models, ONNX files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from voxstill.core import run_mark
from voxstill.core.arguments import strings
from voxstill.core.config import takes_config
from voxstill.pipeline.api import load_config

if TYPE_CHECKING:
    from voxstill.core.config import Config
    from voxstill.pipeline.classify import ClassifyResult, EmbedResult
    from voxstill.pipeline.diarize import DiarizeResult, TurnFormat
    from voxstill.pipeline.export import ExportResult
    from voxstill.pipeline.live_results import LiveSegment, LiveWords
    from voxstill.pipeline.push import PushResult
    from voxstill.pipeline.serve import Engine, ServeResult
    from voxstill.pipeline.transcribe import Form, Transcript


def write_transcripts(transcripts: Sequence[Transcript], folder: str | Path, form: Form = "text") -> list[Path]:
    """Write each transcript to a file named after its audio: `text`, `srt`, `vtt` or `json`; returns the paths.

    What could not be read has no file. Files of an earlier call are replaced; equal names of this one are numbered.
    ConfigError for another form.

    >>> recognizer = voxstill.Recognizer.from_pretrained("exp/student")
    >>> [path] = voxstill.write_transcripts(recognizer.transcribe("speech.wav"), "subtitles", "srt")
    >>> path.as_posix(), path.read_text().splitlines()[2]
    ('subtitles/speech.srt', 'ba du ko')
    """
    from voxstill.pipeline import transcribe

    return transcribe.write_all(transcripts, form, Path(folder))


@takes_config
def classify(
    model: str | Path, audio: str | Path | Sequence[str | Path], cfg: Config | None = None, *, top: int = 5
) -> ClassifyResult:
    """Classify recordings with a class student: the `top` most likely classes of each, with their probabilities.

    `audio` names files, folders and addresses, as `voxstill classify` takes them. What cannot be read has an `error`.
    ConfigError if the model is not a class student.

    >>> voxstill.classify("exp/student", ["speech.wav"])
    Traceback (most recent call last):
    voxstill.core.errors.ConfigError: ...
    """
    names = strings("audio", audio)
    from voxstill.pipeline import classify as classifying

    return classifying.classify(cfg or load_config(), str(model), names, top)


@takes_config
def diarize(
    audio: str | Path | Sequence[str | Path], cfg: Config | None = None, form: TurnFormat = "rttm"
) -> DiarizeResult:
    """Diarize recordings: their speaker turns, by the engine `diarize.name`, `embedded` where it is not set.

    `audio` names files, folders and addresses, as `voxstill diarize` takes them. What cannot be read has an `error`.
    `form` is that of the result as text.
    ConfigError if the engine cannot be loaded.

    >>> by_program = voxstill.load_config(None, "diarize={name: command, command: [echo, '; no turns of']}")
    >>> result = voxstill.diarize(["speech.wav"], by_program)
    >>> result.speakers, result.recordings[0].error
    (0, None)
    """
    names = strings("audio", audio)
    from voxstill.pipeline import diarize as diarizing

    return diarizing.diarize(cfg or load_config(), names, form)


@takes_config
def embed(
    model: str | Path,
    audio: str | Path | Sequence[str | Path],
    cfg: Config | None = None,
    *,
    output: str | Path | None = None,
    compare: bool = False,
) -> EmbedResult:
    """Embed the voices of recordings with a speaker student: a vector of unit length for each.

    `output` is a file to write them to, `.npz` or `.jsonl`. With `compare` two recordings have their cosine, and
    whether one speaker is in both, by the threshold of the model's evaluation. ConfigError if the model is no
    speaker student.

    >>> voxstill.embed("exp/student", ["speech.wav", "speech.wav"], compare=True)
    Traceback (most recent call last):
    voxstill.core.errors.ConfigError: ...
    """
    names = strings("audio", audio)
    from voxstill.pipeline import classify as classifying

    target = None if output is None else str(output)
    return classifying.embed(cfg or load_config(), str(model), names, target, compare=compare)


@takes_config
def export(
    model: str | Path,
    output: str | Path,
    cfg: Config | None = None,
    *,
    int8: bool = False,
    streaming: Sequence[int] = (),
) -> ExportResult:
    """Write a student as a folder of ONNX files for onnxruntime, sherpa-onnx and onnx-asr.

    Its tokens are compared with those of torch before: on `evaluate.split` of the experiment, or of `cfg`, where the
    work folder is there, else on synthetic speech. With `int8` there is a model with weights of 8 bits as well, unless
    that costs accuracy: then `rejected` says how much. `streaming` is the chunk size of a streaming student, in
    milliseconds: 1120, 560, 160 or 80, by default 560. A folder that is complete and of the same model is not made
    again. ConfigError if it holds something else, DataError if tokens differ.

    >>> result = voxstill.export("exp/student", "onnx", cfg)
    >>> result.gate.equal == result.gate.utterances, "model.onnx" in result.files
    (True, True)
    """
    from voxstill.pipeline import evaluate
    from voxstill.pipeline import export as exporting

    cfg = cfg or load_config(evaluate.own_config(str(model)))
    return exporting.export(cfg, str(model), str(output), int8=int8, streaming=streaming)


@takes_config
def push(model: str | Path, name: str, cfg: Config | None = None) -> PushResult:
    """Upload a student, of an experiment or exported, to the Hugging Face Hub as `owner/name`, with a model card.

    A repository that does not exist yet is created, and private. ConfigError if there is no finished student,
    StorageError if it cannot be written, for example without a login.

    >>> voxstill.push("exp/student", "no name")
    Traceback (most recent call last):
    voxstill.core.errors.StorageError: ...
    """
    from voxstill.pipeline import evaluate
    from voxstill.pipeline import push as pushing

    return pushing.push(cfg or load_config(evaluate.own_config(str(model))), str(model), name)


def restore_model(copy: str | Path, output: str | Path, base: str | Path | None = None) -> Path:
    """Make a whole model folder of a copy that holds only changed weights, which `train.export_changes` writes.

    `base` says where the checkpoint is now that the student started with; without it, where it was then. Returns the
    path of the folder. DataError if that is another checkpoint, or the copy is none.

    >>> voxstill.restore_model("exp/student/model", "whole")
    Traceback (most recent call last):
    voxstill.core.errors.DataError: ...
    """
    from voxstill.training import changes

    changes.restore(Path(copy), Path(output), None if base is None else str(base))
    return Path(output)


@takes_config
def serve(
    models: str | Sequence[str],
    cfg: Config | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    engine: Engine = "auto",
    ray: bool = False,
    ready: Callable[[ServeResult], None] = lambda _: None,
) -> None:
    """Serve students as a transcription server with OpenAI's API, until SIGTERM or SIGINT.

    `models` are written as those of `voxstill serve`: `[NAME=]MODEL[@WEIGHT]`. With `ray` they are served in replicas
    on Ray, at least `cfg.serve.min_replicas`. `ready` is called with the address once all are loaded. ConfigError if
    one cannot be served, the address is taken or packages are missing.

    >>> voxstill.serve(["mine=exp/student@0"])
    Traceback (most recent call last):
    voxstill.core.errors.ConfigError: ...
    """
    served = strings("models", models)
    from voxstill.pipeline import serve as server
    from voxstill.pipeline import serve_on_ray

    start = serve_on_ray.serve if ray else server.serve
    with run_mark.marked("serve"):
        start(cfg or load_config(), served, host, port, engine, ready)


@takes_config
def listen(
    target: str,
    source: str | Path | None = None,
    cfg: Config | None = None,
    *,
    paced: bool = False,
    show: Callable[[LiveWords | LiveSegment], None] = lambda _: None,
) -> None:
    """Transcribe the microphone, or the recording `source`, while it is read; return at its end.

    `target` is a model, or the address of a `voxstill serve`. `show` is called with words as they are added, and with
    each segment of speech at its end. `paced` reads a recording in real time. DataError if it is no
    audio, ConfigError if there is no microphone or no server.

    >>> voxstill.listen("http://127.0.0.1:9", "speech.wav")
    Traceback (most recent call last):
    voxstill.core.errors.ConfigError: ...
    """
    from voxstill.pipeline import listen as live

    name = None if source is None else str(source)
    live.listen(cfg or load_config(), target, name, paced=paced, words=show, segment=show)
