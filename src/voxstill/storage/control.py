"""Change a job while it runs: options requested in `control.json` of its folder, and the status that the job reports.

The file holds options as a configuration does, and when they were requested; an option that it does not name is as the
job was started. A job reports in a file of `control/` what it has made of the request. Others may write both files:
what a job takes of a request is its own to decide, and no file ends it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from voxstill.core.errors import ConfigError, StorageError, VoxstillError
from voxstill.core.monitor import log
from voxstill.core.result import Result
from voxstill.core.terminal import MOST_NAME, one_line
from voxstill.storage import lease
from voxstill.storage.store import Store
from voxstill.storage.uri import is_local

REQUEST = "control.json"
STATUS = "control"
"""The folder of the statuses of jobs."""
Options = Mapping[str, Mapping[str, object]]
"""Options by section."""
WAIT_S = 10.0
"""For other processes that write a request."""
_LOOK_S = 0.1
POLL_S = 1.0
POLL_REMOTE_S = 5.0
"""In a bucket every poll is a request that costs: 720 an hour are $0.0003."""
_MOST_SHOWN = 500
"""Characters that are shown of a request or of why it is refused."""
_MOST_BYTES = 4 << 20
"""Of a request or a status: it is read again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Result):
    """What is requested of the jobs of a folder, as the file holds it."""

    at: str | None = None
    """When it was requested; None if nothing ever was."""
    set: Mapping[str, Any] = field(default_factory=dict)
    """Options by section, which may have been written manually. Without any: as the jobs were started."""
    stop_after_epoch: bool | None = None
    """Whether a training is to end with its epoch."""
    before: Mapping[str, Any] | None = None
    """The request that this one was added to, which stands where this one is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status(Result):
    """What a job reports of itself, as its file holds it."""

    host: str
    pid: int
    running: bool
    asked_at: str | None
    """When that was requested which it works by, or has refused; None for what it was started with."""
    refused: str | None
    """Why it has refused the request."""
    at: str = ""
    """When it was written."""


StatusT = TypeVar("StatusT", bound=Status)


def requested(folder: Store) -> Request:
    """Read the request; an empty one where there is none. DataError if the file holds none."""
    return Request.from_dict(read(folder, REQUEST))


@contextlib.contextmanager
def one_at_a_time(folder: Store) -> Iterator[None]:
    """Around reading what is requested and writing a new request: no other process does so meanwhile.

    StorageError if one takes longer than `WAIT_S`.
    """
    limit_s = time.monotonic() + WAIT_S
    while True:
        try:
            held = lease.acquire(folder, "control", "control")
            break
        except StorageError:
            if time.monotonic() > limit_s:
                raise
            time.sleep(_LOOK_S)
    try:
        yield
    finally:
        held.release()


def standing(folder: Store, statuses: Sequence[Status]) -> Request:
    """The request that a new one is added to: the last one, or the one before where all jobs have refused that.

    A job that runs and has not answered may still take it.
    """
    last = requested(folder)
    answers = [status for status in statuses if last.at is not None and status.asked_at == last.at]
    is_open = any(status.running and status.asked_at != last.at for status in statuses)
    is_refused = bool(answers) and not is_open and all(status.refused for status in answers)
    return Request.from_dict(last.before or {}) if is_refused else last


def request(
    folder: Store, options: Options, before: Request | None = None, *, stop_after_epoch: bool = False
) -> Request:
    """Write a new request that adds to the one `before`, and return it; no options means: as the jobs were started."""
    new = Request(
        at=timestamp(),
        set=options,
        stop_after_epoch=stop_after_epoch or None,
        before=None if before is None else replace(before, before=None).to_dict(),
    )
    folder.write_json(REQUEST, new.to_dict())
    return new


def read(folder: Store, key: str) -> Mapping[str, object]:
    """The JSON object in `key`, which others may have written; DataError if there is another thing."""
    return folder.read_json(key, _MOST_BYTES) or {}


def timestamp() -> str:
    """The time in ISO 8601, which sorts: two that differ are at least a microsecond apart."""
    return datetime.now(UTC).isoformat()


def merge(standing: Options, new: Options) -> Options:
    """Merge newer options by section over older ones."""
    return {**standing, **{name: {**standing.get(name, {}), **options} for name, options in new.items()}}


class Poller(Generic[StatusT]):
    """Poll the request of a running job and write the job's status, in a thread: slow or lost storage delays no work.

    Use it as a `with` block. It polls once before the block begins. `take` gets when it was requested and the request,
    where that is a new one, in the thread; what it raises refuses the request.
    """

    def __init__(self, folder: Store, name: str, status: StatusT, take: Callable[[str, Request], None]) -> None:
        self._folder, self._key, self._take = folder, f"{STATUS}/{name}.json", take
        self._status: StatusT = status
        self._written_status: StatusT | None = None
        self._last_request = Request()
        self._is_unreadable = False
        self._changed, self._has_ended, self._lock = threading.Event(), False, threading.Lock()
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def __enter__(self) -> Self:
        self._poll()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._has_ended = True
        self.update(lambda status: replace(status, running=False))
        self._thread.join()

    @property
    def status(self) -> StatusT:
        """What the job reports now."""
        return self._status

    def update(self, change: Callable[[StatusT], StatusT]) -> None:
        """Change the status; it is written soon."""
        with self._lock:
            self._status = change(self._status)
        self._changed.set()

    def refuse(self, at: str | None, error: VoxstillError) -> str:
        """Report that the request of a time is refused, and return why, in words."""
        why = f"{error.what}: {error.why}" if error.why else error.what
        refused = one_line(f"{why}; {error.fix}" if error.fix else why, _MOST_SHOWN)
        log.error("control: the request is refused, and the job continues as before: %s", refused)
        self.update(lambda status: replace(status, asked_at=at, refused=refused))
        return refused

    def _run(self) -> None:
        interval_s = POLL_S if is_local(self._folder.root) else POLL_REMOTE_S
        while not self._has_ended:
            self._write_status()
            self._changed.wait(interval_s)
            self._changed.clear()
            if not self._has_ended:
                self._poll()
        self._write_status()

    def _write_status(self) -> None:
        """Write the status where it has changed; storage that fails is a warning."""
        with self._lock:
            status = self._status
        if status == self._written_status:
            return
        try:
            self._folder.write_json(self._key, replace(status, at=timestamp()).to_dict())
            self._written_status = status
        except StorageError as error:
            log.warning("control: %s (%s)", error.what, error.why)

    def _poll(self) -> None:
        """Read the request and hand it on where it is new; nothing that others wrote there raises."""
        try:
            new = requested(self._folder)
            is_new = new != self._last_request
        except Exception as error:  # also a RecursionError, of JSON that is nested deeply
            if not self._is_unreadable:
                what, why = (error.what, error.why) if isinstance(error, VoxstillError) else (REQUEST, repr(error))
                log.warning("control: the request cannot be read: %s (%s)", what, why)
            self._is_unreadable = True
            return
        self._is_unreadable = False
        if not is_new:
            return
        self._last_request, at = new, one_line(str(new.at), MOST_NAME)
        try:
            self._take(at, new)
        except VoxstillError as error:
            self.refuse(at, error)
        except Exception as error:  # a teacher of another package, or a file that was written manually
            self.refuse(
                at,
                ConfigError("it cannot be understood", code="change-refused", why=f"{type(error).__name__}: {error}"),
            )
        else:
            log.info("control: requested at %s: %s", at, one_line(str(new.set), _MOST_SHOWN))
