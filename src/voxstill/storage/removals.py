"""The record of removed utterances, `WORK/removed/`: every later table and shard leaves them out.

A removal names an utterance or a recording. In a table that has the utterance it is that one; in a table of another
segmentation, and in copies of the file under other addresses, it is every utterance that overlaps it.

A table that is made after a removal has no row of what it leaves out. So that it is known all the same, the row of the
recording says which utterances these are: what is named after them has one name, with their rows and without.

The record only grows. Where tables know of removals that it lacks, it is refused: what is missing would come back.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from voxstill.core.errors import DataError, VoxstillError
from voxstill.core.records import Label, Split, Utterance, fingerprint
from voxstill.storage import tables, workdir
from voxstill.storage.figures import IndexFigures, LabelFigures, VerdictFigures
from voxstill.storage.store import Store
from voxstill.storage.workdir import Figures

if TYPE_CHECKING:
    import pyarrow as pa

PREFIX = "removed"
"""Where the record lies. A part is named after what is in it."""
REMOVED = "removed"
"""Error of the label of a removed utterance."""
DAMAGED = ".damaged"
"""What is added to the name of a damaged part once its removals were recorded again."""
UTTERANCES = "utterances"
"""The prefix of all tables of utterances."""
Stretch = tuple[int | None, int, int]
"""Channel, start and end in milliseconds; no channel is the mix of all."""
_COLUMNS = ("id", "recording_id", "uri", "channel", "start_ms", "end_ms", "split")


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """One utterance, or one recording, that was removed at a `time` (UTC, ISO 8601) for a `reason`.

    `id` is that of the utterance or of the recording. The utterance is the stretch of its recording from `start_ms` to
    `end_ms`, which is None if the whole recording was removed. Copies of the recording that were indexed by then
    have removals of their own, of the same id.
    """

    id: str
    uri: str
    channel: int | None = None
    start_ms: int = 0
    end_ms: int | None = None
    time: str
    reason: str | None = None
    content: str | None = None
    """`content_hash` of the recording; None if it is not known, and in records of earlier versions."""

    @property
    def is_recording(self) -> bool:
        """Whether all of a recording was removed."""
        return self.end_ms is None

    def overlaps(self, utterance: Utterance) -> bool:
        """Whether an utterance of the same audio has some of what was removed."""
        return overlap(self.stretch, (utterance.channel, utterance.start_ms, utterance.end_ms))

    @property
    def stretch(self) -> Stretch:
        """The stretch of the recording that was removed."""
        return (None, 0, sys.maxsize) if self.end_ms is None else (self.channel, self.start_ms, self.end_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedUtterance:
    """What the row of a recording keeps of an utterance that was left out as it had been removed: no text, no names."""

    id: str
    channel: int | None = None
    start_ms: int
    end_ms: int
    split: Split = "train"


def overlap(first: Stretch, second: Stretch) -> bool:
    """Whether two stretches of one recording have audio in common."""
    (channel, start_ms, end_ms), (other, from_ms, to_ms) = first, second
    return (None in (channel, other) or channel == other) and start_ms < to_ms and from_ms < end_ms


def record(work: Store) -> list[Removal]:
    """Every removal in a work folder; DataError as of `check`."""
    check(work)
    removals, faults = read(work)
    if faults:  # since it was checked: what a file lost may leave its size as it was
        raise refused(work, faults)
    return removals


def read(work: Store) -> tuple[list[Removal], dict[str, str]]:
    """The removals in all parts of the record that are whole, and why each of the others is not, by its key."""
    removals, faults = list[Removal](), dict[str, str]()
    for key in tables.parts(work, PREFIX):
        try:
            removals += tables.from_parquet(work.read(key), Removal, work.uri(key))
        except DataError as error:
            faults[key] = error.why or error.what
    return removals, faults


def append(work: Store, removals: Sequence[Removal], damaged: Iterable[str] = ()) -> None:
    """Add removals to the record, then rename the damaged parts of it, so that they are parts no more."""
    added = f"{PREFIX}/{fingerprint(*map(tables.to_columns, removals))}.parquet"
    work.replace(added, tables.to_parquet(removals, Removal))  # where such a part was there, it was damaged
    for key in damaged:
        if key != added:
            work.replace(f"{key}{DAMAGED}", work.read(key))
            work.delete(key)


def check(work: Store) -> None:
    """DataError where a part of the record is damaged, or `lacking` knows of one that is missing."""
    _check(work, _state(work))


def refused(work: Store, faults: Mapping[str, str]) -> DataError:
    """The DataError for a record with these faults, by their keys."""
    [(key, why), *more] = faults.items()
    return DataError(
        f"the record of removed utterances is broken: `{work.uri(key)}`"
        + (f" and {len(more):,} more files" if more else ""),
        code="removal-record",
        why=f"{why}; without it removed voices would come back",
        fix=fix(work),
    )


def fix(work: Store) -> str:
    """What to do about a broken record."""
    again = f"`voxstill remove {work.root} --ids FILE` with the ids of all that was ever removed"
    return f"put a copy of it back; or, before anything else, run {again}"


def of(work: Store, utterances: str = UTTERANCES) -> Mapping[str, Split]:
    """The removed utterances of a table, or of all tables below a prefix: the split of each by its id.

    Those that the index left out are among them, though they have no row. DataError as of `check`.
    """
    state = _state(work)
    _check(work, state)
    if state is None:
        return {}
    listings = (tables.parts_hash(work, prefix) for prefix in (utterances, _recordings(utterances)))
    return _of(work.root, utterances, state, *listings)


def identity(removed: Iterable[str]) -> str | None:
    """A hash of the ids of removed utterances; None if there are none."""
    ids = sorted(removed)
    return fingerprint(ids) if ids else None


def covered(
    removals: Sequence[Removal], utterances: Sequence[Utterance], contents: Mapping[str, str | None] | None = None
) -> list[Utterance]:
    """Those of the utterances that were removed; `contents` are the content hashes of their recordings by id.

    All utterances of a recording have to be among them: an utterance that is there itself removes no other of its file.
    """
    contents = contents or {}
    ids = {removal.id for removal in removals}
    present = {(utterance.id, utterance.uri) for utterance in utterances}
    by_uri, by_content = dict[str, list[Removal]](), dict[str | None, list[Removal]]()
    for removal in removals:
        if (removal.id, removal.uri) not in present:
            by_uri.setdefault(removal.uri, []).append(removal)
        if removal.content is not None:
            by_content.setdefault(removal.content, []).append(removal)

    def is_covered(utterance: Utterance) -> bool:
        copies = by_content.get(contents.get(utterance.recording_id), ())
        return (
            utterance.id in ids
            or utterance.recording_id in ids
            or any(removal.overlaps(utterance) for removal in by_uri.get(utterance.uri, ()))
            or any((copy.id, utterance.uri) not in present and copy.overlaps(utterance) for copy in copies)
        )

    return [utterance for utterance in utterances if is_covered(utterance)]


def lacking(work: Store, removals: Sequence[Removal], *, thorough: bool = False) -> str | None:
    """What tables know of removals that these, which are the record, lack; None where they know of none.

    Labels of removed utterances say so, recordings name those that the index left out, and verdicts count those that
    their scores leave out. These are read only where the figures of a finished table count removed utterances; with
    `thorough` all labels are. Nothing is known where utterances are broken: they are made again first.
    """
    with contextlib.suppress(DataError):
        return _lacking(work, removals, thorough=thorough)
    return None


def _lacking(work: Store, removals: Sequence[Removal], *, thorough: bool) -> str | None:
    labels, known = tables.parts(work, "labels") if thorough else _labels_of_removed(work), among(work, removals)
    if num := len(_ids_left_out(work) - known.keys()):
        return f"a file of it is missing: the index has left {num:,} more utterances out"
    if num := len(_labelled_removed(work, labels) - known.keys()):
        return f"a file of it is missing: the labels of {num:,} utterances say that these were removed"
    for verdicts in _finished(work, VerdictFigures):
        if verdicts.removed and (num := verdicts.removed - _num_left_out(work, verdicts, removals)) > 0:
            return f"a file of it is missing: the verdicts {verdicts.recipe} leave {num:,} more utterances out"
    return None


_sound: dict[str, str | None] = {}
"""The last state of each record that was checked; one that comes back, as a file is gone, is checked again."""


def _check(work: Store, state: str | None) -> None:
    """`check`, once for each state of the record."""
    if _sound.get(work.root, "") == state:
        return
    removals, faults = ([], {}) if state is None else read(work)
    if not faults and (why := lacking(work, removals)) is not None:
        faults = {PREFIX: why}
    if faults:
        raise refused(work, faults)
    _sound[work.root] = state


def _state(work: Store) -> str | None:
    """What changes when the record does; None where nothing was removed."""
    return None if next(work.list(PREFIX), None) is None else tables.parts_hash(work, PREFIX)


def _finished(work: Store, kind: type[Figures]) -> Iterator[Figures]:
    """The figures of all finished tables of a kind; those that cannot be read are named by the check of their table."""
    for recipe in workdir.finished_recipes(work, kind.kind):
        with contextlib.suppress(DataError):
            if (figures := workdir.success(work, kind, recipe)) is not None:
                yield figures


def _labels_of_removed(work: Store) -> list[str]:
    """The parts of finished tables of labels with removed utterances."""
    recipes = [figures.recipe for figures in _finished(work, LabelFigures) if figures.removed]
    return [key for recipe in recipes for key in tables.parts(work, workdir.prefix("labels", recipe))]


def _labelled_removed(work: Store, labels: Sequence[str]) -> set[str]:
    """The utterances, of any table, that have a label of a removed one in these parts."""
    import pyarrow.compute as pc

    ids: set[str] = set()
    for part in _columns(work, labels, Label, "utterance_id", "error"):
        ids.update(part["utterance_id"].filter(pc.equal(part["error"], REMOVED)).to_pylist())  # null is no match
    present: set[str] = set()
    for part in _columns(work, tables.parts(work, UTTERANCES), Utterance, "id") if ids else ():
        present.update(ids.intersection(part["id"].to_pylist()))
    return present


def _num_left_out(work: Store, verdicts: VerdictFigures, removals: Sequence[Removal]) -> int:
    """How many of the utterances in the record the scores of these verdicts leave out.

    Those of a table that is gone count as all; one that an earlier version made again neither has rows of them nor says
    which they were, and then the record itself has the ids.
    """
    table = workdir.prefix("utterances", verdicts.utterances)
    if not tables.parts(work, table):
        return verdicts.removed or 0
    absent = {removal.id for removal in removals if not removal.is_recording} - among(work, removals).keys()
    left_out = among(work, removals, table).keys() | absent
    for part in _columns(
        work, tables.parts(work, workdir.prefix("scores", verdicts.scores)), _ScoredId, "utterance_id"
    ):
        left_out -= set(part["utterance_id"].to_pylist())
    return len(left_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScoredId:
    """Of a score the column that is read here."""

    utterance_id: str


def _columns(work: Store, keys: Sequence[str], kind: type, *names: str) -> Iterator[pa.Table]:
    """Columns of parts; those that are broken are named by the check of their table."""
    for key in keys:
        with contextlib.suppress(VoxstillError):
            yield from tables.columns(work, [key], kind, names)


@functools.lru_cache(maxsize=16)
def _of(root: str, utterances: str, removed: str, *_: str) -> Mapping[str, Split]:
    """`of`, read once for each state of the record, `removed`, and for each listing of the table."""
    work = Store(root)
    return among(work, record(work), utterances)


def among(work: Store, removals: Sequence[Removal], utterances: str = UTTERANCES) -> Mapping[str, Split]:
    """`of`, for these removals."""
    if not removals:
        return {}
    splits: dict[str, Split] = {}
    for keys in _by_table(work, utterances).values():
        candidates = [
            tables.from_columns(row, Utterance)
            for part in tables.columns(work, keys, Utterance, _COLUMNS)
            for row in _candidates(part, removals).to_pylist()
        ]
        left_out, contents = _left_out(work, keys)
        rows = covered(removals, [*candidates, *left_out], contents)
        splits |= {utterance.id: utterance.split for utterance in rows}
    return splits


def left_out(work: Store) -> Iterator[tuple[str, Utterance]]:
    """The utterances that the index left out of any table as they had been removed, with the table of recordings."""
    for table, keys in _by_table(work, UTTERANCES).items():
        yield from ((_recordings(table), utterance) for utterance in _left_out(work, keys)[0])


def _ids_left_out(work: Store) -> set[str]:
    """The ids of what the index left out of the finished tables that count it."""
    recipes = [figures.recipe for figures in _finished(work, IndexFigures) if figures.removed]
    keys = (tables.parts(work, workdir.prefix("utterances", recipe)) for recipe in recipes)
    return {utterance.id for of_table in keys for utterance in _left_out(work, of_table)[0]}


def _by_table(work: Store, utterances: str) -> dict[str, list[str]]:
    """The parts of all tables below a prefix, by their table."""
    keys_by_table: dict[str, list[str]] = {}
    for key in tables.parts(work, utterances):
        keys_by_table.setdefault(key.rpartition("/")[0], []).append(key)
    return keys_by_table


def _left_out(work: Store, keys: Sequence[str]) -> tuple[list[Utterance], dict[str, str | None]]:
    """What the index left out of these parts of a table, and the content hashes of the recordings by id."""
    import pyarrow.compute as pc

    there = set(tables.parts(work, _recordings(keys[0].rpartition("/")[0]))) if keys else set()
    beside = [key for key in map(_recordings, keys) if key in there]
    rows, contents = list[Utterance](), dict[str, str | None]()
    for part in tables.columns(work, beside, _Recording):
        has_removed = pc.greater(pc.list_value_length(part["removed"]), 0)  # null is no match
        for row in part.filter(has_removed).to_pylist():
            contents[row["id"]] = row["content_hash"]
            rows += (Utterance(recording_id=row["id"], uri=row["uri"], **one) for one in row["removed"])
    return rows, contents


def _recordings(utterances: str) -> str:
    """The prefix, or the key, of the recordings beside utterances."""
    return f"recordings{utterances.removeprefix(UTTERANCES)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recording:
    """Of a recording the columns that are read here."""

    id: str
    uri: str
    content_hash: str | None = None
    removed: tuple[RemovedUtterance, ...] | None = None


def _candidates(utterances: pa.Table, removals: Sequence[Removal]) -> pa.Table:
    """The rows that share an id or an address with a removal."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = pa.array([removal.id for removal in removals], pa.string())
    uris = pa.array([removal.uri for removal in removals], pa.string())
    is_named = pc.or_(pc.is_in(utterances["id"], ids), pc.is_in(utterances["recording_id"], ids))
    return utterances.filter(pc.or_(is_named, pc.is_in(utterances["uri"], uris)))
