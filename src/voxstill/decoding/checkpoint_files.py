"""Where the files of a checkpoint are: in a folder, an experiment, or the cache of the Hugging Face Hub."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from voxstill.core.errors import ConfigError, DataError, first_line
from voxstill.storage.rundir import RunDir

_ON_HUB = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


def on_hub(model: str) -> bool:
    """Return whether it is a name on the Hugging Face Hub, and no local folder begins so.

    It is `owner/name`, or `owner/name@revision`.
    """
    return _ON_HUB.fullmatch(model) is not None and not Path(model.partition("/")[0]).exists()


def split_revision(model: str, revision: str | None = None) -> tuple[str, str | None]:
    """Return name and revision of a name on the Hub, which may end in `@` and a branch, tag or commit.

    ConfigError if `revision` is another one.
    """
    match = _ON_HUB.fullmatch(model)
    if match is None or match[2] is None:
        return model, revision
    if revision not in (None, match[2]):
        raise ConfigError(
            f"`{model}` contains a revision",
            code="option-conflict",
            why=f"`revision` is another one: `{revision}`",
            fix="remove one of them",
        )
    return match[1], match[2]


def fetch(model: str, revision: str | None, patterns: Sequence[str]) -> Path:
    """Download the files of a name on the Hub; return their folder, which is named as their commit.

    The name may hold the revision: `owner/name@revision`. DataError if they cannot be had.
    """
    from huggingface_hub import snapshot_download

    name, revision = split_revision(model, revision)
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns)))
    except (OSError, ValueError) as error:
        raise DataError(
            f"`{model}` cannot be fetched from the Hugging Face Hub",
            code="hub-unreachable",
            why=first_line(error),
            fix="check the name and its revision, or give a folder",
        ) from None


def digest(folder: Path, patterns: Sequence[str]) -> str:
    """Hash the content of the files of a folder: 16 hexadecimal digits."""
    content_hash = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in folder.glob(pattern)}):
        with path.open("rb") as file:
            content_hash.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return content_hash.hexdigest()[:16]


def folder_of(model: str, needed: Sequence[str]) -> Path | None:
    """Return the folder, or None for a name on the Hub; ConfigError if the folder lacks a `needed` file."""
    if on_hub(model):
        return None
    missing = [name for name in needed if not (Path(model) / name).is_file()]
    if missing:
        raise ConfigError(
            f"there is no model in `{model}`",
            code="no-model",
            why=f"it does not contain {', '.join(missing)}",
            fix="give a folder that has them, or a name on the Hugging Face Hub such as `owner/name`",
        )
    return Path(model)


def model_folder(path: str) -> Path:
    """Return the folder with the weights: of an experiment, or a model folder itself; ConfigError if it has none."""
    for folder in (Path(path), Path(path) / "model"):
        weights = (folder / name for name in ("model.safetensors", "model.safetensors.index.json"))
        if (folder / "config.json").is_file() and any(file.is_file() for file in weights):
            return folder
        if (folder / "changes.safetensors").is_file():
            raise ConfigError(
                f"`{path}` is not a complete model",
                code="changed-weights",
                why="it has only the weights that differ from those of its base",
                fix="`voxstill.restore_model(COPY, FOLDER)` in Python makes it a complete model",
            )
    run = RunDir(Path(path))
    checkpoint = next((link for link in (run.best, run.last) if link.is_dir()), None)
    raise ConfigError(
        f"there is no student in `{path}`",
        code="no-model",
        why="neither it nor a folder `model` in it contains config.json and model.safetensors"
        + (": its training has not finished" if checkpoint else ""),
        fix=f"give a checkpoint of it: `{checkpoint}`"
        if checkpoint
        else "give an experiment folder that has finished training, or another checkpoint",
    )


def architecture(path: str) -> str:
    """Return the class of the model in an experiment or a model folder, as its `config.json` names it.

    It is empty if there is no model, or no class is named.
    """
    try:
        saved = json.loads((model_folder(path) / "config.json").read_text())
        return str(saved["architectures"][0])
    except (ConfigError, OSError, ValueError, LookupError, TypeError, RecursionError):
        return ""
