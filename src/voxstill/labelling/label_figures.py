"""Count and checksum the labels of a run: who made them, and how many failed."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from voxstill import engine
from voxstill.core.errors import DataError, TeacherError
from voxstill.core.records import REFERENCE
from voxstill.labelling.task import Task
from voxstill.storage import parquet, tables
from voxstill.storage.corrections import NOT_LABELLED
from voxstill.storage.figures import LabelFigures
from voxstill.storage.removals import REMOVED
from voxstill.storage.same_audio import is_of_supervised, options_key
from voxstill.storage.store import Store
from voxstill.teachers import registry

if TYPE_CHECKING:
    import pyarrow.parquet as pq

MAKER = ("recipe", "teacher")
"""The columns that say who made a label."""
Maker = tuple[str, str]
"""Their values: the recipe and the name of a teacher."""
AND = " + "
"""Between the names of several teachers."""


def count(work: Store, task: Task, keys: Sequence[str] | None = None) -> LabelFigures:
    """Count and checksum all labels of the recipe, or those in the parts `keys`.

    TeacherError if the teacher failed on all but those that were removed, DataError if an utterance has two or no
    supervised one has a text. Where others than the teacher that the run started with have made some, `teacher` names
    all, and `teachers` says how many labels each has made; `supervised` counts the texts of supervised utterances.
    """
    keys = tables.parts(work, task.prefix) if keys is None else keys
    digest, num_labels = hashlib.sha256(), 0
    errors_of: dict[Maker, Counter[str]] = {}
    by_maker: Counter[Maker] = Counter()
    ids = tables.IdCount()
    with ThreadPoolExecutor(tables.READERS) as pool:
        for part in pool.map(lambda key: _count_part(work, key), keys):
            digest.update(part.sha256)
            num_labels += part.num_rows
            ids.add(part.id_digests)
            by_maker.update(part.by_maker)
            for maker, error in part.errors:
                errors_of.setdefault(maker, Counter())[error] += 1
    if ids.doubled():
        raise tables.doubled_ids(work.uri(task.prefix), "labels of some utterances")
    texts = [maker for maker in by_maker if is_of_supervised(work, task.prefix, *maker)]
    num_texts = sum(by_maker.pop(maker) for maker in texts)
    text_errors, errors = Counter[str](), Counter[str]()
    for maker, of_maker in errors_of.items():
        (text_errors if maker in texts else errors).update(of_maker)
    num_removed = errors.pop(REMOVED, 0)
    num_unjudged = sum(errors.pop(error, 0) for error in NOT_LABELLED)
    _refuse_nothing_labelled(task, errors, num_labels - num_texts - num_removed - num_unjudged)
    _refuse_no_texts(text_errors, num_texts)
    errors += text_errors
    own, own_options = (task.recipe, task.name), registry.shown(task.teacher)
    makers = sorted(by_maker, key=lambda maker: (-by_maker[maker], maker)) or [own]
    teachers = None
    if makers != [own]:
        teachers = [
            {
                "recipe": recipe,
                "teacher": name,
                "options": own_options if recipe == task.recipe else work.read_json(options_key(task.prefix, recipe)),
                "labels": by_maker[recipe, name],
            }
            for recipe, name in makers
        ]
    return LabelFigures(
        recipe=task.recipe,
        teacher=AND.join(dict.fromkeys(name for _, name in makers)),
        options=own_options,
        teachers=teachers,
        chunks=len(keys),
        labels=num_labels,
        failed=errors.total(),
        removed=num_removed or None,
        unjudged=num_unjudged or None,
        supervised=num_texts or None,
        quarantined=sum(num for error, num in errors.items() if engine.is_set_aside(error)),
        sha256=digest.hexdigest(),
        rtfx=0.0,
    )


def _refuse_nothing_labelled(task: Task, errors: Counter[str], num_asked: int) -> None:
    """TeacherError if all that the teacher was asked about failed."""
    if num_asked and errors.total() == num_asked:
        raise TeacherError(
            f"the teacher `{task.teacher.name}` failed on all {num_asked} utterances",
            code="all-failed",
            why=max(errors, key=lambda error: errors[error]),
            fix="fix the cause, then run `voxstill label --retry-failed`",
        )


def _refuse_no_texts(errors: Counter[str], num_supervised: int) -> None:
    """DataError if no supervised utterance has a text."""
    if num_supervised and errors.total() == num_supervised:
        raise DataError(
            f"none of the {num_supervised} utterances of supervised sources has a label",
            code="field-missing",
            why=max(errors, key=lambda error: errors[error]),
            fix="correct the manifest, or leave `source.supervised` out, then index again",
        )


def are_human_texts(labels: LabelFigures) -> bool:
    """Whether some of the labels are human transcripts, so that labels cannot be measured against those."""
    return any(name.startswith(REFERENCE) for name in labels.teacher.split(AND))


@dataclass(frozen=True, slots=True)
class _PartCounts:
    """Checksum and counts of one part of labels."""

    sha256: bytes
    num_rows: int
    id_digests: bytes
    errors: list[tuple[Maker, str]]
    by_maker: Counter[Maker]


def _count_part(work: Store, key: str) -> _PartCounts:
    """Count one part of labels; DataError if it is torn."""
    import pyarrow as pa

    data, where, what = work.read(key), work.uri(key), "table of Label rows"
    try:
        return _count(data, parquet.decode(data, where, what))
    except (pa.ArrowException, OSError) as error:
        raise parquet.refused(error, where, what) from None


def _count(data: bytes, file: pq.ParquetFile) -> _PartCounts:
    """Count one part of labels; their teachers and the errors are read only where the statistics do not have them."""
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    num_errors = sum(
        column.num_values - column.statistics.null_count for column in columns if column.path_in_schema == "error"
    )
    bounds = [
        {
            bound
            for column in columns
            if column.path_in_schema == name
            for bound in (column.statistics.min, column.statistics.max)
        }
        for name in MAKER
    ]
    errors: list[tuple[Maker, str]] = []
    is_of_one = all(len(values) == 1 and None not in values for values in bounds)
    by_maker = Counter({(bounds[0].pop(), bounds[1].pop()): file.metadata.num_rows}) if is_of_one else Counter[Maker]()
    if num_errors or not is_of_one:
        table = file.read(columns=[*MAKER, "error"], use_threads=False)
        makers = list(zip(*(table[name].to_pylist() for name in MAKER), strict=True))
        by_maker = Counter(makers)
        errors = [
            (maker, error) for maker, error in zip(makers, table["error"].to_pylist(), strict=True) if error is not None
        ]
    ids = tables.digests(file.read(columns=["utterance_id"], use_threads=False)["utterance_id"].to_pylist())
    return _PartCounts(hashlib.sha256(data).digest(), file.metadata.num_rows, ids, errors, by_maker)
