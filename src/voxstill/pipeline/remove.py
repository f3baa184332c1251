"""remove: utterances that every later table and shard leaves out, such as those of people who ask for it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.core.monitor import log
from voxstill.core.records import Recording, Utterance
from voxstill.core.result import Result
from voxstill.storage import lease, removals, tables
from voxstill.storage.removals import Removal
from voxstill.storage.store import Store

_SHOWN = 5
_STRETCH = ("id", "recording_id", "uri", "channel", "start_ms", "end_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveResult(Result):
    """How many utterances were removed by this call, and by all."""

    removed: int
    all_removed: int

    def to_text(self) -> str:
        """The counts, and what to run next."""
        counts = f"{self.removed:,} utterances removed, {self.all_removed:,} with those removed before"
        if not self.removed:
            return counts
        return f"{counts}\nfinished shards may still hold them: run `voxstill filter`, `shard` and `clean --yes`"


def read_ids(file: str) -> list[str]:
    """The ids in a file, one a line; blank lines, and comments (`#` alone or before a space), are passed over.

    DataError where it cannot be read or holds no id.
    """
    try:
        lines = Path(file).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read `{file}`", why=str(error), fix="give a text file with one id a line") from None
    ids = [id_ for line in lines if (id_ := line.strip()) and id_ != "#" and not id_.startswith("# ")]
    if not ids:
        raise DataError(f"`{file}` holds no id", why="nothing would be removed", fix="give a file with one id a line")
    return ids


def remove(cfg: Config, ids: Sequence[str], reason: str | None = None) -> RemoveResult:
    """Record that utterances or recordings are removed; those that were removed before are passed over.

    DataError where an id is not known in the work folder: then nothing is recorded.
    """
    work = Store(cfg.work)
    if not tables.parts(work, removals.UTTERANCES):
        raise DataError(
            f"`{work.root}` has no utterances", why="`voxstill index` has written none there", fix="check the path"
        )
    with lease.hold(work, removals.PREFIX, "remove") as held:
        before = removals.of(work)
        recorded = {removal.id for removal in removals.record(work)}
        new = [id_ for id_ in dict.fromkeys(ids) if id_ not in recorded]
        by_id = _removals(work, new, reason)
        unknown = [id_ for id_ in new if id_ not in by_id]
        if unknown:
            shown = ", ".join(f"`{id_}`" for id_ in unknown[:_SHOWN])
            more = f" and {len(unknown) - _SHOWN:,} more" if len(unknown) > _SHOWN else ""
            raise DataError(
                f"`{work.root}` has no utterance or recording {shown}{more}",
                why="they are in none of its tables; nothing was removed",
                fix="give ids as they stand in the tables `utterances` and `recordings`",
            )
        if by_id:
            held.check()
            removals.append(work, [by_id[id_] for id_ in new])
        after = removals.of(work)
    log.info("remove: %d utterances removed", len(after) - len(before))
    return RemoveResult(removed=len(after) - len(before), all_removed=len(after))


def _removals(work: Store, ids: Sequence[str], reason: str | None) -> dict[str, Removal]:
    """The removal of each id that is an utterance or a recording of any table."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not ids:
        return {}
    time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    wanted = pa.array(ids, pa.string())
    by_id: dict[str, Removal] = {}
    for part in tables.columns(work, tables.parts(work, "recordings"), Recording, ("id", "uri")):
        for row in part.filter(pc.is_in(part["id"], wanted)).to_pylist():
            by_id[row["id"]] = Removal(id=row["id"], uri=row["uri"], time=time, reason=reason)
    for part in tables.columns(work, tables.parts(work, removals.UTTERANCES), Utterance, _STRETCH):
        for row in part.filter(pc.is_in(part["id"], wanted)).to_pylist():
            stretch = {name: row[name] for name in ("id", "uri", "channel", "start_ms", "end_ms")}
            by_id.setdefault(row["id"], Removal(**stretch, time=time, reason=reason))
    return by_id
