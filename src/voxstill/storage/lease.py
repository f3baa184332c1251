"""One writer for each table: a lease that a process acquires, renews and releases, in a folder or a bucket.

A lease is a row of objects, `leases/TABLE/00000001.json` and so on. The newest is the one that counts. It is created,
never overwritten by another process, so of several that want the lease exactly one gets it. Its holder rewrites it with
a growing number of beats. Where the beats stop, the lease is stale, and whoever creates the next object takes over;
the former holder sees that at its next beat and ends.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
import re
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from voxstill.core import result
from voxstill.core.errors import DataError, StorageError, VoxstillError
from voxstill.core.monitor import log
from voxstill.core.process import machine, started
from voxstill.core.terminal import MOST_NAME, one_line
from voxstill.storage.redaction import redact_uri
from voxstill.storage.store import Store

BEAT_S = 10.0
"""Between two heartbeats of a holder."""
STALE_S = 60.0
"""A lease without a heartbeat for this long is stale."""
_WATCHED_AT_ONCE = 64
_NAME = re.compile(r"([0-9]{8,18})\.json")
_MOST_PROCESSES = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a lease, since when, and its last heartbeat."""

    id: str
    """Of this one holding: random, so that two are never taken for one."""
    machine: str
    """Where its process id means something."""
    process: int
    started: str
    """When the process started, by its machine's own count."""
    command: str
    since: str
    """UTC, ISO 8601."""
    beat_s: float
    """Seconds since 1970 of the last heartbeat, by the clock of the holder."""
    beats: int = 0
    is_released: bool = False

    @classmethod
    def of_this_process(cls, command: str) -> Holder:
        """This process, beginning now."""
        now = time.time()
        return cls(
            id=uuid.uuid4().hex,
            machine=machine(),
            process=os.getpid(),
            started=started(os.getpid()),
            command=command,
            since=datetime.datetime.fromtimestamp(now, datetime.UTC).isoformat(timespec="seconds"),
            beat_s=now,
        )

    @property
    def has_ended(self) -> bool:
        """Whether it gave the lease back, or was a process of this machine that is gone."""
        if self.is_released:
            return True
        return self.machine == machine() and started(self.process) != self.started

    def to_json(self) -> bytes:
        """The object as it is stored."""
        return (json.dumps(dataclasses.asdict(self)) + "\n").encode()


class Lease:
    """The right to write one table, held until `release`; `check` raises where it was lost."""

    def __init__(self, work: Store, table: str, holder: Holder, number: int) -> None:
        self._work, self._table, self._holder, self._number = work, table, holder, number
        self._last_beat_s = time.monotonic()
        self._successor: Holder | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._beat_until_end, name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """StorageError if another process has taken over, or may have, as no heartbeat could be written for long."""
        if self._successor is not None:
            raise StorageError(
                f"another process has taken over `{self._table}` in `{self._work.root}`",
                code="lease-lost",
                why=f"{_describe(self._successor)}, as this one showed no heartbeat for {STALE_S:.0f} s",
                fix="nothing is lost: let it do the work, or run the same command again when it has ended",
            )
        if time.monotonic() - self._last_beat_s > STALE_S:
            raise StorageError(
                f"the lease of `{self._table}` in `{self._work.root}` could not be renewed for {STALE_S:.0f} s",
                code="lease-lost",
                why="storage does not respond, so another process may have taken over",
                fix="check the storage; the same command resumes where this one stopped",
            )

    def release(self) -> None:
        """Release it; the next process need not wait."""
        self._ends.set()
        self._thread.join()
        if self._successor is not None:
            return
        try:
            released = dataclasses.replace(self._holder, is_released=True)
            self._work.replace(_key(self._table, self._number), released.to_json())
            for number in _numbers(self._work, self._table):
                if number < self._number:
                    self._work.delete(_key(self._table, number))
        except StorageError as error:  # the work itself is done or has its own error; the lease expires by itself
            log.warning("lease: %s (%s)", error.what, error.why)

    def _beat_until_end(self) -> None:
        while not self._ends.wait(BEAT_S):
            begin_s = time.monotonic()
            try:
                newest = max(_numbers(self._work, self._table), default=self._number)
                if newest > self._number:
                    self._successor = _read(self._work, self._table, newest)
                    return
                beats = self._holder.beats + 1
                self._holder = dataclasses.replace(self._holder, beats=beats, beat_s=time.time())
                self._work.replace(_key(self._table, self._number), self._holder.to_json())
                self._last_beat_s = begin_s
            except VoxstillError as error:  # `check` ends the work where this lasts
                log.warning("lease: %s (%s)", error.what, error.why)


@contextmanager
def hold(work: Store, table: str, command: str, *, waits: bool = False) -> Iterator[Lease]:
    """Hold the lease of a table while the block runs; StorageError as for `acquire`."""
    lease = acquire(work, table, command, waits=waits)
    try:
        yield lease
    finally:
        lease.release()


