"""Where the files of a teacher's model lie: in a folder, or on the Hugging Face Hub."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from voxstill.errors import ConfigError, DataError

_ON_HUB = re.compile(r"[\w.-]+/[\w.-]+")


def on_hub(model: str) -> bool:
    """Whether it is a name on the Hugging Face Hub: `owner/name`, and no folder here begins so."""
    return _ON_HUB.fullmatch(model) is not None and not Path(model.partition("/")[0]).exists()


def fetched(model: str, revision: str | None, patterns: Sequence[str]) -> Path:
    """The folder with the files of a name on the Hub, called as their commit; DataError where they cannot be had."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=list(patterns)))
    except (OSError, ValueError) as error:
        raise DataError(
            f"`{model}` cannot be fetched from the Hugging Face Hub",
            why=str(error).strip().splitlines()[0],
            fix="look at the name and `teacher.revision`, or give a folder",
        ) from None


def digest(folder: Path, patterns: Sequence[str]) -> str:
    """What tells the files of a folder from others of the same names."""
    found = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in folder.glob(pattern)}):
        with path.open("rb") as file:
            found.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return found.hexdigest()[:16]


def folder_of(model: str, needed: Sequence[str]) -> Path | None:
    """The folder, or None for a name on the Hub; ConfigError where the folder lacks what is `needed`."""
    if on_hub(model):
        return None
    missing = [name for name in needed if not (Path(model) / name).is_file()]
    if missing:
        raise ConfigError(
            f"there is no model in `{model}`",
            why=f"it does not hold {', '.join(missing)}",
            fix="give a folder that does, or a name on the Hugging Face Hub such as `owner/name`",
        )
    return Path(model)
