"""run --dry-run: the whole pipeline on a few files, in folders of its own, with an estimate of the full cost."""

from __future__ import annotations

import dataclasses
import datetime
import heapq
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from voxstill.core import config, scratch
from voxstill.core.config import Config, sources_of
from voxstill.core.monitor import log
from voxstill.core.records import Split, fingerprint
from voxstill.indexing.formats.entry import SourceEntry
from voxstill.indexing.scan import SourceFile, by_file, scan, split_of
from voxstill.pipeline import end_to_end
from voxstill.pipeline.marks import marks_children
from voxstill.pipeline.run_result import Rehearsal, RunResult
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.training.check import check

FILES: dict[Split, int] = {"train": 100, "dev": 10, "test": 20}
"""The most files of each split."""
FEW = 2
"""So many files of a split are taken however large they are."""
MEGABYTES = 16
"""More of a split is not taken: 16-bit speech of eight minutes."""
ROWS = 50
"""The most utterances of one file, where the source says which it has."""
STEPS = 20
"""Optimizer steps, unless `--max-batches` says how many."""


@dataclass(frozen=True, slots=True)
class Part:
    """The sampled files with their splits, and their share of the bytes of the whole source."""

    files: list[tuple[Split, SourceFile]]
    share: float


@marks_children("run")
def dry_run(cfg: Config, max_batches: int | None = None) -> RunResult:
    """Run every step on a part of the source, in folders of its own; estimates what the whole would take.

    The result is that of `end_to_end.run`, with `rehearsal`. The work folder is
    `<work>-rehearsal/<time>` and the experiment lies in `<train.root>-rehearsal`, so nothing of the real ones is read
    or written, and every step is really done.
    """
    check(cfg)  # the real training, which is not what runs here
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d_%H-%M-%S")
    work = f"{cfg.work.rstrip('/')}-rehearsal/{stamp}"
    experiments = Path(f"{cfg.train.root.rstrip('/')}-rehearsal")
    part = choose(by_file(scan(cfg.source, Store(work))), cfg)
    log.info("rehearsal: %d files, in `%s`", len(part.files), work)
    tree: dict[str, Any] = {"filter": {}, "train": {}, **cfg.model_dump(exclude_unset=True), "work": work}
    tree["filter"]["second_teacher"] = None  # its labels are those of the real one
    if cfg.rounds > 1:
        tree["filter"]["max_disagreement"] = 1.0  # after so few steps a student agrees with nothing
    tree["train"] |= {
        "steps": max_batches or STEPS,
        "epochs": None,
        "max_minutes": None,
        "log_every": min(cfg.train.log_every, 5),
        "root": str(experiments),
    }
    with scratch.folder() as folder:
        tree["source"] = _sources_of_part(part, cfg, folder)
        result = end_to_end.run(config.validated(Config, tree))
    rehearsal = Rehearsal(
        work=work,
        files=len(part.files),
        share=part.share,
        whole=estimate(cfg, result, part.share),
    )
    return dataclasses.replace(result, rehearsal=rehearsal)


def _sources_of_part(part: Part, cfg: Config, folder: Path) -> list[dict[str, object]]:
    """The sources that have files in the part, each with a manifest of them.

    The manifests lie here and not in `work`: one in a bucket could not name files of this machine.
    """
    sources: list[dict[str, object]] = []
    for number, source in enumerate(sources_of(cfg.source)):
        rows = [row for _, file in part.files if file.source == number for row in manifest_rows(file, cfg)]
        if rows:
            manifest = folder / f"{number}.jsonl"
            manifest.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
            # the rows have their splits, and may not be of all speakers who are named
            of_part: dict[str, object] = {"uri": str(manifest), "test_speakers": [], "dev_speakers": []}
            sources.append({**source.model_dump(), **of_part})
    return sources


def choose(files: Iterable[SourceFile], cfg: Config) -> Part:
    """Sample readable files of every split by the hash of their ids; equal for equal sources and seeds."""
    drawn: dict[Split, list[tuple[int, int, SourceFile]]] = {split: [] for split in get_args(Split)}
    total, sources = 0.0, sources_of(cfg.source)
    for number, file in enumerate(files):
        total += size(file, len(file.entries))
        if file.entries[0].failure is not None:
            continue
        split = split_of(file.entries[0], sources[file.source], cfg.seed)
        heap = drawn[split]
        heapq.heappush(heap, (-int(fingerprint("rehearsal", cfg.seed, file.id), 16), number, file))
        if len(heap) > FILES[split]:
            heapq.heappop(heap)
    taken: list[tuple[Split, SourceFile]] = []
    for split, heap in drawn.items():
        room = MEGABYTES * 1e6
        for place, (_, _, file) in enumerate(sorted(heap, reverse=True)):
            room -= size(file, ROWS)
            if place < FEW or room > 0:
                taken.append((split, file))
    share = sum(size(file, ROWS) for _, file in taken) / max(total, 1)
    return Part(taken, min(share, 1.0))


def size(file: SourceFile, rows: int) -> float:
    """Bytes of the first `rows` utterances of a file; one second of speech where its size is unknown."""
    return max(file.entries[0].num_bytes, 32_000) * min(rows, len(file.entries)) / len(file.entries)


def manifest_rows(file: SourceFile, cfg: Config) -> list[dict[str, object]]:
    """Rows of a manifest that say of a file what its source says, and the split that each row is in."""

    source = sources_of(cfg.source)[file.source]

    def row(entry: SourceEntry) -> dict[str, object]:
        own = {name: getattr(entry, name) for name in ("text", "channel", "start_ms", "end_ms", "weight")}
        own["id"] = entry.utterance_id
        if isinstance(entry.words, tuple):
            own["words"] = [{"word": word, "start_ms": start, "end_ms": end} for word, start, end in entry.words]
        known = {name: value for name, value in (own | asdict(entry.info)).items() if value is not None}
        return {"audio": entry.uri, "split": split_of(entry, source, cfg.seed), **known}

    return [row(entry) for entry in file.entries[:ROWS]]


def estimate(cfg: Config, result: RunResult, share: float) -> dict[str, float | None]:
    """Hours of audio in the whole source, hours of labelling and of training it, from the speeds seen here.

    Rough: speeds on a few files are lower than later on, and files differ. None if there is nothing to estimate from.
    """
    figures = {row.step.partition(" (")[0]: row.figures for row in reversed(result.steps)}  # those of the first round
    assert result.student.path is not None
    hours = figures["index"]["hours"] / share
    teacher_hours = figures["index"].get("teacher_hours", figures["index"]["hours"]) / share
    kept_hours = figures["shard"]["hours"] / share
    run = RunDir(Path(result.student.path))
    summary = json.loads(run.summary.read_text(encoding="utf-8"))
    rows = [json.loads(text) for text in run.metrics.read_text(encoding="utf-8").splitlines()]
    speeds = [row["audio_seconds_per_second"] for row in rows if "audio_seconds_per_second" in row]
    limits = [cfg.train.max_minutes / 60] if cfg.train.max_minutes else []
    if cfg.train.steps:
        limits.append(cfg.train.steps * summary["seconds"] / summary["steps"] / 3600)
    if cfg.train.epochs and speeds:
        limits.append(cfg.train.epochs * kept_hours / speeds[-1])
    return {
        "hours": hours,
        "label_hours": teacher_hours / figures["label"]["rtfx"] if figures["label"]["rtfx"] else None,
        "train_hours": cfg.rounds * min(limits) if limits else None,
    }
