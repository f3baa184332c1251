"""What a check gives, and checks that run beside each other, none of which can hang the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from voxstill.core.errors import ConfigError, DataError, StorageError, TrainingError, VoxstillError, first_line
from voxstill.core.result import Result
from voxstill.core.terminal import one_line

State = Literal["ok", "warn", "fail"]
Part = Literal["machine", "storage", "corpus", "run"]
_SEVERITY: Sequence[State] = ("fail", "warn", "ok")
_EXIT_CODES = {
    "machine": ConfigError.exit_code,
    "storage": StorageError.exit_code,
    "corpus": DataError.exit_code,
    "run": TrainingError.exit_code,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Result):
    """One thing that was looked at: `found` says what was measured, `fix` what to do where it is not `ok`."""

    name: str
    state: State
    found: str
    fix: str = ""
    part: Part = "machine"


def judged(part: Part, name: str, state: State, found: str, fix: str = "") -> Check:
    """A check whose fix is of no use where it is `ok`."""
    return Check(name=name, state=state, found=found, fix="" if state == "ok" else fix, part=part)


def above(share: float, limits: tuple[float, float]) -> State:
    """The state of a share that should not exceed the first limit, and fails beyond the second."""
    return "fail" if share > limits[1] else "warn" if share > limits[0] else "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorResult(Result):
    """Every check, the worst first; of equal ones, that first which explains the others."""

    checks: Sequence[Check]

    @property
    def exit_code(self) -> int:
        """That of the first check that fails: 2 for the machine, 4 for storage, 3 for a corpus, 6 for a training."""
        return next((_EXIT_CODES[check.part] for check in self.checks if check.state == "fail"), 0)

    def to_text(self) -> str:
        """A line for each check, and one for what to do about it."""
        width = max((len(check.name) for check in self.checks), default=0)
        lines = []
        for check in self.checks:
            lines.append(f"{check.state:<4}  {check.name:<{width}}  {one_line(check.found)}")
            if check.fix:
                lines.append(f"{'':<4}  {'':<{width}}  fix: {one_line(check.fix)}")
        return "\n".join(lines)


def result(checks: Sequence[Check]) -> DoctorResult:
    """The checks, the worst first; those of one state stay in their order."""
    return DoctorResult(checks=sorted(checks, key=lambda check: _SEVERITY.index(check.state)))


@dataclass(frozen=True, slots=True)
class Probe:
    """A function that gives checks, and how long it may take; what it waits for is named where it takes longer."""

    name: str
    look: Callable[[], Sequence[Check]]
    limit_s: float
    waits_for: str = "the system"
    part: Part = "machine"


def run(probes: Sequence[Probe]) -> list[Check]:
    """The checks of all probes in their order, each in a thread of its own.

    One that does not end in its time is a failed check, and one that raises a warning; their threads end with the
    process.
    """
    answers: dict[int, Sequence[Check]] = {}
    start_s = time.monotonic()

    def look(number: int, probe: Probe) -> None:
        try:
            answers[number] = probe.look()
        except VoxstillError as error:
            text = f"{error.what}: {error.why}" if error.why else error.what
            answers[number] = [Check(name=probe.name, state="fail", found=text, fix=error.fix, part=probe.part)]
        except Exception as error:
            text = f"it cannot be checked: {type(error).__name__}: {first_line(error)}"
            answers[number] = [Check(name=probe.name, state="warn", found=text, part=probe.part)]

    threads = [
        threading.Thread(target=look, args=(number, probe), daemon=True, name=f"doctor {probe.name}")
        for number, probe in enumerate(probes)
    ]
    for thread in threads:
        thread.start()
    for thread, probe in zip(threads, probes, strict=True):
        thread.join(max(0.0, start_s + probe.limit_s - time.monotonic()))
    return [check for number, probe in enumerate(probes) for check in answers.get(number) or _hung(probe)]


def _hung(probe: Probe) -> list[Check]:
    text = f"{probe.waits_for} has not answered within {probe.limit_s:g} s"
    return [Check(name=probe.name, state="fail", found=text, fix=f"check {probe.waits_for}: it hangs", part=probe.part)]
