"""remove: utterances that every later table and shard leaves out, such as those of people who ask for it."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from voxstill.core.arguments import text
from voxstill.core.config import Config
from voxstill.core.errors import DataError, VoxstillError
from voxstill.core.monitor import log
from voxstill.core.records import Utterance
from voxstill.core.result import Result
from voxstill.indexing.segment import IndexRow
from voxstill.storage import corrections, joined_file, lease, removals, tables
from voxstill.storage.fetch import read_uri
from voxstill.storage.removals import Removal
from voxstill.storage.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN = 5
_STRETCH = ("id", "recording_id", "uri", "channel", "start_ms", "end_ms")
_COMMENT = re.compile(r"(?:^|\s)\s*#(?:\s.*)?$")


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
        return f"{counts}\nfinished shards may still contain them: run `voxstill filter`, `shard` and `clean --yes`"


def read_ids(file: str) -> list[str]:
    """The ids in a file, one a line; blank lines are passed over.

    A `#` that stands alone or before a space begins a comment, at the beginning of a line or behind a space. DataError
    where the file cannot be read or holds no id.
    """
    try:
        lines = read_uri(file).decode("utf-8-sig").splitlines()
    except (VoxstillError, UnicodeDecodeError) as error:
        why = error.why if isinstance(error, VoxstillError) else str(error)
        raise DataError(
            f"cannot read `{file}`", code="ids-to-remove", why=why, fix="give a text file with one id per line"
        ) from None
    ids = [id_ for line in lines if (id_ := _COMMENT.sub("", line).strip())]
    if not ids:
        raise DataError(
            f"`{file}` contains no ids",
            code="ids-to-remove",
            why="nothing would be removed",
            fix="give a file with one id per line",
        )
    return ids


def remove(cfg: Config, ids: Sequence[str], reason: str | None = None, *, speakers: Sequence[str] = ()) -> RemoveResult:
    """Record that utterances or recordings are removed; those that were removed before are passed over.

    With them go the utterances that any table has of the `speakers` now: their ids are recorded, and no names. Copies
    of their files that are indexed under other addresses go with them. DataError if an id or a speaker is not known
    in the work folder, or an id is that of different audio in two of its tables: then nothing is recorded. Damaged
    parts of the record are set aside once something was recorded again; DataError if nothing was. ConfigError where a
    text is none, or is no UTF-8.
    """
    texts = {"ids": ids, "speakers": speakers, "reason": () if reason is None else (reason,)}
    for name, values in texts.items():
        for value in values:
            text(name, value)
    work = Store(cfg.work)
    if not tables.parts(work, removals.UTTERANCES):
        raise DataError(
            f"`{work.root}` has no utterances",
            code="no-work-folder",
            why="`voxstill index` has written none there",
            fix="check the path",
        )
    with lease.hold(work, removals.PREFIX, "remove") as held:
        rows, damaged = removals.read(work)
        before = removals.among(work, rows)
        recorded = {removal.id for removal in rows}
        named = dict.fromkeys([*ids, *_ids_of_speakers(work, speakers)])
        new = [id_ for id_ in named if id_ not in recorded]
        unused = _unused(work)
        new_removals = list(_removals(work, new, reason, {**unused, **_left_out(work)}))
        known = {removal.id for removal in new_removals}
        unknown = [id_ for id_ in new if id_ not in known]
        if unknown:
            raise DataError(
                f"`{work.root}` has no utterance or recording {_listed(unknown)}",
                code="ids-to-remove",
                why="they are in none of its tables; nothing was removed",
                fix="give ids as they are in the tables `utterances` and `recordings`; all utterances of a speaker "
                f"are removed by `voxstill remove {work.root} --speaker NAME`",
            )
        if damaged and not new_removals:
            raise removals.refused(work, damaged)
        if new_removals:
            held.check()
            removals.append(work, new_removals, damaged)
        after = removals.among(work, [*rows, *new_removals])
    for key in damaged:
        log.warning("remove: `%s` was damaged, and is set aside", work.uri(key))
    _erase_copies(cfg, work, {*after, *recorded, *known})
    num_before, num = (
        len(gone.keys() | (unused.keys() & named)) for gone, named in ((before, recorded), (after, recorded | known))
    )
    log.info("remove: %d utterances removed", num - num_before)
    return RemoveResult(removed=num - num_before, all_removed=num)


def _ids_of_speakers(work: Store, speakers: Sequence[str]) -> list[str]:
    """The ids of all utterances of speakers, also of those whose audio the index could not use.

    DataError if a speaker has none.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not speakers:
        return []
    ids = {speaker: list[str]() for speaker in speakers}
    for _, part in _parts(work, removals.UTTERANCES, ("id", "speaker")):
        for row in part.filter(pc.is_in(part["speaker"], pa.array(ids, pa.string()))).to_pylist():
            ids[row["speaker"]].append(row["id"])
    for _, part in _parts(work, "recordings", ("unused",)):
        for row in (row for rows in part["unused"].to_pylist() for row in rows or ()):
            if row["speaker"] in ids:
                ids[row["speaker"]].append(row["id"])
    if unknown := [speaker for speaker in ids if not ids[speaker]]:
        raise DataError(
            f"`{work.root}` has no utterance of {_listed(unknown)}",
            code="ids-to-remove",
            why="the column `speaker` of its tables has no such name; nothing was removed",
            fix="give names as they stand there: after diarization these are `RECORDING/1`, `RECORDING/2`, ...",
        )
    return [id_ for of_speaker in ids.values() for id_ in of_speaker]


def _listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(f"`{name}`" for name in names[:_SHOWN]) + more


