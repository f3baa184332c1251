"""Index: every file of the source becomes a recording with its utterances, or a recording with a reason."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from voxstill import tables, workdir
from voxstill.config import Config
from voxstill.factory import engine, extract, scan, segment
from voxstill.monitor import StepMeter, log
from voxstill.pipeline.recipes import utterances_recipe
from voxstill.records import Utterance
from voxstill.store import Store


def index(cfg: Config) -> dict[str, Any]:
    """Every file of the source is a recording with its utterances, or a recording with a reason.

    What is there already stays as it is; what storage did not give the last time is tried again. DataError where a
    file, or what the source says of it, has changed since it was indexed: labels, splits and texts would be of then.
    """
    work, recipe = Store(cfg.work), utterances_recipe(cfg)
    recordings, prefix = workdir.prefix("recordings", recipe), workdir.prefix("utterances", recipe)
    files = scan.by_file(scan.scan(cfg.source, work))
    done = segment.Done(work, recordings, prefix)
    missing = done.missing(files)
    log.info("index: %d files found, %d of them to do", len(files), sum(missing))

    def commit(chunk: engine.Chunk, rows: Sequence[segment.Indexed]) -> None:
        utterances = [each for row in rows for each in row.utterances]
        errors = (row.recording.error for row in rows if row.recording.error is not None)
        meter.safe(sum(each.duration_ms for each in utterances), errors)
        found = [row.recording for row in rows if not (row.recording.is_unreadable and row.recording.id in done)]
        if not found:  # all of them are known to be out of reach already
            return
        key, row_bytes = f"{recordings}/{chunk.id}.parquet", tables.to_parquet(found, segment.IndexRow)
        committed = f"{prefix}/{chunk.id}.parquet"
        if not work.create(key, row_bytes) and not work.exists(committed):
            work.replace(key, row_bytes)  # left by a run that was ended before its commit
        work.create(committed, tables.to_parquet(utterances, Utterance))

    make = segment.Index(cfg.segment, cfg.source, cfg.seed, extract.reading(cfg))
    stages = (engine.Stage(name="index", make=make, workers=cfg.engine.workers),)
    if any(missing):
        todo = itertools.compress(files, missing)
        # A file that is tried again is another item than the first time: its part must not be taken for that one.
        chunks = engine.chunks_of(todo, cfg.engine.chunk, lambda file: file.id + file.said * (file.id in done))
        with StepMeter("index", sum(missing), "files") as meter:
            engine.run(chunks, stages, commit, segment.set_aside, cfg.engine, meter.engine)
    done.read()
    figures = {"recipe": recipe, **done.figures()}
    work.write_json(f"{prefix}/{tables.SUCCESS}", figures)
    return figures
