"""push: a finished student, or an exported one, as a repository of the Hugging Face Hub, with a model card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from voxstill.core.config import Config
from voxstill.core.errors import ConfigError
from voxstill.core.result import Result
from voxstill.decoding import checkpoint_files, exported
from voxstill.exporting import card, folder
from voxstill.pipeline import export_origin
from voxstill.storage.rundir import RunDir
from voxstill.tasks import registry
from voxstill.training import upload


@dataclass(frozen=True, slots=True, kw_only=True)
class PushResult(Result):
    """The address of the repository, and the files there."""

    url: str
    files: Sequence[str]

    def to_text(self) -> str:
        """The address."""
        return self.url


def push(cfg: Config, model: str, name: str) -> PushResult:
    """Upload an experiment's student, a model folder or an exported student to the Hub as `owner/name`, as one commit.

    A repository that does not exist yet is created, and private. Of an experiment it has the same files as with
    `train.upload`. A card is written where the folder has none. ConfigError if there is no finished student,
    StorageError if it cannot be written.
    """
    upload.check(upload.HUB + name)
    if checkpoint_files.on_hub(model):
        raise ConfigError(
            f"`{model}` is already on the Hub", code="hub-upload", why="it is not a folder here", fix="give a folder"
        )
    located = exported.locate(model)
    files: dict[str, Path | bytes] = {}
    listed: Sequence[str] = ()
    if located is not None:
        source = located[0]
        manifest = exported.read(source)
        listed = [*manifest.files, exported.MANIFEST]
        if faults := exported.faults(source, manifest):
            raise ConfigError(
                f"`{source}` is not the folder that was exported",
                code="export-broken",
                why=", ".join(f"`{file}`: {fault}" for file, fault in faults.items()),
                fix="export the student again",
            )
    else:
        source = checkpoint_files.model_folder(model)
        if registry.name_of(model) == "recognition":
            origin = export_origin.of(cfg, model, None, ())
            files[folder.CARD] = card.render_student(origin).replace("OWNER/NAME", name).encode()
    if source == (run := RunDir(Path(model))).model:
        files |= upload.on_hub(run)
    else:
        names = listed if listed else _names(source)
        files |= {name: source / name for name in names}
    url = upload.commit(source if located is not None else Path(model), upload.HUB + name, files)
    return PushResult(url=url, files=sorted(files))


def _names(source: Path) -> list[str]:
    """The files of a model folder, without what is hidden: a clone of a repository has its history there."""
    paths = (path.relative_to(source) for path in sorted(source.rglob("*")) if path.is_file())
    return [path.as_posix() for path in paths if not any(part.startswith(".") for part in path.parts)]
