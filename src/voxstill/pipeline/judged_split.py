"""The utterances of a split that a model is judged by: those of the table, and those that the index could not use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from voxstill.core.config import Config
from voxstill.core.monitor import log
from voxstill.core.records import Utterance
from voxstill.evaluation import recognition
from voxstill.evaluation.results import Corpus
from voxstill.indexing.failure import Failure, FailureKind
from voxstill.indexing.segment import IndexRow
from voxstill.pipeline.recipes import finished_utterances
from voxstill.storage import removals, tables, workdir
from voxstill.storage.redaction import redact_uri
from voxstill.storage.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedSplit:
    """The utterances of `evaluate.split` and of which corpus they are; `warnings` say what is not among them."""

    corpus: Corpus
    utterances: Sequence[Utterance]
    warnings: Sequence[str] = ()


@dataclass(slots=True)
class _Unused:
    """What the index could not use: by address where a whole file failed, else by id; and what is not known of it."""

    of_failed: dict[str, list[Utterance]]
    others: dict[str, Utterance]
    unknown: Counter[str]
    """Recordings of which an earlier version did not keep what the source said, by the kind of their failure."""


def of_split(cfg: Config) -> JudgedSplit:
    """Read the utterances of `evaluate.split`, but for those that were removed.

    Among them are those that the source names or has words of and whose audio the index could not use: they are silent,
    damaged, or too short, and a recogniser that is evaluated without them looks better than it is.
    """
    work = Store(cfg.work)
    source = finished_utterances(cfg)
    prefix = workdir.prefix("utterances", source.recipe)
    removed = removals.of(work, prefix)
    unused = _unused(work, workdir.prefix("recordings", source.recipe))
    ids = recognition.hidden_texts(cfg).keys() - removed.keys()
    rows: list[Utterance] = []
    for row in tables.read(work, prefix, Utterance):
        unused.of_failed.pop(row.uri, None)  # it was repaired, or storage gave it the next time
        unused.others.pop(row.id, None)
        ids.discard(row.id)
        if row.split == cfg.evaluate.split:
            rows.append(row)
    left = [*unused.others.values(), *(row for of_recording in unused.of_failed.values() for row in of_recording)]
    ids -= {row.id for row in left}
    gone = {row.id for row in removals.covered(removals.record(work), left)} if left else set()
    known = {row.id: row for row in left if row.split == cfg.evaluate.split and row.id not in gone}
    long = {id_ for id_, row in known.items() if row.duration_ms > cfg.segment.max_ms}
    rows += (row for id_, row in known.items() if id_ not in long)
    warnings = _warnings(cfg, len(long), len(ids), unused.unknown)
    for warning in warnings:
        log.warning("evaluate: %s", warning)
    texts = None if cfg.evaluate.texts is None else redact_uri(cfg.evaluate.texts)
    corpus = Corpus(work=redact_uri(work.root), utterances=source.recipe, texts=texts)
    return JudgedSplit(corpus=corpus, utterances=[row for row in rows if row.id not in removed], warnings=warnings)


def _unused(work: Store, recordings: str) -> _Unused:
    unused = _Unused({}, {}, Counter())
    columns = ("uri", "error", "unused")
    for part in tables.columns(work, tables.parts(work, recordings), IndexRow, columns):
        for uri, error, rows in zip(*(part[name].to_pylist() for name in columns), strict=True):
            if rows:
                utterances = [tables.from_columns(row, Utterance) for row in rows]
                if error is None:
                    unused.others |= {utterance.id: utterance for utterance in utterances}
                else:
                    unused.of_failed[uri] = utterances
            elif rows is None and error is not None and Failure.parse(error).kind != FailureKind.DUPLICATE:
                unused.unknown[Failure.parse(error).kind] += 1
    return unused


def _warnings(cfg: Config, num_long: int, num_texts: int, unknown: Counter[str]) -> list[str]:
    """What is not judged, with counts and reasons."""
    warnings = []
    if num_long:
        warnings.append(
            f"{num_long:,} human texts are of audio longer than `segment.max_ms` ({cfg.segment.max_ms / 1000:g} s),"
            " which was cut into utterances without words: they are not evaluated. `voxstill align` also cuts words"
        )
    if num_texts:
        warnings.append(
            f"{num_texts:,} texts of `evaluate.texts` have an id that no utterance has, and are not evaluated"
        )
    if unknown:
        reasons = ", ".join(f"{count:,} {kind}" for kind, count in unknown.most_common(3))
        warnings.append(
            f"{unknown.total():,} recordings could not be used ({reasons}), and this index is from a version that "
            "did not"
            " store their human texts: they are not evaluated. Index into another work folder to evaluate them"
        )
    return warnings
