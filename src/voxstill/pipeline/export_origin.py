"""Where an exported student comes from: what its experiment says of data, teacher, training and accuracy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import VoxstillError
from voxstill.core.records import Utterance
from voxstill.decoding import checkpoint_files
from voxstill.evaluation import results
from voxstill.evaluation.results import StoredResult
from voxstill.exporting.card import Judged, Origin
from voxstill.storage.rundir import RunDir

_LICENCE = re.compile(r"""^license: *["']?([\w.-]+)["']? *$""", re.MULTILINE)


def of(cfg: Config, model: str, checkpoint: str | None, utterances: Iterable[Utterance]) -> Origin:
    """What is known of a model: of an experiment much, of any other folder its name and licence."""
    run = experiment_of(model)
    name = Path(model).resolve().name if Path(model).exists() else model
    if not run.config.is_file():
        return Origin(name=name, languages=_languages(utterances), licence=_licence(Path(model)))
    noted, summary = _read(run.environment), _read(run.summary)
    data: Mapping[str, Any] = noted.get("data") or {}
    languages = [cfg.student.language, *(source.language for source in config.sources_of(cfg.source))]
    base = cfg.student.checkpoint
    return Origin(
        name=run.path.resolve().name,
        languages=sorted(filter(None, languages)) or _languages(utterances),
        licence=_licence(run.model) or (None if base is None else _licence(Path(base))),
        teacher=data.get("teacher"),
        checkpoint=base,
        hours=data.get("hours"),
        utterances=summary.get("utterances"),
        steps=summary.get("steps") if checkpoint is None else None,
        judged=[
            _judged(result)
            for result in results.read_all(run.evaluation)
            if result.recogniser == (checkpoint or results.STUDENT)
            and result.figures.get("wer") is not None
            and result.corpus is not None
        ],
    )


def experiment_of(model: str) -> RunDir:
    """The experiment that a folder is, or that a checkpoint or `model` lies in; of others it has no configuration."""
    path = Path(model)
    return RunDir.of_checkpoint(path) or RunDir(path.parent if path == RunDir(path.parent).model else path)


def _judged(result: StoredResult) -> Judged:
    figures = result.figures
    assert result.corpus is not None
    return Judged(
        corpus=result.corpus.name,
        split=result.split,
        wer=figures["wer"],
        interval=figures.get("interval"),
        interval_over=figures.get("interval_over"),
        utterances=figures.get("utterances", 0),
        decoding=results.decoding_in_full(figures),
    )


def _languages(utterances: Iterable[Utterance]) -> list[str]:
    return sorted({utterance.info.language for utterance in utterances if utterance.info.language})


def _licence(folder: Path) -> str | None:
    """The licence that the model card in a folder, or of a name on the Hub, names."""
    try:
        if checkpoint_files.on_hub(str(folder)):
            folder = checkpoint_files.fetch(str(folder), None, ("README.md",))
        front_matter = (folder / "README.md").read_text(encoding="utf-8").partition("\n---")[0]
    except (OSError, ValueError, VoxstillError):
        return None
    match = _LICENCE.search(front_matter)
    return None if match is None else match[1]


def _read(path: Path) -> Mapping[str, Any]:
    """The object of a file of an experiment; empty if it is not there or damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
