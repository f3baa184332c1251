"""voxstill distils a large speech recogniser into a small one of your own.

Everything that the shell can do is a function or class here; docs/python.md shows the whole line. Nothing is loaded
until a name is used.
"""

from typing import TYPE_CHECKING, Any

from voxstill.core.version import __version__ as __version__

if TYPE_CHECKING:
    from voxstill.core.config import Config
    from voxstill.core.errors import (
        ClusterError,
        ConfigError,
        DataError,
        Interrupted,
        StorageError,
        TeacherError,
        TrainingError,
        VoxstillError,
    )
    from voxstill.core.records import ErrorCounts
    from voxstill.pipeline.api import (
        control,
        control_training,
        create_config,
        dry_run,
        estimate,
        explain,
        filter,  # noqa: A004
        index,
        label,
        load_config,
        plan,
        pretrain,
        preview_augmentation,
        repack,
        replay,
        run,
        run_demo,
        shard,
        train,
        train_lm,
        tune_filter,
    )
    from voxstill.pipeline.api_corpus import align, clean, doctor, explore, export_labels, reap, remove, verify, voices
    from voxstill.pipeline.api_inference import (
        classify,
        diarize,
        embed,
        export,
        listen,
        push,
        restore_model,
        serve,
        write_transcripts,
    )
    from voxstill.pipeline.api_scores import (
        compare,
        compare_teachers,
        evaluate,
        report,
        score_meetings,
        score_speakers,
        score_words,
        wer,
    )
    from voxstill.pipeline.transcribe import Recognizer, Transcript
    from voxstill.teachers.teacher import Teacher, Transcription

__all__ = [
    "ClusterError",
    "Config",
    "ConfigError",
    "DataError",
    "ErrorCounts",
    "Interrupted",
    "Recognizer",
    "StorageError",
    "Teacher",
    "TeacherError",
    "TrainingError",
    "Transcript",
    "Transcription",
    "VoxstillError",
    "align",
    "classify",
    "clean",
    "compare",
    "compare_teachers",
    "control",
    "control_training",
    "create_config",
    "diarize",
    "doctor",
    "dry_run",
    "embed",
    "estimate",
    "evaluate",
    "explain",
    "explore",
    "export",
    "export_labels",
    "filter",
    "index",
    "label",
    "listen",
    "load_config",
    "plan",
    "pretrain",
    "preview_augmentation",
    "push",
    "reap",
    "remove",
    "repack",
    "replay",
    "report",
    "restore_model",
    "run",
    "run_demo",
    "score_meetings",
    "score_speakers",
    "score_words",
    "serve",
    "shard",
    "train",
    "train_lm",
    "tune_filter",
    "verify",
    "voices",
    "wer",
    "write_transcripts",
]
_HOMES = {
    "Config": "core.config",
    "ErrorCounts": "core.records",
    "Recognizer": "pipeline.transcribe",
    "Teacher": "teachers.teacher",
    "Transcript": "pipeline.transcribe",
    "Transcription": "teachers.teacher",
    **dict.fromkeys((name for name in __all__ if name.endswith("Error")), "core.errors"),
    "Interrupted": "core.errors",
    **dict.fromkeys(
        ("align", "clean", "doctor", "explore", "export_labels", "reap", "remove", "verify", "voices"),
        "pipeline.api_corpus",
    ),
    **dict.fromkeys(
        ("classify", "diarize", "embed", "export", "listen", "push", "restore_model", "serve", "write_transcripts"),
        "pipeline.api_inference",
    ),
    **dict.fromkeys(
        ("compare", "compare_teachers", "evaluate", "report", "score_meetings", "score_speakers", "score_words", "wer"),
        "pipeline.api_scores",
    ),
}
"""Modules of the names that are not in `pipeline.api`."""


def __getattr__(name: str) -> Any:
    """Load a public name from its module when it is first used (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module `voxstill` has no attribute `{name}`")
    from importlib import import_module

    value = getattr(import_module(f"voxstill.{_HOMES.get(name, 'pipeline.api')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