def _erase_copies(cfg: Config, work: Store, removed: set[str]) -> None:
    """Erase judgements of removed utterances, and the joined file of the explorer, which has their texts."""
    corrections.erase(work, removed)
    joined_file.forget(cfg)


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What an id means in one table: a recording, or an utterance of it."""

    table: str
    recording_id: str
    removal: Removal

    def __str__(self) -> str:
        of = self.removal
        stretch = "" if of.is_recording else f" from {of.start_ms} to {of.end_ms} ms"
        channel = "" if of.channel is None else f", channel {of.channel}"
        return f"`{of.uri}`{stretch}{channel} in `{self.table}`"


def _removals(
    work: Store, ids: Sequence[str], reason: str | None, rowless: Mapping[str, Sequence[_Meaning]]
) -> Iterator[Removal]:
    """The removals of each id that is an utterance or a recording of any table: of its file and of copies of that.

    DataError if an id means different audio.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not ids:
        return
    meanings = _meanings(work, ids, reason, rowless)
    recording_ids = {meaning.recording_id for of_id in meanings.values() for meaning in of_id}
    contents: dict[str, str] = {}
    for _, part in _parts(work, "recordings", ("id", "content_hash")):
        rows = part.filter(pc.is_in(part["id"], pa.array(sorted(recording_ids), pa.string()))).to_pylist()
        contents |= {row["id"]: row["content_hash"] for row in rows if row["content_hash"] is not None}
    uris: dict[str | None, set[str]] = {}
    for _, part in _parts(work, "recordings", ("uri", "content_hash")):
        for row in part.filter(
            pc.is_in(part["content_hash"], pa.array(list(contents.values()), pa.string()))
        ).to_pylist():
            uris.setdefault(row["content_hash"], set()).add(row["uri"])
    for of_id in meanings.values():
        first = of_id[0]
        content = contents.get(first.recording_id)
        for other in of_id[1:]:
            is_one_file = first.removal.uri == other.removal.uri or content == contents.get(other.recording_id, "")
            if not is_one_file or first.removal.stretch != other.removal.stretch:
                raise _ambiguous(first, other)
        removal = replace(first.removal, content=content)
        yield removal
        yield from (replace(removal, uri=uri) for uri in sorted(uris.get(content, set()) - {removal.uri}))


def _meanings(
    work: Store, ids: Sequence[str], reason: str | None, rowless: Mapping[str, Sequence[_Meaning]]
) -> dict[str, list[_Meaning]]:
    """What each id that is known means, in the order of the ids and then of the tables.

    `rowless` are what ids mean that no row of utterances has.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    wanted, meanings = pa.array(ids, pa.string()), dict[str, list[_Meaning]]()
    for table, part in _parts(work, "recordings", ("id", "uri")):
        for row in part.filter(pc.is_in(part["id"], wanted)).to_pylist():
            removal = Removal(id=row["id"], uri=row["uri"], time=time, reason=reason)
            meanings.setdefault(removal.id, []).append(_Meaning(table, removal.id, removal))
    for table, part in _parts(work, removals.UTTERANCES, _STRETCH):
        for row in part.filter(pc.is_in(part["id"], wanted)).to_pylist():
            recording_id = row.pop("recording_id")
            removal = Removal(**{name: row[name] for name in row if name in _STRETCH}, time=time, reason=reason)
            meanings.setdefault(removal.id, []).append(_Meaning(table, recording_id, removal))
    for id_ in ids:
        if id_ not in meanings and id_ in rowless:
            meanings[id_] = [
                replace(meaning, removal=replace(meaning.removal, time=time, reason=reason)) for meaning in rowless[id_]
            ]
    return {id_: meanings[id_] for id_ in ids if id_ in meanings}


def _unused(work: Store) -> dict[str, list[_Meaning]]:
    """What the ids of utterances mean whose audio the index could not use: they are judged all the same."""
    import pyarrow.compute as pc

    meanings = dict[str, list[_Meaning]]()
    for table, whole in _parts(work, "recordings", ("id", "unused")):
        part = whole.filter(pc.greater(pc.list_value_length(whole["unused"]), 0))  # null is not a match
        for recording_id, rows in zip(part["id"].to_pylist(), part["unused"].to_pylist(), strict=True):
            for row in rows or ():
                removal = Removal(**{name: row[name] for name in _STRETCH if name != "recording_id"}, time="")
                meanings.setdefault(removal.id, []).append(_Meaning(table, recording_id, removal))
    return meanings


def _left_out(work: Store) -> dict[str, list[_Meaning]]:
    """What the ids of utterances mean that the index left out: where the record lost them, they are recorded again."""
    meanings = dict[str, list[_Meaning]]()
    for table, utterance in removals.left_out(work):
        removal = Removal(**{name: getattr(utterance, name) for name in _STRETCH if name != "recording_id"}, time="")
        meanings.setdefault(removal.id, []).append(_Meaning(table, utterance.recording_id, removal))
    return meanings


def _parts(work: Store, prefix: str, names: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Columns of each part of all recordings, or of all utterances, with the table that it is of."""
    keys = tables.parts(work, prefix)
    kind = Utterance if prefix == removals.UTTERANCES else IndexRow
    for key, part in zip(keys, tables.columns(work, keys, kind, names), strict=True):
        yield key.rpartition("/")[0], part


def _ambiguous(first: _Meaning, other: _Meaning) -> DataError:
    return DataError(
        f"the id `{first.removal.id}` is that of different audio in two tables",
        code="ids-to-remove",
        why=f"{first} and {other}; nothing was removed",
        fix=f"give the id of the recording that you mean, `{first.recording_id}` or `{other.recording_id}`, to remove "
        "all of it; or delete the unused table with `voxstill clean`",
    )