def acquire(work: Store, table: str, command: str, *, waits: bool = False) -> Lease:
    """Take the lease of a table: a new one, or one that was given back or is stale. StorageError if it is held.

    With `waits` a holder on another machine has until its lease is stale to show a heartbeat: what a scheduler starts
    again elsewhere need not be started a third time.
    """
    while True:
        newest = max(_numbers(work, table), default=0)
        current = _read(work, table, newest) if newest else None
        if current is not None and not current.has_ended:
            if not _is_free(work, table, newest, current, waits):
                raise _held(work, table, current)
            log.warning("lease: `%s` is taken over: %s, and has stopped", table, _describe(current))
        holder = Holder.of_this_process(command)
        if work.create(_key(table, newest + 1), holder.to_json()):
            return Lease(work, table, holder, newest + 1)


def check_free(work: Store, *tables: str) -> None:
    """StorageError if the lease of one of the tables is held.

    A lease that looks stale and was not given back is watched until its holder would have shown a heartbeat: clocks
    differ.
    """
    if not tables:
        return
    with ThreadPoolExecutor(min(len(tables), _WATCHED_AT_ONCE), thread_name_prefix="lease") as pool:
        holders = list(pool.map(lambda table: _holder(work, table), tables))
    for table, holder in zip(tables, holders, strict=True):
        if holder is not None:
            raise _held(work, table, holder)


def _holder(work: Store, table: str) -> Holder | None:
    """Who holds the lease of a table; None if it is free."""
    while True:
        newest = max(_numbers(work, table), default=0)
        holder = _read(work, table, newest) if newest else None
        if holder is None or holder.has_ended:
            return None
        if not _is_free(work, table, newest, holder, waits=False):
            return holder
        if max(_numbers(work, table), default=0) == newest:  # no other process has taken it over meanwhile
            return None


def seems_held(work: Store, table: str, process: int) -> bool:
    """Whether a process seems to hold the lease of a table; nothing is waited for.

    One of this machine holds it for as long as it runs; for one of another its last beat counts, by the clock of this
    machine. StorageError where the lease cannot be read.
    """
    newest = max(_numbers(work, table), default=0)
    holder = _read(work, table, newest) if newest else None
    if holder is None or holder.process != process or holder.has_ended:
        return False
    return holder.machine == machine() or time.time() < holder.beat_s + STALE_S


def below(work: Store, table: str) -> set[str]:
    """Names of the leases below that of a table: those of its parts."""
    prefix = f"leases/{table}/"
    names = (entry.key.removeprefix(prefix).rpartition("/")[0] for entry in work.list(f"leases/{table}"))
    return {f"{table}/{name}" for name in names if name}


def _held(work: Store, table: str, holder: Holder) -> StorageError:
    return StorageError(
        f"`{table}` in `{work.root}` is being written by another process",
        code="lease-held",
        why=_describe(holder),
        fix=f"wait for it or end it; if its machine is gone, the lease expires {STALE_S:.0f} s after its last "
        "heartbeat",
    )


def _is_free(work: Store, table: str, number: int, holder: Holder, waits: bool) -> bool:
    """Whether its heartbeats have stopped: by the clocks, and, as those may differ, by waiting for the next one."""
    fresh_s = holder.beat_s + STALE_S - time.time()
    if fresh_s > 2 * STALE_S:  # its clock is ahead, or was: only its heartbeats show whether it runs
        fresh_s = 0.0
    if fresh_s > 0 and (not waits or holder.machine == machine()):  # a process that runs here has not stopped
        return False
    if fresh_s > 0:
        log.info(
            "lease: waiting up to %.0f s to see whether it is still running: %s",
            min(fresh_s, STALE_S),
            _describe(holder),
        )
    until_s = time.monotonic() + min(max(fresh_s, 0), STALE_S) + 1.5 * BEAT_S
    while time.monotonic() < until_s:
        time.sleep(BEAT_S / 4)
        current = _read(work, table, number)
        if current != holder:
            return current is None or current.has_ended
    return True


def _describe(holder: Holder) -> str:
    host, command, since = (
        one_line(text, MOST_NAME) for text in (holder.machine.partition(" ")[0], holder.command, holder.since)
    )
    return f"process {holder.process} on {host} runs `voxstill {command}` there since {since}"


def _key(table: str, number: int) -> str:
    return f"leases/{table}/{number:08d}.json"


def _numbers(work: Store, table: str) -> list[int]:
    """Numbers of the objects of a lease; leases of other tables below it, and other files, are none of its own."""
    prefix = f"leases/{table}/"
    names = (entry.key.removeprefix(prefix) for entry in work.list(f"leases/{table}"))
    return [int(match[1]) for match in map(_NAME.fullmatch, names) if match is not None]


def _read(work: Store, table: str, number: int) -> Holder | None:
    """The holder in an object; None if it is gone, as one that was taken over and given back is."""
    try:
        facts = work.read_json(_key(table, number))
        if facts is None:
            return None
        holder = result.read(Holder, facts)
        if not (0 < holder.process < _MOST_PROCESSES and math.isfinite(holder.beat_s)):
            raise DataError("a number that cannot be", code="lease-held")
        return holder
    except DataError:
        raise StorageError(
            f"`{redact_uri(work.uri(_key(table, number)))}` is not a lease",
            code="lease-held",
            why="it was damaged, or another program wrote it",
            fix="remove it if no process of voxstill works there",
        ) from None
