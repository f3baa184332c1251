"""What a finished training leaves, brought to a folder or a bucket."""

from __future__ import annotations

from voxstill.monitor import log
from voxstill.rundir import RunDir
from voxstill.store import Store, shown

DONE = "_SUCCESS.json"


def upload(run: RunDir, target: str) -> None:
    """Below `target`, under the name of the experiment, lie its model and all that says how it came about.

    `_SUCCESS.json` is written last and counts the bytes of each file: where it is, nothing is done again. StorageError
    where the files cannot be written; the experiment stays as it is, and the same command again brings them there.
    """
    store = Store(f"{target.rstrip('/')}/{run.path.name}")
    if store.exists(DONE):
        return
    told = (run.config, run.environment, run.metrics, run.log, run.summary)
    paths = [path for path in (*sorted(run.model.rglob("*")), *told) if path.is_file()]
    for path in paths:
        store.upload(path.relative_to(run.path).as_posix(), path)
    store.write_json(DONE, {path.relative_to(run.path).as_posix(): path.stat().st_size for path in paths})
    log.info("train: %d files are at %s", len(paths), shown(store.root))
