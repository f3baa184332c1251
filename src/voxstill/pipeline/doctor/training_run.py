"""What is wrong with a training, live or ended, by the small files of its experiment; no torch, no audio."""

from __future__ import annotations

import contextlib
import functools
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.process import machine
from voxstill.data.bottleneck import SOME_WAITING, Limit, Waits, judge, straggler
from voxstill.pipeline.doctor import learning, places
from voxstill.pipeline.doctor.checks import Check, DoctorResult, Probe, judged, result, run
from voxstill.pipeline.doctor.processes import busiest, group_of, is_stopped
from voxstill.storage.rundir import RunDir
from voxstill.training.waits import RankWaits, read_waits
from voxstill.training.watchdog import RankState, read_states

_check = functools.partial(judged, "run")
_LIMIT_S = 4.0
_BUSY_S = 0.4
_STOPPED_S = 0.3
"""One that is stopped for less continues by itself: it is slow."""
_SILENT_S = 60.0
"""Without a step, and longer than twenty steps took."""
_STEPS = 20
_FEW_STEPS = 10
"""Of fewer nothing is said: they warm up."""


@dataclass(frozen=True, slots=True)
class _Run:
    """What the experiment says of its processes: those that are alive on this machine, by rank, and all waits."""

    folder: RunDir
    cfg: Config
    ranks: Mapping[int, RankState]
    waits: Mapping[int, RankWaits]

    @property
    def training(self) -> dict[int, RankState]:
        """Those that may train now: alive here, or elsewhere and no rank of an earlier process alone."""
        num = max((row.ranks for row in self.waits.values()), default=len(self.ranks))
        here = socket.gethostname()
        return self.alive | {rank: state for rank, state in self.ranks.items() if state.host != here and rank < num}

    @property
    def alive(self) -> dict[int, RankState]:
        return {rank: state for rank, state in self.ranks.items() if state.is_alive_here()}

    @property
    def is_elsewhere(self) -> bool:
        """Whether ranks say that they train on other machines: whether they still do, their files alone can tell."""
        limit_s = self.cfg.train.step_timeout_s + _SILENT_S
        ages = {rank: _age_s(self.folder.ranks / f"{rank}.json") for rank in self.ranks}
        here = socket.gethostname()
        return any(state.host != here and (ages[rank] or 0.0) < limit_s for rank, state in self.ranks.items())

    @property
    def is_live(self) -> bool:
        return bool(self.alive) or self.is_elsewhere


def check_run(folder: RunDir) -> DoctorResult:
    """Check a training, live or ended: its processes, how it learns, and what it waits for."""
    cfg = config.load_snapshot(str(folder.config))
    state = _Run(folder, cfg, read_states(folder), read_waits(folder))
    probes = [
        Probe("process", lambda: processes(state), _LIMIT_S, "the experiment folder", "run"),
        Probe("loss", lambda: _learning(state), _LIMIT_S, "the experiment folder", "run"),
        Probe("speed", lambda: waits(state), _LIMIT_S, "the experiment folder", "run"),
        Probe("disk", lambda: places.disk(folder.path), _LIMIT_S, f"`{folder.path}`", "storage"),
    ]
    return result(run(probes))


def _learning(state: _Run) -> list[Check]:
    return learning.checks(learning.read_lines(state.folder), state.folder, state.cfg, is_live=state.is_live)


def processes(state: _Run) -> list[Check]:
    """Whether the ranks live, and whether they make steps."""
    stopped = {
        rank: rank_state.pid for rank, rank_state in state.alive.items() if is_stopped(rank_state.pid, _STOPPED_S)
    }
    if stopped:
        who = ", ".join(f"rank {rank} (process {pid})" for rank, pid in stopped.items())
        pids = " ".join(map(str, stopped.values()))
        return [_check("process", "fail", f"stopped by a signal: {who}", f"run: kill -CONT {pids}")]
    if state.folder.summary.is_file():
        return [_check("process", "ok", "the training is finished")]
    if not state.is_live:
        text = "the training has not finished, and none of its processes is on this machine"
        return [_check("process", "warn", text, "the command that started it resumes where it stopped")]
    ages = {rank: _age_s(state.folder.ranks / f"{rank}.json") for rank in state.training}
    limit_s = max(_SILENT_S, _STEPS * max(map(_step_s, state.waits.values()), default=0.0))
    silent = {rank: age for rank, age in ages.items() if age is not None and age > limit_s}
    if silent:
        rank, age = max(silent.items(), key=lambda row: row[1])
        text = f"rank {rank} has made no step for {age:.0f} s; after {state.cfg.train.step_timeout_s:g} s all ranks end"
        fix = f"see what it waits for: kill -USR1 {state.ranks[rank].pid} writes its stacks into {state.folder.log}"
        return [_check("process", "fail", text, fix)]
    return [_check("process", "ok", f"{len(state.training)} processes train")]


def waits(state: _Run) -> list[Check]:
    """What holds up the training: the worst rank's verdict, and the rank that the others wait for."""
    measured = {
        rank: row.recent if state.is_live else row.total
        for rank, row in state.waits.items()
        if row.total.steps >= _FEW_STEPS
    }
    if not measured:
        text = "no waiting times are recorded: it has made few steps, or an earlier version trained it"
        return [_check("speed", "ok", text)]
    order = list(Limit)
    verdicts = {rank: judge(row, state.waits[rank].resources) for rank, row in measured.items()}
    worst = min(verdicts, key=lambda rank: order.index(verdicts[rank].limit))
    verdict = verdicts[worst]
    fix, text = verdict.fix, f"rank {worst}: {verdict.reason}" if len(verdicts) > 1 else verdict.reason
    if verdict.limit is Limit.MACHINE and state.is_live and state.waits[worst].machine == machine():
        own = {rank.pid for rank in state.alive.values()}
        own |= {group for pid in own if (group := group_of(pid)) is not None}
        if others := busiest(_BUSY_S, own):
            text += f". Busiest beside it: {', '.join(map(str, others))}"
            fix += f", such as process {others[0].pid}"
    check = _check(str(verdict.limit), "warn" if verdict.fix else "ok", text, fix)
    return [check] if len(measured) < 2 else [check, _straggler(state, measured)]


def _straggler(state: _Run, measured: Mapping[int, Waits]) -> Check:
    late = straggler(measured)
    if late is None:
        return _check("straggler", "ok", f"the {len(measured)} ranks are equally fast")
    row = state.waits[late.rank]
    why = "waits neither for a core nor for batches: something else stops it or slows it down"
    if late.core_wait >= SOME_WAITING:
        why = f"waits {late.core_wait:.0%} of its time for a core"
    elif late.data_wait >= SOME_WAITING:
        why = f"waits {late.data_wait:.0%} of its time for batches"
    text = (
        f"rank {late.rank} on {row.machine.partition(' ')[0]} takes {1e3 * late.own_s:.0f} ms of a step for its "
        f"own work, and the others {1e3 * late.others_s:.0f} ms; a step takes {1e3 * late.step_s:.0f} ms. It {why}"
    )
    process = f", process {state.ranks[late.rank].pid}," if late.rank in state.ranks else ""
    fix = (
        f"run `voxstill doctor` where rank {late.rank}{process} runs, end the disturbing programs there, or "
        "train on other machines"
    )
    return _check("straggler", "warn", text, fix)


def _step_s(row: RankWaits) -> float:
    return row.recent.seconds / row.recent.steps if row.recent.steps else 0.0


def _age_s(path: Path) -> float | None:
    with contextlib.suppress(OSError):
        return time.time() - path.stat().st_mtime
    return None
