"""What a finished training leaves, brought to a folder, a bucket or the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from voxstill.core.errors import StorageError
from voxstill.core.monitor import log
from voxstill.storage.redaction import redact_uri
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store

DONE = "_SUCCESS.json"
HUB = "hf://"
_LOGIN = "log in with `hf auth login`, or set HF_TOKEN to a token with write permission"


def check(target: str) -> None:
    """StorageError if nothing can be brought there: it is not an address, or there is no login to the Hub."""
    if not target.startswith(HUB):
        Store(target)
        return
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    name = target.removeprefix(HUB)
    try:
        if name.count("/") != 1:
            raise HFValidationError("it is not OWNER/NAME")
        validate_repo_id(name)
    except HFValidationError as error:
        fix = f"give `{HUB}OWNER/NAME`"
        raise StorageError(
            f"`{target}` is not a repository of the Hub", code="hub-upload", why=str(error), fix=fix
        ) from None
    if get_token() is None:
        raise StorageError(
            f"cannot write to `{target}`", code="hub-upload", why="this machine is not logged in to the Hub", fix=_LOGIN
        )


def upload(run: RunDir, target: str) -> None:
    """The model lies at `target`, with all that says how it came about; what is there is not sent again.

    In a folder or a bucket both lie in a folder named as the experiment, and `_SUCCESS.json`, which counts the bytes of
    each file, is written last. On the Hub they are one commit, to a private repository where there is none yet: the
    model at its top, as `from_pretrained` wants it, the rest below `training/`. StorageError if they cannot be
    written; the experiment stays as it is, and the same command again brings them there.
    """
    if target.startswith(HUB):
        commit(run.path, target, on_hub(run))
        return
    store = Store(f"{target.rstrip('/')}/{run.path.name}")
    paths = {path.relative_to(run.path).as_posix(): path for path in (*_model(run), *_notes(run))}
    sizes: dict[str, object] = {key: path.stat().st_size for key, path in paths.items()}
    done = store.read_json(DONE)
    if done == sizes:
        return
    if done is not None:  # of earlier the training went on, which the length of its log shows
        store.delete(DONE)
    for key, path in paths.items():
        store.upload(key, path)
    store.write_json(DONE, sizes)
    log.info("%d files are at %s", len(paths), redact_uri(store.root))


def on_hub(run: RunDir) -> dict[str, Path]:
    """The files of an experiment by where they lie in its repository on the Hub."""
    model = {path.relative_to(run.model).as_posix(): path for path in _model(run)}
    return model | {f"training/{path.name}": path for path in _notes(run)}


def _model(run: RunDir) -> list[Path]:
    return [path for path in sorted(run.model.rglob("*")) if path.is_file()]


def _notes(run: RunDir) -> list[Path]:
    """What says how the model came about."""
    return [path for path in (run.config, run.environment, run.metrics, run.log, run.summary) if path.is_file()]


def upload_export(run: RunDir, copy: RunDir, target: str) -> None:
    """The model folder of a copy lies at `target`, in `exports/` and the name of its checkpoint, its weights last.

    StorageError if it cannot be written.
    """
    files = sorted((path for path in copy.model.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    keys = {f"{run.exports.name}/{copy.path.name}/{path.relative_to(copy.model).as_posix()}": path for path in files}
    if target.startswith(HUB):
        commit(run.path, target, keys)
        return
    store = Store(f"{target.rstrip('/')}/{run.path.name}")
    for key, path in keys.items():
        store.upload(key, path)
    log.info("train: the copy `%s` is at %s", copy.path.name, redact_uri(store.root))


def commit(model: Path, target: str, files: Mapping[str, Path | bytes]) -> str:
    """Bring files to the Hub as one commit that is named after the folder of a model; return the repository's address.

    Where there is no repository yet, a private one is made. StorageError if they cannot be written.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    hub, name = HfApi(), target.removeprefix(HUB)
    adds = [CommitOperationAdd(path_in_repo=at, path_or_fileobj=path) for at, path in files.items()]
    try:
        url = str(hub.create_repo(name, private=True, exist_ok=True))
        hub.create_commit(name, adds, commit_message=model.name)
    except Exception as error:  # which HTTP library speaks, and raises, is the Hub library's own affair
        cause = error.__cause__ or error
        why = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        fix = f"{_LOGIN}; then the same command uploads it"
        raise StorageError(
            f"the model of `{model}` was not uploaded to `{target}`", code="hub-upload", why=why, fix=fix
        ) from error
    log.info("%d files are at %s", len(files), target)
    return url
