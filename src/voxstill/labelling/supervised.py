"""Labels of supervised utterances: the texts of their manifest, in the table of the teacher that labels the others.

The teacher `reference` makes them, and their rows name it. The other teacher is not asked, and they are not part of its
speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from voxstill import engine
from voxstill.audio import read_utterances
from voxstill.core import config
from voxstill.core.metrics.steps import StepMeter
from voxstill.core.records import Label
from voxstill.labelling.commit import commit_rows
from voxstill.labelling.removed import WAY_OUT
from voxstill.labelling.task import Task
from voxstill.labelling.transcribe import Transcribe, set_aside_label
from voxstill.storage import lease
from voxstill.storage.store import Store
from voxstill.teachers import registry


def reference_task() -> Task:
    """The task that the rows of supervised utterances name."""
    teacher = config.Teacher(name="reference")
    name = f"{teacher.name}@{registry.create(teacher).revision()}"
    return Task(teacher, name, reads_texts=True, reads_languages=True)


def chunks(planned: Iterator[engine.Chunk]) -> Iterator[engine.Chunk]:
    """The chunks with their supervised utterances alone, without those that have none."""
    for chunk in planned:
        if texts := tuple(utterance for utterance in chunk.items if utterance.supervised):
            yield engine.Chunk(engine.chunk_id(utterance.id for utterance in texts), texts)


def label_texts(
    work: Store,
    labels: str,
    chunks: Iterator[engine.Chunk],
    num_supervised: int,
    cfg: config.Engine,
    reading: read_utterances.Reading,
    held: lease.Lease,
) -> None:
    """Write the texts of supervised utterances into the table `labels`; one without a text is a failed label.

    `num_supervised` is how many there are in all. StorageError if some are left because storage did not answer.
    """
    task, outage = reference_task(), engine.Outage("utterances", WAY_OUT)

    def commit(chunk: engine.Chunk, rows: Sequence[Label | engine.Postponed]) -> None:
        held.check()
        commit_rows(work, labels, chunk, rows, lambda row: row.utterance_id, meter, outage)

    stages = (
        engine.Stage(name="decode", work=read_utterances.Decode(reading), workers=cfg.workers, resources=cfg.resources),
        engine.Stage(name="texts", work=Transcribe(task), workers=cfg.workers, resources=cfg.resources),
    )
    with StepMeter("label texts", num_supervised, "utterances") as meter:
        engine.run(chunks, stages, commit, partial(set_aside_label, task), cfg, meter)
    outage.check()
