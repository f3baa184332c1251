"""verify: compare what is on disk with what was written; with `--repair`, make again what is broken."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, DataError, StorageError, VoxstillError, first_line
from voxstill.core.monitor import log
from voxstill.core.result import Result
from voxstill.core.terminal import one_line
from voxstill.nn import loading
from voxstill.pipeline.check_files import file_faults
from voxstill.pipeline.check_table import Finding
from voxstill.pipeline.check_work import check_work
from voxstill.pipeline.rebuild_tars import rebuild_tars
from voxstill.pipeline.repair import repair as repair_tables
from voxstill.pipeline.repair import settle
from voxstill.pipeline.unpack_again import unpack_again
from voxstill.storage import set_aside, tables
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.training import state

_ENDED = "a repair was ended before it had made this again; `voxstill verify --repair` goes on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken(Result):
    """A file that is not what was written, and why; or a table that does not add up."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult(Result):
    """How many files were read, what is broken, and which of it was made again.

    `unfinished` is broken as well, and of tables that are no longer used: they were only marked as unfinished.
    """

    checked: int
    broken: Sequence[Broken]
    repaired: Sequence[str]
    unfinished: Sequence[str] = ()

    @property
    def exit_code(self) -> int:
        """That of a DataError if something is still broken."""
        is_settled = {*self.repaired, *self.unfinished}
        return DataError.exit_code if {row.path for row in self.broken} - is_settled else 0

    def to_text(self) -> str:
        """What is broken, and what was made again together with it, a line for each, and the counts."""
        notes = dict.fromkeys(self.unfinished, " (not made again: its table is unfinished now, and not used)")
        notes |= dict.fromkeys(self.repaired, " (made again)")
        lines = [f"{one_line(row.path)}: {one_line(row.reason)}{notes.get(row.path, '')}" for row in self.broken]
        broken = {row.path for row in self.broken}
        lines += [f"{one_line(path)}: made again" for path in self.repaired if path not in broken]
        return "\n".join(
            [*lines, f"{self.checked:,} files read, {len(self.broken):,} broken, {len(self.repaired):,} made again"]
        )


def verify(where: str, cfg: Config, *, repair: bool = False) -> VerifyResult:
    """Check every finished table of a work folder, or the checkpoints of an experiment folder.

    With `repair` what `cfg` makes of the broken tables is made again. ConfigError if an experiment is to be
    repaired, DataError if there is nothing to check.
    """
    run = RunDir(Path(where))
    if run.config.is_file():
        if repair:
            raise ConfigError(
                f"`{where}` is an experiment, and checkpoints cannot be made again",
                code="checkpoint-broken",
                why="they are the result of a training",
                fix="remove what is broken; `voxstill train` resumes from the last remaining checkpoint",
            )
        return check_experiment(run)
    work = Store(where)
    if repair:
        settle(work)
    first = check_work(work)
    num_files, faults = file_faults(work)
    if not first.checked:
        raise DataError(
            f"`{where}` has no finished table and is not an experiment",
            code="no-work-folder",
            why="there is nothing to check",
            fix="give a work folder or a folder below exp/",
        )
    faults |= {f"{set_aside.PREFIX}/{table}": _ENDED for table in set_aside.tables_kept(work)}
    rows = faults | {finding.path: finding.reason for finding in first.rows}
    repaired, unfinished = list[str](), list[str]()
    if repair and rows:
        for path, reason in rows.items():
            log.warning("verify: `%s` is broken: %s", path, reason)
        written = _repair(config.changed(cfg, f"work={json.dumps(where)}"), first.rows, faults)
        left = file_faults(work)[1] | {finding.path: finding.reason for finding in check_work(work).rows}
        settled = [path for path in dict.fromkeys((*rows, *written)) if path not in left]
        marked = {finding.path for finding in first.rows if not work.exists(f"{finding.table}/{tables.SUCCESS}")}
        repaired = [path for path in settled if path not in marked]
        unfinished = [path for path in settled if path in marked]
        rows |= left
    broken = [Broken(path=path, reason=reason) for path, reason in rows.items()]
    return VerifyResult(checked=first.checked + num_files, broken=broken, repaired=repaired, unfinished=unfinished)


def _repair(cfg: Config, findings: Sequence[Finding], faults: Iterable[str]) -> list[str]:
    """Repair sources before what is made of them, and tars before the steps; returns the keys that were written."""
    unpacked = unpack_again(cfg, faults)
    tars = rebuild_tars(cfg, findings)
    if tars.written:  # shards of other generations name them
        findings = check_work(Store(cfg.work)).rows
    rest = [finding for finding in findings if finding.table not in tars.waiting]
    written = [*unpacked, *tars.written, *(repair_tables(cfg, rest) if rest else ())]
    for table, error in tars.waiting.items():
        raise StorageError(
            f"`{table}` is not repaired, as its source cannot be read now",
            code="audio-unreadable",
            why=f"{error.what}: {error.why}",
            fix="put the source where it was and as it was, and run `voxstill verify --repair` again; nothing is lost",
        )
    return written


def check_experiment(run: RunDir) -> VerifyResult:
    """Compare the checkpoints and the model of an experiment with their checksums, and read its other files."""
    folders = sorted(run.checkpoints.glob("epoch=*"))
    known = {folder / name: reason for folder in folders for name, reason in state.faults(folder).items()}
    known |= {run.model / name: reason for name, reason in loading.sum_faults(run.model).items()}
    checked, broken = 0, []
    for path in dict.fromkeys([*_files(run), *known]):
        checked += 1
        if (fault := known.get(path) or _fault(path)) is not None:
            broken.append(Broken(path=str(path.relative_to(run.path)), reason=fault))
    for link in (run.last, run.best):
        if link.is_symlink() and not link.exists():
            broken.append(Broken(path=str(link.relative_to(run.path)), reason="it points to no checkpoint"))
    return VerifyResult(checked=checked, broken=broken, repaired=())


def _files(run: RunDir) -> Iterator[Path]:
    yield run.config
    yield from (path for path in (run.environment, run.summary) if path.exists())
    for folder in sorted(run.checkpoints.glob("epoch=*")):
        yield folder / "state.json"
        yield from {folder / "model.safetensors", folder / "optimizer.safetensors", *folder.glob("*.safetensors")}
    yield from sorted(path for path in run.model.glob("**/*") if path.suffix in (".json", ".safetensors"))


def _fault(path: Path) -> str | None:
    """Why a file cannot be read; None if it can."""
    if not path.is_file():
        return "it is missing"
    if path.suffix == ".safetensors":
        return _weights_fault(path)
    try:
        if path.suffix == ".json":
            json.loads(path.read_bytes())
        else:
            config.load(str(path), [], {})
    except (ValueError, OSError, VoxstillError) as error:
        return first_line(error)
    return None


def _weights_fault(path: Path) -> str | None:
    """Why a file of weights cannot be read: its header and its size do not fit."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as weights:
            weights.keys()
    except (SafetensorError, OSError, ValueError) as error:
        return first_line(error)
    return None
