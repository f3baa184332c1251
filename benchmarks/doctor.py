"""Whether `voxstill doctor` names a fault first, and whether the fix that it gives helps: faults that are really there.

    python benchmarks/doctor.py [--only NAME ...] [--sound FOLDER ...]

Each fault is induced on this machine: a folder on a full disk, a control group with little memory, a bucket that never
answers, a corpus with silent files, a training beside programs that take its cores. `voxstill doctor --json` is run as
a command; its first check must be the fault, and none may be left of it after the fix. Of a training the steps a second
are counted before and after, too. At the end the same commands look at what is healthy, and at the `--sound` folders,
such as the work folder and the experiment of a demo. What measuring costs a step is timed alone.

Some faults need root (a disk of its own, a control group): where that is missing they are counted as left out. Writes
`benchmarks/results/doctor.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from doctor_faults import corpora, machines, trainings  # noqa: E402
from doctor_faults.fault import CannotBeInduced, Fault, doctor  # noqa: E402
from voxstill.core.config import Train  # noqa: E402
from voxstill.data.bottleneck import LoaderTimes  # noqa: E402
from voxstill.storage.rundir import RunDir  # noqa: E402
from voxstill.training.data_source import Data  # noqa: E402
from voxstill.training.waits import WaitMeter  # noqa: E402

FAULTS: list[type[Fault]] = [*machines.FAULTS, *corpora.FAULTS, *trainings.FAULTS]
STEPS, LINES = 5000, 200


def main() -> None:
    """Induce each fault, print and write what doctor says of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="names of faults")
    parser.add_argument("--sound", nargs="*", default=[], help="folders in which nothing is wrong")
    parser.add_argument("--output", default=str(HERE / "results/doctor.json"))
    args = parser.parse_args()
    trainings.prefer(os.getpid())
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for fault in FAULTS:
            if not args.only or fault.name in args.only:
                rows.append(measured(fault(Path(name) / fault.name.replace(" ", "-"))))
                print(json.dumps(rows[-1]), flush=True)
        healthy = [] if args.only else [machines.healthy(Path(name)), *trainings.healthy(Path(name))]
        cost = meter_cost(Path(name))
    for folder in args.sound:
        answer = doctor(folder)
        kind = "experiment" if (Path(folder) / "config.yaml").is_file() else "corpus"
        healthy.append({"what": f"{kind} of a demo", "seconds": answer.seconds, "alarms": machines.alarms(answer)})
    induced = [row for row in rows if "left_out" not in row]
    figures = {
        "faults": rows,
        "induced": len(induced),
        "named_first": sum(row["named_first"] for row in induced),
        "mended": sum(row["named_first"] and row["helps"] for row in induced),
        "healthy": healthy,
        "meter": cost,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    print({name: value for name, value in figures.items() if name != "faults"})
    if not args.only:
        Path(args.output).write_text(json.dumps(figures, indent=1) + "\n")


def measured(fault: Fault) -> dict[str, Any]:
    """Induce one fault, ask doctor, apply what it says, and ask again."""
    row: dict[str, Any] = {"fault": fault.name, "expected": fault.check}
    fault.folder.mkdir()
    try:
        with fault.induced():
            before = fault.speed()
            expected = fault.ask()
            first = expected.checks[0]
            row |= {"first": first["name"], "state": first["state"], "found": first["found"], "fix": first["fix"]}
            row |= {"named_first": first["name"] == fault.check and first["state"] != "ok", "seconds": expected.seconds}
            with fault.mended(first["fix"]):
                after = fault.speed()
                again = fault.ask()
    except CannotBeInduced as reason:
        return row | {"left_out": str(reason)}
    except AssertionError as error:  # the fix is not one for this fault
        return row | {"helps": False, "error": str(error)}
    left = [check["state"] for check in again.checks if check["name"] == fault.check and check["state"] != "ok"]
    row["helps"] = not left
    if before is not None and after is not None:
        row |= {"steps_per_s_before": before, "steps_per_s_after": after, "helps": after > 1.1 * before}
    return row


def meter_cost(folder: Path) -> dict[str, float]:
    """Seconds that the meter of the waits takes for a step, for a line of the metrics and for its file."""
    run = RunDir(folder / "meter")
    run.path.mkdir()
    meter = WaitMeter(run, 0, 1, Train(), cast(Data, _Nothing()))
    start = time.perf_counter()
    for _ in range(STEPS):
        with meter.step():
            pass
    step_s = (time.perf_counter() - start) / STEPS
    start = time.perf_counter()
    for _ in range(LINES):
        with meter.step():
            pass
        meter.line()
    line_s = (time.perf_counter() - start) / LINES - step_s
    start = time.perf_counter()
    for _ in range(LINES):
        meter.write()
    return {"step_s": step_s, "line_s": line_s, "file_s": (time.perf_counter() - start) / LINES}


class _Nothing:
    """Data that took no time."""

    is_remote = False

    def spent(self) -> LoaderTimes:
        """Nothing."""
        return LoaderTimes()


if __name__ == "__main__":
    start = time.perf_counter()
    main()
    print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)
