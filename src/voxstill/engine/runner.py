"""Run stages over chunks: each item ends in exactly one committed row, whatever raises, hangs or dies.

A chunk is the unit of work, of retry and of output. It passes through the stages in order, each with workers of its
own, and its rows are committed in one call. The rules of retry (`retry.RetryTracker`) are the same for both engines:
`inline` runs the stages in this process, `ray` in actors.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from voxstill.core.config import Engine
from voxstill.core.metrics.figures import Summary
from voxstill.engine.inline import InlineRun
from voxstill.engine.ray_driver import RayRun
from voxstill.engine.retry import RetryTracker
from voxstill.engine.stage import Changes, Chunk, Meter, Stage


def run(
    chunks: Iterable[Chunk],
    stages: Sequence[Stage],
    commit: Callable[[Chunk, list[Any]], None],
    fail: Callable[[Any, str], Any],
    cfg: Engine,
    meter: Meter | None = None,
    changes: Changes | None = None,
) -> Summary:
    """Commit each chunk once, with one row for each of its items in order; the rows do not depend on timing.

    `commit` runs in this process, for several chunks at a time under `ray`. `fail(item, reason)` is the row of an item
    that is set aside because the work on it alone raised, died or took longer than `cfg.lease_s`, `cfg.attempts` times;
    the inline engine survives only the first of these. `chunks` is consumed as workers come free: at most
    `cfg.in_flight` chunks for each worker, and one for each further call that it takes at once, are between it and
    `commit`. `meter` follows the run.

    `changes` may give a stage another number of workers or another work, and other `cfg.attempts`, `cfg.lease_s` and
    `cfg.in_flight`. Workers that are too many finish what they hold. A new work first runs in one worker, the canary:
    once it has worked on one chunk the workers with the old work are drained; where it fails, they continue with that
    chunk as if nothing had been. The inline engine has one worker for each stage.

    SIGINT and SIGTERM stop the run: no chunk is started any more, what the workers have in hand is finished and
    committed within `STOP_LIMIT_S`, the rest is given back, and Interrupted is raised. A second signal stops at once.

    Raises what `commit` raises; VoxstillError if a stage cannot start, or where nothing that is tried works. A
    TeacherError of the work ends the run: it says that no other item would fare better.
    """
    source = iter(chunks)
    tracker = RetryTracker(cfg.attempts, fail, meter)
    first = next(source, None)
    if first is not None:  # a model is not loaded for nothing
        source = itertools.chain([first], source)
        if cfg.name == "inline":
            InlineRun(stages, commit, tracker, changes).run(source)
        else:
            RayRun(stages, commit, cfg, tracker, changes).run(source)
    return tracker.summary()
