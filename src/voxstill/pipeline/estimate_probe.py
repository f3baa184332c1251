"""Label for a while to see how fast that is; no label is kept."""

from __future__ import annotations

import time

from voxstill import engine
from voxstill.audio import read_utterances
from voxstill.core.config import Config
from voxstill.core.monitor import log
from voxstill.core.records import Utterance
from voxstill.labelling import label
from voxstill.labelling.transcribe import Transcribe
from voxstill.storage import manifest, tables, workdir
from voxstill.storage.figures import IndexFigures
from voxstill.storage.store import Store

PROBE_S = 60.0
_FIRST, _MOST = 8, 256
"""Utterances of the first batch, and of the largest."""


def labelling_rtfx(cfg: Config, source: IndexFigures, seconds: float = PROBE_S) -> float | None:
    """Seconds of audio that one teacher in this process labels in one, within a time limit that also loads it.

    None if no utterance has a label within it. TeacherError if the teacher cannot be loaded.
    """
    start_s = time.perf_counter()
    work = Store(cfg.work)
    transcribe = Transcribe(label.task(cfg.teacher, work))
    decode = read_utterances.Decode(read_utterances.reading(cfg))
    keys = manifest.parts(work, workdir.prefix("utterances", source.recipe))
    rows = (row for key in keys for row in tables.from_parquet(work.read(key), Utterance, work.uri(key)))
    log.info("estimate: labelling for up to %.0f s to measure its speed", seconds)
    audio_ms, spent_s, num = 0, 0.0, _FIRST
    decode.open()
    try:
        transcribe.open()
        while batch := [row for _, row in zip(range(num), rows, strict=False)]:
            before_s = time.perf_counter()
            answers = transcribe(batch, decode(batch, None))
            batch_s = time.perf_counter() - before_s
            labelled = [
                row for row, answer in zip(batch, answers, strict=True) if not isinstance(answer, engine.Postponed)
            ]
            audio_ms, spent_s = audio_ms + sum(row.duration_ms for row in labelled), spent_s + batch_s
            left_s = seconds - (time.perf_counter() - start_s)
            num = min(2 * num, _MOST, int(num * left_s / max(batch_s, 1e-9)))
            if num < 1:
                break
    finally:
        transcribe.close()
        decode.close()
    return audio_ms / 1000 / spent_s if audio_ms else None
