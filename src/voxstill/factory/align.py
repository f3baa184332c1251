"""How well each label fits its audio, as a CTC model hears it: a table of its own beside the labels.

The unit of work is a chunk of utterances with what their labels say in the place of the human text. A row is of one
utterance and one text; resuming is the plan minus the rows that are there. So labels that are added cost only
themselves, and one that was made anew with other words is heard anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from voxstill import config, tables, workdir
from voxstill.config import Engine
from voxstill.decode.options import RecognizerOptions
from voxstill.decode.recognizer import Recognizer
from voxstill.errors import DataError
from voxstill.factory import engine, extract, join, label
from voxstill.monitor import StepMeter, log
from voxstill.records import Alignment, Utterance, fingerprint
from voxstill.store import Store

VERSION = 1
"""Rises when the same label is measured in another way."""


@dataclass(frozen=True, slots=True)
class Task:
    """An aligner and the labels that it is to measure; equal tasks have equal recipes."""

    options: RecognizerOptions
    revision: str
    labels: str

    @property
    def recipe(self) -> str:
        """Name of the alignments on disk."""
        return fingerprint("align", VERSION, self.revision, self.labels)

    @property
    def prefix(self) -> str:
        """Where they lie."""
        return workdir.prefix("alignments", self.recipe)


def task(model: str, labels: str) -> Task:
    """The task of measuring labels, named by their recipe, with a model; ConfigError where there is no such model."""
    options = config.validated(RecognizerOptions, {"model": model}, prefix="filter.aligner.")
    return Task(options, Recognizer(options).revision(), labels)


def align(
    work: Store,
    utterances: str,
    labels: Mapping[str, Any],
    task: Task,
    cfg: Engine,
    reading: extract.Reading,
    meter: StepMeter,
) -> dict[str, Any]:
    """Every label that says something has its alignment, or none where the model cannot write it; the figures of all.

    `labels` are the figures of the finished labels. DataError where the model can write none of them.
    """
    source = {"utterances": tables.listing(work, utterances), "labels": labels["sha256"]}
    done = workdir.success(work, "alignments", task.recipe)
    if done is not None and done["source"] == source:
        return done

    def commit(chunk: engine.Chunk, rows: Sequence[Alignment]) -> None:
        work.create(f"{task.prefix}/{chunk.id}.parquet", tables.to_parquet(rows, Alignment))
        meter.safe(sum(each.duration_ms for each in chunk.items), (row.error for row in rows if row.error))

    def fail(utterance: Utterance, reason: str) -> Alignment:
        return Alignment(utterance_id=utterance.id, text=utterance.text or "", error=f"{label.SET_ASIDE}: {reason}")

    stages = (
        engine.Stage(name="decode", make=label.Decode(reading), workers=cfg.workers),
        engine.Stage(
            name="align",
            make=Align(task),
            workers=cfg.teachers,
            num_cpus=cfg.teacher_cpus,
            num_gpus=cfg.teacher_gpus,
        ),
    )
    labelled = workdir.prefix("labels", task.labels)
    engine.run(plan(work, utterances, labelled, task.prefix, cfg.chunk), stages, commit, fail, cfg, meter.engine)
    counts = _counts(work, task)
    if missing := counts["failed"] + counts["unwritten"]:
        told = "align: %d of %d labels have no alignment: the audio of %d cannot be read, %d the aligner cannot write"
        log.warning(told, missing, counts["alignments"], counts["failed"], counts["unwritten"])
    figures = {"recipe": task.recipe, "aligner": task.options.model, "source": source, **counts}
    work.write_json(f"{task.prefix}/{tables.SUCCESS}", figures)
    return figures


def plan(work: Store, utterances: str, labels: str, alignments: str, size: int) -> Iterator[engine.Chunk]:
    """Every utterance whose label says something and has no alignment yet, with that label as its text; they stream."""
    there = tables.parts(work, alignments)
    rows = tables.columns(work, there, Alignment, ("utterance_id", "text"))
    have: Container[str] = tables.Ids(_key(*each) for table in rows for each in _pairs(table)) if there else ()
    parts = join.parts(work, utterances, labels, size)
    for said, heard in join.columns(work, parts, None, ("utterance_id", "text", "error")):
        ids, texts, errors = (heard[name].to_pylist() for name in ("utterance_id", "text", "error"))
        some = []
        for utterance, row in zip(said.to_pylist(), join.rows_of(said["id"].to_pylist(), ids), strict=True):
            if row is None or errors[row] is not None or not texts[row].strip():
                continue
            if _key(utterance["id"], texts[row]) not in have:
                some.append(tables.from_columns({**utterance, "text": texts[row]}, Utterance))
        yield from engine.chunks_of(some, size, lambda each: _key(each.id, each.text or ""))


def _key(id_: str, text: str) -> str:
    return fingerprint(id_, text)


def _pairs(table: Any) -> Iterator[tuple[str, str]]:
    return zip(table["utterance_id"].to_pylist(), table["text"].to_pylist(), strict=True)


def _counts(work: Store, task: Task) -> dict[str, int]:
    """How many rows there are, and why some say nothing; DataError where none says anything."""
    import pyarrow.compute as pc

    num = failed = silent = 0
    for table in tables.columns(work, tables.parts(work, task.prefix), Alignment, ("logprob", "error")):
        num += len(table)
        failed += pc.count(table["error"]).as_py()
        silent += table["logprob"].null_count
    if num and silent == num:
        raise DataError(
            f"`{task.options.model}` aligns none of the {num:,} labels",
            why="their audio cannot be read" if failed == num else "they are not spelt as it spells",
            fix="set `filter.aligner` to a CTC model of their language, or take it away",
        )
    return {"alignments": num, "failed": failed, "unwritten": silent - failed}


@dataclass(frozen=True, slots=True)
class Align:
    """Makes the work of an aligner in its own process: the model is loaded once."""

    task: Task

    def __call__(self) -> Aligning:
        """The aligner, ready to hear."""
        recognizer = Recognizer(self.task.options, section="filter.aligner.")
        recognizer.load()
        recognizer.check_alignment()  # before any audio is read
        return Aligning(recognizer)


@dataclass(frozen=True, slots=True)
class Aligning:
    """Work of an aligner: chunks of audio in, alignments out."""

    recognizer: Recognizer

    def __call__(self, utterances: Sequence[Utterance], audio: label.Decoded) -> list[Alignment]:
        """One alignment for each utterance, in order."""
        rows = [
            Alignment(utterance_id=each.id, text=each.text or "", error=error)
            for each, error in zip(utterances, audio.errors, strict=True)
        ]
        sound = [i for i, error in enumerate(audio.errors) if error is None]
        samples = [audio.samples_T[audio.bounds[i] : audio.bounds[i + 1]] for i in sound]
        texts = [utterances[i].text or "" for i in sound]
        for i, logprob in zip(sound, self.recognizer.log_likelihoods(samples, texts), strict=True):
            rows[i] = dataclasses.replace(rows[i], logprob=logprob)
        return rows

    def close(self) -> None:
        """Give back what the model took."""
        self.recognizer.close()
